"""Progress marking: one conditional append makes an interval of input, output and state count (Impeller §3.3–3.5).

A task appends output and changes as it goes. At every commit interval it appends a *marker*: how far it has read, and
where in each substream its output of this interval began. The marker is one entry under the tags of all substreams
touched, of the task log `t/<task>` and of the changelog `c/<task>`, and it is conditional on the instance number. So it
counts everywhere or nowhere, and never for a task that has a successor. A reader delivers an entry when it has read a
marker that covers it.

Recovery: increment the instance (the runner) → last marker in the task log → the snapshot that it names → the changes
since, admitted as any reader admits → an empty marker to every downstream substream, which says to all readers that
orphans of earlier instances can be dropped.
"""

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from protocols.base import (
    Broken,
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
from protocols.inbox import NO_WATERMARK, Inbox, Lane, Verdict
from protocols.outbox import Outbox, Writer
from sharedlog.errors import Fenced
from sharedlog.log import Entry, Header, Kind, Record

RESTATE_MS = 1000


class Snapshot(NamedTuple):
    """A copy of the state right after the marker at `lsn`, and the number of the last change in it.

    Without a key it is the empty state, before the first change.
    """

    key: str = ""
    lsn: int = 0
    instance: int = 0
    sequence: int = 0


class Range(NamedTuple):
    """What an interval put into one substream: from `first` up to the marker itself (§3.5, shrunk).

    A negative `first` counts back from the marker: the entry lies in the marker's own append.
    """

    first: int
    last_sequence: int


class Marker(NamedTuple):
    inputs: Mapping[str, Any]  # place of the reader: positions, high-water marks, watermarks
    ranges: Mapping[str, Range]
    snapshot: Snapshot
    ended: bool

    def encode(self) -> bytes:
        return json.dumps(self, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, body: pa.Buffer) -> "Marker":
        inputs, ranges, snapshot, ended = json.loads(body.to_pybytes())
        return cls(inputs, {tag: Range(*bounds) for tag, bounds in ranges.items()}, Snapshot(*snapshot), ended)


class Mark(NamedTuple):
    """What one substream needs to remember of a marker. `first` > `lsn`: it covers nothing here."""

    lsn: int
    instance: int
    first: int
    last_sequence: int
    time_us: int


class MarkedInbox(Inbox):
    """Delivers what a marker covers, drops what no marker can cover any more, and waits for the rest."""

    def reset(self) -> None:
        super().reset()
        # Markers read ahead of the undecided head, by substream and producer, in LSN order.
        self._marks: dict[tuple[str, str], deque[Mark]] = defaultdict(deque)

    def learn(self, lane: Lane, record: Record) -> None:
        if record.header.kind is not Kind.MARKER:
            return
        first, last_sequence = Marker.decode(record.body).ranges.get(lane.tag, (record.lsn + 1, 0))
        first = record.lsn + first if first < 0 else first
        mark = Mark(record.lsn, record.header.instance, first, last_sequence, record.header.time_us)
        self._marks[lane.tag, record.header.producer].append(mark)
        # The fence may be saved ahead of the position. The head at the position could not be decided with all that
        # had been read, so whoever resumes there has read all of it again before anything in this lane is decided.
        producer = lane.producers[record.header.producer]
        producer.fence = max(producer.fence, record.header.instance)

    def decide(self, lane: Lane, head: Record) -> tuple[Verdict, int]:
        header = head.header
        if header.kind is Kind.INPUT:  # a source's append is atomic, conditional, and says its position itself
            return Verdict.DELIVER, header.time_us
        self._pass(lane, header.producer, head.lsn)
        verdict = Verdict.DROP if lane.producers[header.producer].fence > header.instance else Verdict.WAIT
        for mark in self._marks[lane.tag, header.producer]:
            if mark.instance == header.instance and mark.first <= head.lsn:
                return Verdict.DELIVER, mark.time_us
            if mark.instance >= header.instance:
                verdict = Verdict.DROP
        return verdict, 0

    def _pass(self, lane: Lane, name: str, head: int) -> None:
        """Markers behind the undecided head cover nothing more."""
        marks, producer = self._marks[lane.tag, name], lane.producers[name]
        while marks and marks[0].lsn < head:
            mark = marks.popleft()
            if mark.first <= mark.lsn and (producer.instance, producer.sequence) < (mark.instance, mark.last_sequence):
                raise Broken(f"{lane.tag}: {mark} of {name} was passed, but only {producer} was delivered")


class ChangelogReader(MarkedInbox):
    kinds = frozenset({Kind.CHANGELOG})


class ProgressMarkingTask(MarkedInbox, TaskProtocol):
    def __init__(self, ctx: TaskContext, config: "ProgressMarking") -> None:
        super().__init__(ctx, ctx.plan.inputs)
        self._ctx = ctx
        self._config = config
        self._outbox = Outbox(ctx, ctx.plan.outputs)
        self._changelog = Changelog(ctx)
        self._writer = Writer(ctx)
        # Data needs no condition: an entry of a zombie is covered by nobody's marker.
        self._eager_writer = Writer(ctx, conditional=False)
        self._first: dict[str, int] = {}  # where this interval began in each substream it touched
        self._commit_due_ms: float | None = None
        self._stated_ms = self._snapshot_ms = 0.0
        self._end_published = self._end_committed = False
        self._uploading: Snapshot | None = None
        self._durable = Snapshot()  # to be named by the next marker
        self._named = Snapshot()  # by the last marker
        self._committed: list[int] = []
        self._bound = 0

    # Recovery

    def recover(self) -> Recovery:
        last = self._ctx.log.last(self._task_log, kind=Kind.MARKER)
        recovery = Recovery()
        if last is not None:
            marker = Marker.decode(last.body)
            self._durable = self._named = marker.snapshot
            recovery = self._restore(marker.snapshot, last.lsn)._replace(ended=marker.ended)
            self.resume(marker.inputs)
            self._end_published = marker.ended
        lsn = self._mark([], self._ctx.plan.outputs)
        if last is None:
            self._durable = Snapshot(lsn=lsn)
        return recovery

    def _restore(self, snapshot: Snapshot, until: int) -> Recovery:
        """The named snapshot, and the changes behind it up to the last marker."""
        state, name, tag = self._ctx.state, self._ctx.name, self._changelog.tag
        if snapshot.key:
            whole = self._ctx.snapshots.get(snapshot.key)
            if whole is None:
                self._check_succeeded()
                raise Broken(f"{name}: marker {until} names snapshot {snapshot.key!r}, which does not exist")
            state.restore(whole)
        reader = ChangelogReader(self._ctx, {tag: (name,)})
        known = (snapshot.instance, snapshot.sequence, NO_WATERMARK, 0, snapshot.instance)
        reader.resume({tag: (snapshot.lsn, {name: known})})
        entries_read = changes_applied = 0
        while reader.inputs()[tag] < until:
            found = self._ctx.log.read(tag, reader.inputs()[tag], max_bytes=1 << 22)
            if not found:
                raise Broken(f"{name}: the last marker, {until}, is not in the changelog")
            for group in reader.admit({tag: [record for record in found if record.lsn <= until]}):
                changes_applied += sum(state.apply(delivery.record.body) for delivery in group)
            entries_read += len(found)
            if found[-1].lsn > until:
                break
        return Recovery(entries_read, changes_applied)

    def _check_succeeded(self) -> None:
        """Raise Fenced if a successor is at work: it may have deleted what this instance looks for."""
        found = {key: self._ctx.log.get(key) for key in self._writer.expect}
        if found != self._writer.expect:
            raise Fenced(self._writer.expect, found)

    # Appends

    @property
    def _task_log(self) -> str:
        return f"t/{self._ctx.name}"

    def publish(
        self, outputs: Mapping[str, Sequence[pa.RecordBatch]], watermark: int, end: bytes | None = None
    ) -> None:
        self._outbox.add(outputs, watermark, end)
        self._end_published = self._end_published or end is not None

    def tick(self, now_ms: float) -> None:
        self._poll_uploads()
        if self._commit_due_ms is None:
            self._commit_due_ms = now_ms + self._config.commit_interval_ms
            self._stated_ms = self._snapshot_ms = now_ms
        if now_ms >= self._commit_due_ms:
            self._commit_due_ms = now_ms + self._config.commit_interval_ms
            if self._moved() or now_ms - self._stated_ms >= RESTATE_MS:
                self._commit(now_ms)
        elif self._outbox.due(now_ms):
            self._flush(now_ms)

    def _flush(self, now_ms: float) -> None:
        """Output and changes ahead of their marker."""
        entries = [*self._changelog.drain(), *self._outbox.drain(now_ms)]
        for entry, lsn in zip(entries, self._eager_writer.append(entries), strict=True):
            self._first.setdefault(entry.tags[0], lsn)

    def _moved(self) -> bool:
        positions = [lane.position for lane in self.lanes.values()]
        written = bool(self._first) or not self._outbox.empty
        return written or positions != self._committed or self._durable != self._named

    def _commit(self, now_ms: float) -> None:
        """Whatever is left of the interval, and the marker that covers all of it, in one append."""
        entries = [*self._changelog.drain(), *self._outbox.drain(now_ms)]
        for index, entry in enumerate(entries):
            self._first.setdefault(entry.tags[0], index - len(entries))
        self._ctx.vitals.enter(Phase.COMMIT)
        lsn = self._mark(entries, self._first)
        self._ctx.vitals.committed()
        self._stated_ms = now_ms
        interval_ms = self._config.snapshot_interval_ms
        if interval_ms and self._uploading is None and now_ms - self._snapshot_ms >= interval_ms:
            self._snapshot_ms = now_ms
            self._start_upload(lsn)

    def _mark(self, entries: Sequence[Entry], touched: Iterable[str]) -> int:
        ctx = self._ctx
        last = {**self._outbox.sequences, self._changelog.tag: self._changelog.sequence}
        ranges = {tag: Range(first, last[tag]) for tag, first in self._first.items()}
        marker = Marker(self.place(), ranges, self._durable, self._end_published)
        header = Header(Kind.MARKER, ctx.name, ctx.instance, time_us=ctx.now_us())
        lsn = self._writer.append([*entries, Entry(self._tags(touched), header, marker.encode())])[-1]
        self._first = {}
        self._committed = [lane.position for lane in self.lanes.values()]
        self._end_committed = marker.ended
        named, self._named = self._named, marker.snapshot
        self._bound = min(lsn, self._named.lsn + 1, *(position + 1 for position in self._committed))
        if self._named.key != named.key:
            self._delete_before(self._named)
        return lsn

    def _tags(self, touched: Iterable[str]) -> tuple[str, ...]:
        """All that a marker has to be found under: its readers' substreams, the task log and the changelog."""
        return tuple(dict.fromkeys((*touched, self._task_log, self._changelog.tag)))

    # Snapshots

    def _start_upload(self, lsn: int) -> None:
        """The state is exactly that of the marker: nothing was processed since."""
        key = f"snapshot/{self._ctx.name}/{lsn:020d}"
        self._uploading = Snapshot(key, lsn, self._ctx.instance, self._changelog.sequence)
        self._ctx.uploads.start(key, [self._ctx.state.snapshot()])

    def _poll_uploads(self) -> None:
        if self._uploading is None:
            return
        for key, whole in self._ctx.uploads.poll():
            if whole and self._uploading is not None and key == self._uploading.key:
                self._durable = self._uploading
            self._uploading = None

    def _delete_before(self, named: Snapshot) -> None:
        for key in self._ctx.snapshots.list(f"snapshot/{self._ctx.name}/"):
            if key < named.key:
                self._ctx.snapshots.delete(key)

    def finished(self) -> bool:
        return self._end_committed

    def bound(self) -> int:
        return self._bound


@dataclass(frozen=True, kw_only=True)
class ProgressMarking(Protocol):
    """`snapshot_interval_ms` 0: no snapshots. Then recovery replays the whole changelog, which pins the log."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    commit_interval_ms: float = 100
    snapshot_interval_ms: float = 10_000

    def __post_init__(self) -> None:
        who = "progress_marking"
        require(self.commit_interval_ms > 0, who, f"commit_interval_ms={self.commit_interval_ms} must be > 0")
        require(self.snapshot_interval_ms >= 0, who, f"snapshot_interval_ms={self.snapshot_interval_ms} must be ≥ 0")

    def pins_log(self) -> bool:
        return not self.snapshot_interval_ms

    def task(self, ctx: TaskContext) -> TaskProtocol:
        return ProgressMarkingTask(ctx, self)

    def observer(self, ctx: Context) -> Observer:
        return MarkedInbox(ctx, ctx.job.sink_inputs)
