"""The best row per key, for auctions: the highest value wins, and of equal ones the earliest."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.columns import Latency, batch_of, ints, schema_of
from dataflow.graph import Logic, Operator, Output
from dataflow.index import Ints, group
from dataflow.operators.base import KeyedOperator
from dataflow.state import UPSERT
from dataflow.table import Column, Table

FINAL = "final"


@dataclass(frozen=True, kw_only=True)
class Best:
    """Combines the rows of one batch: per key the best value, its time, and what all its rows answer.

    Exact, for the best of all rows is the best of the batches' best ones. `kept` columns depend on the key alone.
    """

    key: str
    value: str
    time: str
    kept: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        return schema_of(ints=(self.key, *self.kept, self.value, self.time, FINAL))

    def __call__(self, columns: Mapping[str, Column]) -> pa.RecordBatch:
        groups, last = group([columns[self.key]])
        value, time = _best(groups, last.size, columns[self.value], columns[self.time])
        combined = {name: columns[name][last] for name in (self.key, *self.kept)}
        combined |= {self.value: value, self.time: time, FINAL: np.zeros(last.size, np.int64)}
        latency = Latency(columns["oldest_us"], columns["newest_us"], columns["events"]).fold(groups, last.size)
        return batch_of(self.schema, {**combined, **latency.columns()})

    def final(self, columns: Mapping[str, Column]) -> pa.RecordBatch:
        """A last row for keys that will have no more. It brings no value and answers no event."""
        count = columns[self.key].size
        kept = {name: columns[name] for name in (self.key, *self.kept)}
        none, one = np.zeros(count, np.int64), np.ones(count, np.int64)
        empty = {self.value: none, self.time: none, "oldest_us": none, "newest_us": none, "events": none}
        return batch_of(self.schema, {**kept, **empty, FINAL: one})


@dataclass(frozen=True, kw_only=True)
class BestAggregate(Logic):
    """The best row per key over the stream of `Best`'s output: revisions by key, the last of them marked final.

    A final row ends its key: the best is sent once more, marked, and forgotten. If `by_time`, an equal value at an
    earlier time is a revision too.
    """

    output: str
    best: Best
    by_time: bool

    @property
    def schema(self) -> pa.Schema:
        best = self.best
        return schema_of(ints=(best.key, *best.kept, best.value, best.time, FINAL), revisions=True)

    def build(self) -> Operator:
        return _BestAggregate(self)


class _BestAggregate(KeyedOperator):
    def __init__(self, logic: BestAggregate) -> None:
        self._logic = logic
        self._schema = logic.schema
        best = logic.best
        self._table = Table(keys=[best.key], ints=(*best.kept, best.value, best.time))
        super().__init__({"best": self._table})

    def process(self, stream: str, batch: pa.RecordBatch) -> Iterable[Output]:
        best, table = self._logic.best, self._table
        final = ints(batch, FINAL) != 0
        rows = np.flatnonzero(~final)
        better, causes = self._improve(batch, rows) if rows.size else (rows, Latency.of(batch).take(rows))
        ended = table.find([np.unique(ints(batch, best.key)[final])])
        ended = ended[ended >= 0]
        # A key that improves and ends in one batch needs one revision, the final one.
        is_final = np.isin(better, ended)
        alone = ended[~np.isin(ended, better)]
        touched = np.concatenate([better, alone])
        if not touched.size:
            return
        columns: dict[str, Column] = {name: table.column(name)[touched] for name in (best.key, *table.ints)}
        columns[FINAL] = np.concatenate([is_final, np.ones(alone.size, np.bool_)]).astype(np.int64)
        latency = {name: np.append(part, np.zeros(alone.size, np.int64)) for name, part in causes.columns().items()}
        table.delete(ended)
        op = np.full(touched.size, UPSERT, np.int8)
        yield Output(self._logic.output, batch_of(self._schema, {"op": op, **columns, **latency}))

    def _improve(self, batch: pa.RecordBatch, rows: Ints) -> tuple[Ints, Latency]:
        """Write what is better than before; returns the table's rows of it, and the events that it answers."""
        best, table = self._logic.best, self._table
        key, value, time = (ints(batch, name)[rows] for name in (best.key, best.value, best.time))
        groups, last = group([key])
        known = table.find([key[last]])
        old_value = np.where(known >= 0, table.column(best.value)[known], -(2**63))
        old_time = np.where(known >= 0, table.column(best.time)[known], 2**63 - 1)
        new_value, new_time = _best(groups, last.size, value, time)
        better = self._beats(new_value, new_time, old_value, old_time)
        # Rows that would have been no revision on their own are no part of this one.
        raising = np.flatnonzero(self._beats(value, time, old_value[groups], old_time[groups]))
        kept = {name: ints(batch, name)[rows][last][better] for name in best.kept}
        written = table.put([key[last][better]], {**kept, best.value: new_value[better], best.time: new_time[better]})
        position = np.cumsum(better) - 1
        causes = Latency.of(batch).take(rows).take(raising).fold(position[groups][raising], int(better.sum()))
        return written, causes

    def _beats(self, value: Ints, time: Ints, old_value: Ints, old_time: Ints) -> npt.NDArray[np.bool_]:
        higher: npt.NDArray[np.bool_] = value > old_value
        return higher | ((value == old_value) & (time < old_time)) if self._logic.by_time else higher


def _best(groups: Ints, count: int, value: Ints, time: Ints) -> tuple[Ints, Ints]:
    """The highest value of each group, and the earliest time at which it has it."""
    highest = np.full(count, -(2**63))
    np.maximum.at(highest, groups, value)
    at_best = np.flatnonzero(value == highest[groups])
    earliest = np.full(count, 2**63 - 1)
    np.minimum.at(earliest, groups[at_best], time[at_best])
    return highest, earliest
