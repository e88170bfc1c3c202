"""Running aggregates per key: of a stream of rows, and of a table whose rows are revised."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dataflow.columns import Latency, batch_of, ints, operations, schema_of
from dataflow.graph import Logic, Operator, Output
from dataflow.index import Ints, group
from dataflow.operators.base import KeyedOperator
from dataflow.state import DELETE, UPSERT
from dataflow.table import Table


@dataclass(frozen=True, kw_only=True)
class StreamAggregate(Logic):
    """Sums per key over all rows so far. `sums` pairs each result column with the column that it adds up;
    a count is the sum of `events`."""

    output: str
    keys: tuple[str, ...]
    sums: tuple[tuple[str, str], ...]

    @property
    def schema(self) -> pa.Schema:
        return schema_of(ints=(*self.keys, *(name for name, _ in self.sums)), revisions=True)

    def build(self) -> Operator:
        return _StreamAggregate(self)


class _StreamAggregate(KeyedOperator):
    def __init__(self, logic: StreamAggregate) -> None:
        self._logic = logic
        self._schema = logic.schema
        self._totals = Table(keys=logic.keys, ints=[name for name, _ in logic.sums])
        super().__init__({"totals": self._totals})

    def process(self, stream: str, batch: pa.RecordBatch) -> Iterable[Output]:
        logic = self._logic
        keys = [ints(batch, name) for name in logic.keys]
        rows = self._totals.add(keys, {name: ints(batch, source) for name, source in logic.sums})
        groups, last = group([rows])
        touched = rows[last]
        columns = {
            name: self._totals.column(name)[touched] for name in (*logic.keys, *(name for name, _ in logic.sums))
        }
        latency = Latency.of(batch).fold(groups, last.size)
        op = np.full(last.size, UPSERT, np.int8)
        yield Output(logic.output, batch_of(self._schema, {"op": op, **columns, **latency.columns()}))


@dataclass(frozen=True, kw_only=True)
class TableAggregate(Logic):
    """Total and count per group over the *current* rows of a table: a revision replaces its member's last value.

    `final` names a column that is 1 on a member's last revision; the member is then forgotten and its value stays in
    the total. A group without members is deleted.
    """

    output: str
    member: str
    group: str
    value: str
    final: str | None = None

    @property
    def schema(self) -> pa.Schema:
        return schema_of(ints=(self.group, "total", "count"), revisions=True)

    def build(self) -> Operator:
        return _TableAggregate(self)


class _TableAggregate(KeyedOperator):
    def __init__(self, logic: TableAggregate) -> None:
        self._logic = logic
        self._schema = logic.schema
        self._members = Table(keys=["member"], ints=["group", "value"])
        self._groups = Table(keys=["group"], ints=["total", "count"])
        super().__init__({"members": self._members, "groups": self._groups})

    def process(self, stream: str, batch: pa.RecordBatch) -> Iterable[Output]:
        logic = self._logic
        by_member, last = group([ints(batch, logic.member)])
        latency = Latency.of(batch).fold(by_member, last.size)
        member, new_group, new_value = (ints(batch, name)[last] for name in (logic.member, logic.group, logic.value))
        present = operations(batch)[last] != DELETE
        rows = self._members.find([member])
        was = rows >= 0
        old_group, old_value = self._members.column("group")[rows], self._members.column("value")[rows]
        changed = (was != present) | (present & ((old_group != new_group) | (old_value != new_value)))

        final = ints(batch, logic.final)[last] != 0 if logic.final is not None else np.zeros(last.size, np.bool_)
        self._members.delete(rows[was & (final | ~present)])
        stays = present & changed & ~final
        self._members.put([member[stays]], {"group": new_group[stays], "value": new_value[stays]})
        if changed.any():
            leave, enter = changed & was, changed & present
            # An event that moves a member is answered where the member enters, and only once.
            without_events = latency._replace(events=np.where(enter, 0, latency.events))
            causes = [without_events.take(leave), latency.take(enter)]
            groups = np.concatenate([old_group[leave], new_group[enter]])
            total = np.concatenate([-old_value[leave], new_value[enter]])
            count = np.repeat([-1, 1], [np.count_nonzero(leave), np.count_nonzero(enter)])
            yield self._revise(groups, total, count, Latency(*map(np.concatenate, zip(*causes, strict=True))))

    def _revise(self, groups: Ints, total: Ints, count: Ints, causes: Latency) -> Output:
        rows = self._groups.add([groups], {"total": total, "count": count})
        by_group, last = group([rows])
        touched = rows[last]
        columns = {name: self._groups.column(name)[touched] for name in ("total", "count")}
        columns[self._logic.group] = groups[last]
        empty = columns["count"] == 0
        op = np.where(empty, DELETE, UPSERT).astype(np.int8)
        self._groups.delete(touched[empty])
        latency = causes.fold(by_group, last.size)
        return Output(self._logic.output, batch_of(self._schema, {"op": op, **columns, **latency.columns()}))
