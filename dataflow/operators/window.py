"""Windowed aggregates: sums per (window, key) over tumbling and hopping windows of event time.

A window is made of panes, one slide long each. Only panes are stored and only they are written to the changelog; a
window's value is the sum of its panes, computed when one of them changes. A tumbling window is its own only pane.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dataflow.columns import Latency, batch_of, ints, schema_of
from dataflow.graph import GraphError, Logic, Operator, Output
from dataflow.index import Ints, group
from dataflow.operators.base import KeyedOperator, first_open
from dataflow.state import UPSERT
from dataflow.table import Table


@dataclass(frozen=True, kw_only=True)
class WindowAggregate(Logic):
    """Sums per (window, key). `sums` pairs each result column with the column that it adds up; a count is the sum of
    `events`. Windows start at multiples of the slide, those before the first event's included."""

    output: str
    time: str
    keys: tuple[str, ...]
    sums: tuple[tuple[str, str], ...]
    window_us: int
    slide_us: int
    grace_us: int = 0

    def __post_init__(self) -> None:
        if self.window_us % self.slide_us:
            raise GraphError(
                f"windows of {self.window_us} µs are not made of whole slides of {self.slide_us} µs; "
                "choose a slide that divides the window"
            )

    @property
    def schema(self) -> pa.Schema:
        return schema_of(ints=("window", *self.keys, *(name for name, _ in self.sums)), revisions=True)

    def build(self) -> Operator:
        return _WindowAggregate(self)


class _WindowAggregate(KeyedOperator):
    def __init__(self, logic: WindowAggregate) -> None:
        self._logic = logic
        self._schema = logic.schema
        self._sums = [name for name, _ in logic.sums]
        self._per_window = logic.window_us // logic.slide_us
        self._panes = Table(keys=["pane", *logic.keys], ints=self._sums, expiry="pane")
        super().__init__({"panes": self._panes})

    def process(self, stream: str, batch: pa.RecordBatch) -> Iterable[Output]:
        logic = self._logic
        number = ints(batch, logic.time) // logic.slide_us
        batch, number = self._drop_late(batch, number)
        if not batch.num_rows:
            return
        keys = [ints(batch, name) for name in logic.keys]
        groups, last = group([number, *keys])
        sums = {}
        for name, source in logic.sums:
            sums[name] = np.zeros(last.size, np.int64)
            np.add.at(sums[name], groups, ints(batch, source))
        pane = number[last] * logic.slide_us
        keys = [key[last] for key in keys]
        self._panes.add([pane, *keys], sums)
        yield self._revise(pane, keys, Latency.of(batch).fold(groups, last.size))

    def advance(self, watermark_us: int) -> Iterable[Output]:
        logic = self._logic
        horizon = first_open(watermark_us, window_us=logic.window_us, slide_us=logic.slide_us, grace_us=logic.grace_us)
        self._panes.expire(horizon)
        return ()

    def _drop_late(self, batch: pa.RecordBatch, number: Ints) -> tuple[pa.RecordBatch, Ints]:
        """A row is late if one of its windows is closed; it is dropped if all of them are."""
        horizon = self._panes.horizon // self._logic.slide_us
        if int(number.min(initial=horizon + self._per_window)) >= horizon + self._per_window - 1:
            return batch, number
        late = number < horizon + self._per_window - 1
        self.drop_late(int(ints(batch, "events")[late].sum()))
        kept = number >= horizon
        return batch.filter(pa.array(kept)), number[kept]

    def _revise(self, pane: Ints, keys: list[Ints], causes: Latency) -> Output:
        """The new values of all open windows that contain these panes."""
        slide, width, count = self._logic.slide_us, self._per_window, pane.size
        values = self._panes_around(pane, keys)
        windows = (pane[:, None] + np.arange(1 - width, 1) * slide).ravel()
        columns = {"window": windows}
        columns |= {name: np.repeat(key, width) for name, key in zip(self._logic.keys, keys, strict=True)}
        for name, value in values.items():
            summed = np.zeros((count, 2 * width), np.int64)
            np.cumsum(value, axis=1, out=summed[:, 1:])
            columns[name] = (summed[:, width:] - summed[:, :width]).ravel()
        if width > 1:
            causes = causes.take(np.repeat(np.arange(count), width))
            if pane.min() != pane.max():
                # Two panes of one key were touched: both name the windows that they share.
                by_window, last = group([windows // slide, *(columns[name] for name in self._logic.keys)])
                causes = causes.fold(by_window, last.size)
                columns = {name: column[last] for name, column in columns.items()}
            opened = columns["window"] >= self._panes.horizon
            if not opened.all():
                causes = causes.take(opened)
                columns = {name: column[opened] for name, column in columns.items()}
        op = np.full(causes.events.size, UPSERT, np.int8)
        return Output(self._logic.output, batch_of(self._schema, {"op": op, **columns, **causes.columns()}))

    def _panes_around(self, pane: Ints, keys: list[Ints]) -> dict[str, Ints]:
        """The sums of every pane that shares a window with the given ones, earliest first; 0 where there is none."""
        width = self._per_window
        around = 2 * width - 1
        places = (pane[:, None] + np.arange(1 - width, width) * self._logic.slide_us).ravel()
        rows = self._panes.find([places, *(np.repeat(key, around) for key in keys)])
        shape = (pane.size, around)
        return {name: np.where(rows >= 0, self._panes.column(name)[rows], 0).reshape(shape) for name in self._sums}
