"""No fault tolerance at all: the baseline that the others are measured against (Impeller §5.3.4).

Nothing but data is written: no markers, changelog, snapshots or positions. A restarted task begins with empty state at
the tail of its inputs, so what was in flight is lost. Under a fault this protocol must fail verification, or the
checker is void.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from protocols.base import Context, Guarantee, Observer, Protocol, Recovery, TaskContext, TaskProtocol
from protocols.inbox import Lane, OpenInbox, Verdict
from protocols.outbox import Outbox, Writer
from sharedlog.errors import Trimmed
from sharedlog.log import Record


class LossyInbox(OpenInbox):
    """Reads whatever is there; gaps are nobody's business."""

    contiguous = False
    _first_end = 2**62  # where the first END lies

    def decide(self, lane: Lane, head: Record) -> tuple[Verdict, int]:
        if head.header.end:
            self._first_end = min(self._first_end, head.lsn)
        return super().decide(lane, head)

    def bound(self) -> int:
        """Data may go at any time, but a successor must find the ENDs, or the job would never finish."""
        return min(super().bound(), self._first_end)

    def skip_to_tail(self) -> int:
        """Begin at the end of the log, but notice the ENDs on the way."""
        tail = self._log.tail()
        entries_read = 0
        for lane in self.lanes.values():
            after = 0
            while True:
                try:
                    records = self._log.read(lane.tag, after, max_bytes=1 << 24)
                except Trimmed as trimmed:
                    after = trimmed.first - 1
                    continue
                if not records:
                    break
                for record in records:
                    producer = lane.producers[record.header.producer]
                    if record.header.end and record.lsn <= tail:
                        producer.ended = True
                        self._first_end = min(self._first_end, record.lsn)
                entries_read += len(records)
                after = records[-1].lsn
            lane.position = lane.read = tail
        return entries_read


class UnsafeTask(LossyInbox, TaskProtocol):
    def __init__(self, ctx: TaskContext) -> None:
        super().__init__(ctx, ctx.plan.inputs)
        self._ctx = ctx
        self._outbox = Outbox(ctx, ctx.plan.outputs)
        self._writer = Writer(ctx, conditional=False)
        self._ended = False
        ctx.state.capture(False)

    def recover(self) -> Recovery:
        if self._ctx.instance == 1:
            return Recovery()
        return Recovery(entries_read=self.skip_to_tail())

    def publish(
        self, outputs: Mapping[str, Sequence[pa.RecordBatch]], watermark: int, end: bytes | None = None
    ) -> None:
        self._outbox.add(outputs, watermark, end)
        self._ended = self._ended or end is not None

    def tick(self, now_ms: float) -> None:
        if self._outbox.due(now_ms):
            self._writer.append(self._outbox.drain(now_ms))

    def finished(self) -> bool:
        return self._ended and self._outbox.empty


@dataclass(frozen=True, kw_only=True)
class Unsafe(Protocol):
    guarantee: ClassVar[Guarantee] = Guarantee.NONE

    def task(self, ctx: TaskContext) -> TaskProtocol:
        return UnsafeTask(ctx)

    def observer(self, ctx: Context) -> Observer:
        return LossyInbox(ctx, ctx.job.sink_inputs)
