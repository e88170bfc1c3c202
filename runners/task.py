"""The middle of the data's way: read, admit, operate, publish, commit.

A task is a step machine around one operator. What may be read and when output counts is the protocol's business; the
task only moves batches between the log, the protocol and the operator.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from dataflow.graph import Operator, Output, Stream
from dataflow.partition import partition
from dataflow.state import CounterStore
from protocols.base import Delivery, Phase, Protocol, RolledBack, TaskContext
from runners.edges import Edges
from runners.plan import Layout
from runners.role import Role
from sharedlog.codec import decode_batch
from sharedlog.log import Record

END_OF_TIME = 2**62


class Task(Role):
    """One task of one stage. `ctx.state` is the operator's state and, beside it, the counts on its edges."""

    def __init__(self, ctx: TaskContext, layout: Layout, operator: Operator, protocol: Protocol) -> None:
        self._ctx = ctx
        self._layout = layout
        self._operator = operator
        self._read_bytes = 8 * layout.job.flush_bytes
        self._streams: Mapping[str, Stream] = layout.graph.streams
        counts = CounterStore()
        ctx.state.add("edges", counts)
        self._edges = Edges(ctx.name, counts)
        self._protocol = protocol.task(ctx)
        self._turn = 0
        self._watermark = 0
        self._ready = False
        self._published_end = False
        self.batches = self.rollbacks = 0
        self.recovery: dict[str, float] = {}

    def recover(self) -> None:
        """Ask the protocol for the state to go on from; it may need several steps for that."""
        self._ctx.state.restore(None)
        done = self._protocol.recover()
        if done is None:
            return
        self._ctx.vitals.enter(Phase.RECOVERY)
        self._operator.rebuild()
        # Which windows are closed is part of the state, so late rows are known before event time is told again.
        self._watermark = 0
        self._published_end = done.ended
        self._ready = True
        self._ctx.vitals.recovered()
        self.recovery = {"entries_read": done.entries_read, "changes_applied": done.changes_applied}

    def step(self, now_ms: float) -> bool:
        try:
            if not self._ready:
                self.recover()
                return self._ready
            moved = self._consume()
            if not self._published_end and self._protocol.exhausted():
                self._publish(self._operator.advance(END_OF_TIME), END_OF_TIME, end=True)
                moved = True
            self._protocol.tick(now_ms)
            return moved
        except RolledBack:
            self.rollbacks += 1
            self._ready = False
            return True

    def _consume(self) -> bool:
        records: dict[str, Sequence[Record]] = {}
        for tag, after in self._protocol.inputs().items():
            if found := self._ctx.log.read(tag, after, max_bytes=self._read_bytes):
                records[tag] = found
        for group in self._protocol.admit(records):
            self._process(group)
        return bool(records)

    def _process(self, group: Sequence[Delivery]) -> None:
        """Run the operator over a group, one batch for each stream; then let event time pass."""
        rows: dict[str, list[tuple[str, str, pa.RecordBatch]]] = {}
        for tag, record, _ in group:
            header = record.header
            if header.end:
                self._edges.decode(record.body.to_pybytes())
            if not header.rows:
                continue
            stream = self._streams[self._layout.stream_of(tag)]
            batch = decode_batch(record.body, stream.schema)
            rows.setdefault(stream.name, []).append((tag, header.producer, batch))
        outputs: list[Output] = []
        for name, taken in rows.items():
            self.batches += 1
            joined = _joined([batch for _, _, batch in taken])
            self._count_taken(self._streams[name], taken, joined)
            outputs += self._operator.process(name, joined)
        watermark = self._protocol.watermark()
        if watermark > self._watermark:
            self._watermark = watermark
            outputs += self._operator.advance(watermark)
        self._ctx.vitals.took(len(group), sum(delivery.record.body.size for delivery in group))
        self._publish(outputs, self._watermark)

    def _count_taken(
        self, stream: Stream, taken: Sequence[tuple[str, str, pa.RecordBatch]], joined: pa.RecordBatch
    ) -> None:
        """Hash entries of one producer together: for small ones the cost is mostly per call."""
        first = taken[0][:2]
        if all((tag, producer) == first for tag, producer, _ in taken):
            taken = [(*first, joined)]
        for tag, producer, batch in taken:
            self._edges.taken(tag, producer, *stream.summarise(batch))

    def _publish(self, outputs: Iterable[Output], watermark: int, *, end: bool = False) -> None:
        parts: dict[str, list[pa.RecordBatch]] = {}
        for name, batch in outputs:
            if not batch.num_rows:
                continue
            stream = self._streams[name]
            if name == self._layout.graph.result:
                batch = self._stamped(batch)
            for tag, part in self._spread(stream, batch):
                self._edges.sent(tag, *stream.summarise(part))
                parts.setdefault(tag, []).append(part)
        self._published_end = self._published_end or end
        self._protocol.publish(parts, watermark, self._edges.encode() if end else None)

    def _stamped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The last stage hands rows over now."""
        now = pa.array(np.full(batch.num_rows, self._ctx.now_us(), np.int64))
        return batch.append_column("emit_us", now)

    def _spread(self, stream: Stream, batch: pa.RecordBatch) -> Iterable[tuple[str, pa.RecordBatch]]:
        tags = self._layout.tags[stream.name]
        if len(tags) == 1:
            return [(tags[0], batch)]
        if stream.key is None:
            self._turn += 1
            return [(tags[self._turn % len(tags)], batch)]
        parts = partition(batch, stream.key, len(tags))
        return [(tag, part) for tag, part in zip(tags, parts, strict=True) if part is not None]

    def inputs(self) -> Mapping[str, int]:
        return self._protocol.inputs() if self._ready else {}

    def due_ms(self, now_ms: float) -> float:
        return self._layout.job.flush_interval_ms if self._ready else 1.0

    def bound(self) -> int:
        return self._protocol.bound() if self._ready else 0

    def finished(self) -> bool:
        return self._ready and self._protocol.finished()

    def ready(self) -> bool:
        return self._ready

    def watermark(self) -> int:
        return max(0, self._watermark)

    @property
    def held_bytes(self) -> int:
        return self._protocol.held_bytes

    @property
    def late_rows(self) -> int:
        return self._operator.late_rows

    def report(self) -> dict[str, object]:
        return {
            "rows_in": self._edges.total_taken(),
            "rows_out": self._edges.total_sent(),
            "batches": self.batches,
            "rollbacks": self.rollbacks,
            "late_rows": self.late_rows,
            "state_rows": self._ctx.state.rows,
            "state_bytes": self._ctx.state.nbytes,
            "watermark": self._watermark,
            "held_bytes": self.held_bytes,
            **self.recovery,
        }


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
