"""Nothing is lost, some of it counts twice: changelog and positions without atomicity (Kafka Streams' default).

Outputs and changes are in the log before the position entry that covers them. After a crash *all* changes are
replayed, also those beyond the last position entry, and the input behind that position is processed again on top of
them. Readers act on everything at once.

Every append is conditional on the instance: a zombie's stale upsert over newer state would be a loss. The changelog is
never shortened, so it pins the log.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from protocols.base import (
    Context,
    Guarantee,
    Observer,
    Phase,
    Protocol,
    Recovery,
    TaskContext,
    TaskProtocol,
    require,
)
from protocols.changelog import Changelog
from protocols.inbox import OpenInbox
from protocols.outbox import Outbox, Writer
from sharedlog.log import Entry, Header, Kind

RESTATE_MS = 1000


class AtLeastOnceTask(OpenInbox, TaskProtocol):
    def __init__(self, ctx: TaskContext, commit_interval_ms: float) -> None:
        super().__init__(ctx, ctx.plan.inputs)
        self._ctx = ctx
        self._commit_interval_ms = commit_interval_ms
        self._outbox = Outbox(ctx, ctx.plan.outputs)
        self._changelog = Changelog(ctx)
        self._writer = Writer(ctx)
        self._commit_due_ms: float | None = None
        self._stated_ms = 0.0
        self._dirty = False  # appended since the last position entry
        self._end_published = self._end_committed = False
        self._changes_after = 0  # there is no change up to this LSN
        self._bound = 0
        self._committed: list[int] = []

    def recover(self) -> Recovery:
        last = self._ctx.log.last(f"t/{self._ctx.name}", kind=Kind.MARKER)
        entries_read = changes_applied = 0
        if last is not None:
            saved = json.loads(last.body.to_pybytes())
            self._changes_after = saved["changes_after"]
            self.resume(saved["inputs"])
            self._end_published = saved["ended"]
            entries_read, changes_applied = self._replay()
        lsn = self._commit(0.0)
        if last is None:
            self._changes_after = lsn
        return Recovery(entries_read, changes_applied, self._end_published)

    def _replay(self) -> tuple[int, int]:
        entries_read = changes_applied = 0
        after = self._changes_after
        while records := self._ctx.log.read(self._changelog.tag, after, max_bytes=1 << 24):
            for record in records:
                changes_applied += self._ctx.state.apply(record.body)
            entries_read += len(records)
            after = records[-1].lsn
        return entries_read, changes_applied

    def publish(
        self, outputs: Mapping[str, Sequence[pa.RecordBatch]], watermark: int, end: bytes | None = None
    ) -> None:
        self._outbox.add(outputs, watermark, end)
        self._end_published = self._end_published or end is not None

    def tick(self, now_ms: float) -> None:
        if self._commit_due_ms is None:
            self._commit_due_ms = now_ms + self._commit_interval_ms
        if now_ms >= self._commit_due_ms:
            self._commit_due_ms = now_ms + self._commit_interval_ms
            moved = self._dirty or not self._outbox.empty or self._committed != self._positions()
            if moved or now_ms - self._stated_ms >= RESTATE_MS:
                self._ctx.vitals.enter(Phase.COMMIT)
                self._commit(now_ms)
                self._ctx.vitals.committed()
        elif self._outbox.due(now_ms):
            self._writer.append(self._drain(now_ms))
            self._dirty = True

    def _drain(self, now_ms: float) -> list[Entry]:
        return [*self._changelog.drain(), *self._outbox.drain(now_ms)]

    def _positions(self) -> list[int]:
        return [lane.position for lane in self.lanes.values()]

    def _commit(self, now_ms: float) -> int:
        """Everything up to here, and behind it the position: an append is in order, and whole."""
        entries = self._drain(now_ms)
        saved = {"inputs": self.place(), "changes_after": self._changes_after, "ended": self._end_published}
        header = Header(Kind.MARKER, self._ctx.name, self._ctx.instance, time_us=self._ctx.now_us())
        body = json.dumps(saved, separators=(",", ":")).encode()
        lsn = self._writer.append([*entries, Entry((f"t/{self._ctx.name}",), header, body)])[-1]
        self._stated_ms = now_ms
        self._dirty = False
        self._end_committed = self._end_published
        self._committed = self._positions()
        self._bound = min(lsn, self._changes_after + 1, *(position + 1 for position in self._committed))
        return lsn

    def finished(self) -> bool:
        return self._end_committed

    def bound(self) -> int:
        return self._bound


@dataclass(frozen=True, kw_only=True)
class AtLeastOnce(Protocol):
    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE

    commit_interval_ms: float = 100

    def __post_init__(self) -> None:
        require(
            self.commit_interval_ms > 0, "at_least_once", f"commit_interval_ms={self.commit_interval_ms} must be > 0"
        )

    def pins_log(self) -> bool:
        return True

    def task(self, ctx: TaskContext) -> TaskProtocol:
        return AtLeastOnceTask(ctx, self.commit_interval_ms)

    def observer(self, ctx: Context) -> Observer:
        return OpenInbox(ctx, ctx.job.sink_inputs)
