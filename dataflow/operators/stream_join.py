"""Inner joins of a stream by key: with a table, and with another stream."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dataflow.columns import Latency, batch_of, ints, schema_of
from dataflow.graph import Logic, Operator, Output
from dataflow.index import Ints, group
from dataflow.operators.base import KeyedOperator, first_open
from dataflow.operators.join import Columns, Side
from dataflow.operators.waiting import Waiting
from dataflow.table import Column, Table, values_of


@dataclass(frozen=True, kw_only=True)
class StreamTableJoin(Logic):
    """Stream with table: each row once, with the row of its key, for which it waits if it comes first.

    `combine` makes the output of all pairs of a batch from their columns (the stream's, the table's, the latency
    columns). With `expires`, an integer column of the table, rows of the table leave when the watermark is past it,
    rows of the stream when it is past their time: nothing can match them any more, for pairs are only those with
    opening ≤ time ≤ expires, where opening is the table row's time. `final` turns what left into a last output.
    """

    output: str
    stream: Side
    table: Side
    combine: Callable[[Columns], pa.RecordBatch]
    expires: str | None = None
    final: Callable[[Columns], pa.RecordBatch] | None = None
    grace_us: int = 0

    def build(self) -> Operator:
        return _StreamTableJoin(self)


class _StreamTableJoin(KeyedOperator):
    def __init__(self, logic: StreamTableJoin) -> None:
        self._logic = logic
        side, other = logic.stream, logic.table
        self._table = Table(keys=other.key, ints=(*other.ints, "since_us"), strings=other.strings, expiry=logic.expires)
        expiry = None if logic.expires is None else "since_us"
        self._waiting = Waiting(keys=side.key, ints=(*side.ints, "since_us"), strings=side.strings, expiry=expiry)
        super().__init__({"table": self._table, **self._waiting.stores("waiting")})

    def process(self, stream: str, batch: pa.RecordBatch) -> Iterable[Output]:
        return self._rows(batch) if stream == self._logic.stream.stream else self._table_rows(batch)

    def advance(self, watermark_us: int) -> Iterable[Output]:
        logic = self._logic
        if logic.expires is None:
            return
        horizon = watermark_us - logic.grace_us
        due = self._table.due(horizon)
        if due.size and logic.final is not None:
            due = due[np.argsort(self._table.column(logic.table.key[0])[due])]
            names = (*logic.table.key, *logic.table.ints, *logic.table.strings)
            yield Output(logic.output, logic.final({name: self._table.values(name)[due] for name in names}))
        self._table.expire(horizon)
        self._waiting.expire(horizon)

    def _rows(self, batch: pa.RecordBatch) -> Iterable[Output]:
        side, table = self._logic.stream, self._table
        rows = table.find([ints(batch, name) for name in side.key])
        waits = np.flatnonzero(rows < 0)
        if waits.size:
            time = ints(batch, side.time)[waits]
            late = time < table.horizon
            if late.any():
                self.drop_late(int(np.count_nonzero(late)))
                waits, time = waits[~late], time[~late]
            values = {name: values_of(batch, name)[waits] for name in (*side.ints, *side.strings)}
            self._waiting.append([ints(batch, name)[waits] for name in side.key], {**values, "since_us": time})
        meets = np.flatnonzero(rows >= 0)
        own = {name: values_of(batch, name)[meets] for name in (*side.key, *side.ints, *side.strings)}
        causes = Latency.of(batch).take(meets)
        yield from self._pairs(own, ints(batch, side.time)[meets], rows[meets], causes)

    def _table_rows(self, batch: pa.RecordBatch) -> Iterable[Output]:
        side, other, table = self._logic.table, self._logic.stream, self._table
        if self._logic.expires is not None:
            late = ints(batch, self._logic.expires) < table.horizon
            if late.any():
                self.drop_late(int(np.count_nonzero(late)))
                batch = batch.filter(pa.array(~late))
        _, last = group([ints(batch, name) for name in side.key])
        key = [ints(batch, name)[last] for name in side.key]
        values = {name: values_of(batch, name)[last] for name in (*side.ints, *side.strings)}
        rows = table.put(key, {**values, "since_us": ints(batch, side.time)[last]})
        position, waiting = self._waiting.fetch(key)
        if not waiting.size:
            return
        kept = self._waiting.rows
        own: dict[str, Column] = {name: part[position] for name, part in zip(other.key, key, strict=True)}
        own |= {name: kept.values(name)[waiting] for name in (*other.ints, *other.strings)}
        time = kept.column("since_us")[waiting]
        self._waiting.remove(key, waiting)
        yield from self._pairs(own, time, rows[position], Latency.at(time))

    def _pairs(self, own: Columns, time: Ints, rows: Ints, causes: Latency) -> Iterable[Output]:
        side, table = self._logic.table, self._table
        since = table.column("since_us")[rows]
        causes = causes.after(since)
        if self._logic.expires is not None:
            valid = np.flatnonzero((since <= time) & (time <= table.column(self._logic.expires)[rows]))
            own, rows, causes = {name: value[valid] for name, value in own.items()}, rows[valid], causes.take(valid)
        if rows.size:
            met = {name: table.values(name)[rows] for name in (*side.key, *side.ints, *side.strings)}
            yield Output(self._logic.output, self._logic.combine({**met, **own, **causes.columns()}))


@dataclass(frozen=True, kw_only=True)
class StreamStreamJoin(Logic):
    """Stream with stream: every pair of rows with the same key in the same tumbling window.

    The first key column of both sides is the start of the window. Columns that both sides name are the key's.
    """

    output: str
    key: tuple[str, ...]
    left: Side
    right: Side
    window_us: int
    grace_us: int = 0

    @property
    def schema(self) -> pa.Schema:
        return schema_of(ints=(*self.key, *self.left.ints, *self.right.ints))

    def build(self) -> Operator:
        return _StreamStreamJoin(self)


class _StreamStreamJoin(KeyedOperator):
    def __init__(self, logic: StreamStreamJoin) -> None:
        self._logic = logic
        self._schema = logic.schema
        self._sides = {logic.left.stream: (logic.left, logic.right), logic.right.stream: (logic.right, logic.left)}
        self._waiting = {
            stream: Waiting(keys=logic.key, ints=(*side.ints, "since_us"), expiry=logic.key[0])
            for stream, (side, _) in self._sides.items()
        }
        # The horizon of a table that never holds a row: which windows are closed.
        self._closed = Table(keys=["window"], expiry="window")
        stores = {name: table for stream, side in self._waiting.items() for name, table in side.stores(stream).items()}
        super().__init__({**stores, "closed": self._closed})

    def process(self, stream: str, batch: pa.RecordBatch) -> Iterable[Output]:
        side, other = self._sides[stream]
        late = ints(batch, side.key[0]) < self._closed.horizon
        if late.any():
            self.drop_late(int(ints(batch, "events")[late].sum()))
            batch = batch.filter(pa.array(~late))
        key = [ints(batch, name) for name in side.key]
        own = {name: ints(batch, name) for name in side.ints}
        self._waiting[stream].append(key, {**own, "since_us": ints(batch, side.time)})
        position, rows = self._waiting[other.stream].fetch(key)
        if not rows.size:
            return
        kept = self._waiting[other.stream].rows
        columns = {name: part[position] for name, part in zip(self._logic.key, key, strict=True)}
        columns |= {name: value[position] for name, value in own.items()}
        columns |= {name: kept.column(name)[rows] for name in other.ints}
        latency = Latency.of(batch).take(position).after(kept.column("since_us")[rows])
        yield Output(self._logic.output, batch_of(self._schema, {**columns, **latency.columns()}))

    def advance(self, watermark_us: int) -> Iterable[Output]:
        width = self._logic.window_us
        horizon = first_open(watermark_us, window_us=width, slide_us=width, grace_us=self._logic.grace_us)
        if horizon > self._closed.horizon:
            self._closed.expire(horizon)
            for waiting in self._waiting.values():
                waiting.expire(horizon)
        return ()
