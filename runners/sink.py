"""The last step of the data's way: a reader that may act on what it gets, with a stop-watch.

The sink admits rows by the protocol's own rule, stamps their arrival read by read, and folds them into the answer.
Latency is taken from the oldest event that a row reflects, weighted by the number of events; see docs/method.md.
"""

import contextlib
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from protocols.base import Context, Delivery, Protocol
from runners.answer import MultisetFold, fold_for
from runners.edges import Edges
from runners.histogram import Histogram
from runners.plan import Layout
from runners.role import Role
from sharedlog.codec import decode_batch
from sharedlog.errors import LogFull
from sharedlog.log import Record

METRICS = ("emit", "visible", "paper")


class Sink(Role):
    """Reads the result stream to its end. `start_us` is the wall time of event time `base_us`."""

    def __init__(self, ctx: Context, layout: Layout, protocol: Protocol, *, start_us: int, base_us: int) -> None:
        self._ctx = ctx
        self._stream = layout.graph.streams[layout.graph.result]
        self._schema = layout.schema_of(layout.graph.result)
        self._read_bytes = 16 * layout.job.flush_bytes
        self._observer = protocol.observer(ctx)
        self._edges = Edges(ctx.name)
        self._shift_us = start_us - base_us
        self._start_us = start_us
        self._done = False
        self.fold = fold_for(layout.graph.answer)
        self.rows = self.events = 0
        self.latency: dict[tuple[int, str], Histogram] = {}  # (second since the start, metric)

    def recover(self) -> None:
        """A sink begins at the beginning: it is the measuring instrument, not part of what is measured."""

    def step(self, now_ms: float) -> bool:
        records: dict[str, Sequence[Record]] = {}
        for tag, after in self._observer.inputs().items():
            if found := self._ctx.log.read(tag, after, max_bytes=self._read_bytes):
                records[tag] = found
        for group in self._observer.admit(records):
            self._take(group)
        if not self._done and self._observer.exhausted():
            with contextlib.suppress(LogFull):  # then it is said in a later step
                self._ctx.log.increment("done")
                self._done = True
        return bool(records) or self.fold.settle()

    def _take(self, group: Sequence[Delivery]) -> None:
        """Entries that came in one read arrived together; what they cost here is the next read's delay."""
        stamp_us = self._ctx.now_us()
        second = (stamp_us - self._start_us) // 1_000_000
        delay = self._histogram(second, "sink_delay")
        for (tag, producer), run in groupby(group, lambda delivery: (delivery.tag, delivery.record.header.producer)):
            batches = []
            for _, record, committed_us in run:
                if record.header.end:
                    self._edges.decode(record.body.to_pybytes())
                if record.header.rows:
                    batches.append(decode_batch(record.body, self._schema))
                    delay.add_one(stamp_us - committed_us)
            if batches:
                # A table puts columns together when they are asked for, and most of them are not.
                table = pa.Table.from_batches(batches)
                self._edges.taken(tag, producer, *self._stream.summarise(table))
                self._measure(table, stamp_us, second)
                for batch in batches:
                    self.fold.add(batch)
                self.rows += table.num_rows

    def _measure(self, rows: pa.Table, stamp_us: int, second: int) -> None:
        oldest, newest, events, emit = (
            rows.column(name).to_numpy() for name in ("oldest_us", "newest_us", "events", "emit_us")
        )
        self.events += int(events.sum())
        self._histogram(second, "visible").add(stamp_us - (oldest + self._shift_us), events)
        self._histogram(second, "emit").add(emit - (oldest + self._shift_us), events)
        self._histogram(second, "paper").add(emit - (newest + self._shift_us), (events > 0).astype(np.int64))

    def _histogram(self, second: int, metric: str) -> Histogram:
        return self.latency.setdefault((second, metric), Histogram())

    def inputs(self) -> Mapping[str, int]:
        return self._observer.inputs()

    def bound(self) -> int:
        return self._observer.bound()

    def watermark(self) -> int:
        return max(0, self._observer.watermark())

    def finished(self) -> bool:
        return self._done

    def edges(self) -> dict[str, Sequence[int]]:
        """Both ends of every edge, once all ENDs are in."""
        return self._edges.dump()

    def result(self) -> dict[str, object]:
        """Answer, edges and latencies: plain values and Arrow bytes, so that they travel to the driver."""
        table = self.fold.result()
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, table.schema) as writer:
            writer.write_table(table)
        return {
            "answer": buffer.getvalue().to_pybytes(),
            "numbers": self.fold.numbers() if isinstance(self.fold, MultisetFold) else None,
            "edges": self.edges(),
            "latency": {key: histogram.counts for key, histogram in self.latency.items()},
            "rows": self.rows,
            "events": self.events,
        }

    def report(self) -> dict[str, object]:
        recent = Histogram()
        for second, metric in list(self.latency)[-8:]:
            if metric == "visible":
                recent.merge(self.latency[second, metric])
        p50, p99 = recent.percentiles([50, 99]) if recent.count else (None, None)
        return {"rows_in": self.rows, "events": self.events, "visible_p50_us": p50, "visible_p99_us": p99}
