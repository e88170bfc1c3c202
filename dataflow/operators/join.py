"""Inner joins of tables by key.

This join and those of streams hold for any interleaving of the two sides: whichever row of a pair comes second makes
the pair. A pair dates from the later of its two events, for nobody could have known it before (`docs/dataflow.md`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dataflow.columns import Latency, batch_of, ints, operations, schema_of
from dataflow.graph import Logic, Operator, Output
from dataflow.index import Ints, group
from dataflow.operators.base import KeyedOperator, first_open
from dataflow.state import UPSERT
from dataflow.table import Column, Table, values_of

Columns = Mapping[str, Column]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One input of a join: its stream, its key columns (paired by position with the other side's), what else of it
    is needed, and the column of its time."""

    stream: str
    key: tuple[str, ...]
    ints: tuple[str, ...] = ()
    strings: tuple[str, ...] = ()
    time: str = "ts"


@dataclass(frozen=True, kw_only=True)
class TableJoin(Logic):
    """Table with table, one row per key on each side. Inputs are revisions, or rows that stand for upserts.

    `key` names the key columns of the result. If `window_us` is given, the first of them is the start of a tumbling
    window, and both tables forget windows that are closed.
    """

    output: str
    key: tuple[str, ...]
    left: Side
    right: Side
    window_us: int | None = None
    grace_us: int = 0

    @property
    def schema(self) -> pa.Schema:
        sides = (self.left, self.right)
        numbers = (*self.key, *(name for side in sides for name in side.ints))
        return schema_of(ints=numbers, strings=[name for side in sides for name in side.strings], revisions=True)

    def build(self) -> Operator:
        return _TableJoin(self)


class _TableJoin(KeyedOperator):
    def __init__(self, logic: TableJoin) -> None:
        self._logic = logic
        self._schema = logic.schema
        expiry = None if logic.window_us is None else logic.key[0]
        self._sides = {side.stream: side for side in (logic.left, logic.right)}
        self._tables = {
            side.stream: Table(keys=logic.key, ints=(*side.ints, "since_us"), strings=side.strings, expiry=expiry)
            for side in self._sides.values()
        }
        self._other = {logic.left.stream: logic.right, logic.right.stream: logic.left}
        super().__init__(dict(self._tables))

    def process(self, stream: str, batch: pa.RecordBatch) -> Iterable[Output]:
        side, table = self._sides[stream], self._tables[stream]
        batch = self._on_time(batch, side, table)
        if not batch.num_rows:
            return
        by_key, last = group([ints(batch, name) for name in side.key])
        key = [ints(batch, name)[last] for name in side.key]
        causes = Latency.of(batch).fold(by_key, last.size)
        given = "op" in batch.schema.names
        op = operations(batch)[last] if given else np.full(last.size, UPSERT, np.int8)
        values: dict[str, Column] = {name: values_of(batch, name)[last] for name in (*side.ints, *side.strings)}
        changed = self._store(table, key, values, op, causes.newest_us)
        if changed.size:
            picked = {name: value[changed] for name, value in values.items()}
            yield from self._joined(stream, [part[changed] for part in key], picked, op[changed], causes.take(changed))

    def advance(self, watermark_us: int) -> Iterable[Output]:
        width = self._logic.window_us
        if width is not None:
            horizon = first_open(watermark_us, window_us=width, slide_us=width, grace_us=self._logic.grace_us)
            for table in self._tables.values():
                table.expire(horizon)
        return ()

    def _on_time(self, batch: pa.RecordBatch, side: Side, table: Table) -> pa.RecordBatch:
        if self._logic.window_us is None:
            return batch
        late = ints(batch, side.key[0]) < table.horizon
        if not late.any():
            return batch
        self.drop_late(int(ints(batch, "events")[late].sum()))
        return batch.filter(pa.array(~late))

    @staticmethod
    def _store(table: Table, key: list[Ints], values: dict[str, Column], op: Column, since: Ints) -> Ints:
        """Write one side's revisions; returns the positions of those that changed it."""
        rows = table.find(key)
        was, upsert = rows >= 0, op == UPSERT
        differs = ~was
        for name in values:
            differs |= table.values(name)[rows] != values[name]
        put = np.flatnonzero(upsert & differs)
        gone = np.flatnonzero(was & ~upsert)
        table.delete(rows[gone])
        written = {name: value[put] for name, value in values.items()}
        table.put([part[put] for part in key], {**written, "since_us": since[put]})
        return np.concatenate([put, gone])

    def _joined(
        self, stream: str, key: list[Ints], values: dict[str, Column], op: Column, causes: Latency
    ) -> Iterable[Output]:
        other = self._other[stream]
        table = self._tables[other.stream]
        rows = table.find(key)
        pairs = np.flatnonzero(rows >= 0)
        if not pairs.size:
            return
        rows = rows[pairs]
        columns: dict[str, Column] = {name: part[pairs] for name, part in zip(self._logic.key, key, strict=True)}
        columns |= {name: value[pairs] for name, value in values.items()}
        columns |= {name: table.values(name)[rows] for name in (*other.ints, *other.strings)}
        latency = causes.take(pairs).after(table.column("since_us")[rows])
        batch = batch_of(self._schema, {"op": op[pairs], **columns, **latency.columns()})
        yield Output(self._logic.output, batch)
