"""Aligned checkpoints with global rollback, after Flink (Impeller §5.1; Carbone et al., VLDB 2017).

A barrier flows through the job and cuts it in two: every task copies its state when the barrier has come from all of
its producers, and when all copies are durable the checkpoint is complete. Stages consume each other's output at once;
only the observer waits for completion. When a task dies, *every* task goes back to the last complete checkpoint: a
new job epoch begins, and what older epochs left in the log between stages is void.

Sequence numbers begin anew with every epoch. Between stages nothing sent before EPOCH(e) is admitted in e, so no
high-water mark outlives its epoch there; source substreams have no epochs, and their marks are part of the checkpoint.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from protocols.base import (
    Broken,
    Context,
    Coordinator,
    Delivery,
    Guarantee,
    Job,
    Observer,
    Phase,
    Protocol,
    Recovery,
    RolledBack,
    TaskContext,
    TaskProtocol,
    require,
)
from protocols.checkpoint_coordinator import CheckpointCoordinator
from protocols.checkpoint_reader import Alignment, CheckpointObserver
from protocols.checkpoint_records import (
    CONTROL,
    COORDINATOR,
    EPOCH_COUNTER,
    NO_CHECKPOINT,
    ORDERS,
    CheckpointId,
    Control,
    Standing,
    barrier_entry,
    control_entry,
    control_of,
    snapshot_key,
    standing_of,
)
from protocols.outbox import Outbox, Writer
from sharedlog.errors import Fenced
from sharedlog.log import Entry, Record

_READ_BYTES = 1 << 20
_PLACE = struct.Struct("<Q")
_ALIGNMENT = 64


@dataclass(frozen=True, kw_only=True)
class AlignedCheckpoint(Protocol):
    """A checkpoint starts every `commit_interval_ms`, from start to start; one that takes longer than
    `checkpoint_timeout_ms` is abandoned."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    commit_interval_ms: float = 100
    checkpoint_timeout_ms: float = 10_000

    def __post_init__(self) -> None:
        who = "aligned_checkpoint"
        require(self.commit_interval_ms > 0, who, f"commit_interval_ms={self.commit_interval_ms} must be positive")
        require(
            self.checkpoint_timeout_ms >= self.commit_interval_ms,
            who,
            f"checkpoint_timeout_ms={self.checkpoint_timeout_ms} must not be less than"
            f" commit_interval_ms={self.commit_interval_ms}",
        )

    def task(self, ctx: TaskContext) -> TaskProtocol:
        return CheckpointTask(ctx)

    def observer(self, ctx: Context) -> Observer:
        return CheckpointObserver(ctx, ctx.job.sink_inputs)

    def coordinators(self, job: Job) -> Sequence[str]:
        return (COORDINATOR,)

    def coordinator(self, ctx: Context) -> Coordinator:
        return CheckpointCoordinator(
            ctx, commit_interval_ms=self.commit_interval_ms, checkpoint_timeout_ms=self.checkpoint_timeout_ms
        )


class CheckpointTask(Alignment, TaskProtocol):
    def __init__(self, ctx: TaskContext) -> None:
        super().__init__(ctx)
        self._ctx = ctx
        self._name = ctx.name
        self._joins = Writer(ctx)
        self._writer = Writer(ctx)
        self._outbox = Outbox(ctx, ctx.plan.outputs)
        self._joined = False
        self._uploading: dict[str, CheckpointId] = {}
        self._ended = self._told_end = False
        self._end_number = 0  # the first checkpoint that holds this task's END; 0 if there is none yet
        self._finished = False
        self._now_ms = 0.0
        ctx.state.capture(False)

    # Recovery

    def recover(self) -> Recovery | None:
        """Wait for an epoch that names this instance, then take over this task's part of its checkpoint."""
        self.reset()
        if not self._joined:
            self._joins.append([control_entry(self._ctx, (CONTROL,), Control.JOIN)])
            self._joined = True
        newest = self._ctx.log.last(ORDERS)
        if newest is None or newest.header.epoch <= self.epoch:
            return None
        what, content = control_of(newest)
        standing = standing_of(content)
        named = standing.instances[self._name]
        if named > self._ctx.instance:
            key = f"instance/{self._name}"
            raise Fenced({key: self._ctx.instance}, {key: named})
        if named < self._ctx.instance or what is not Control.EPOCH:
            return None  # the JOIN came too late for this epoch; another one follows
        return self._restore(standing, newest.lsn)

    def _restore(self, standing: Standing, epoch_lsn: int) -> Recovery | None:
        place: dict[str, object] = {"lanes": {}, "ended": False}
        applied = 0
        if standing.checkpoint != NO_CHECKPOINT:
            key = snapshot_key(standing.checkpoint, self._name)
            snapshot = self._ctx.snapshots.get(key)
            if snapshot is None:
                if self._ctx.log.get(EPOCH_COUNTER) == standing.epoch:
                    raise Broken(f"{self._name}: epoch {standing.epoch} begins at {key}, which does not exist")
                return None  # slept through later epochs, and the checkpoint was deleted meanwhile
            place, state = _unpack(snapshot)
            applied = self._ctx.state.restore(state)
        self.epoch = standing.epoch
        self._resume(place["lanes"], standing.barrier_lsn, epoch_lsn)
        self._writer.expect[EPOCH_COUNTER] = standing.epoch
        self._outbox = Outbox(self._ctx, self._ctx.plan.outputs)
        self._uploading.clear()
        self._ended = self._finished = bool(place["ended"])
        self._told_end = False
        self._end_number = 0
        return Recovery(entries_read=1, changes_applied=applied, ended=self._ended)

    def _resume(self, lanes: object, barrier_lsn: int, epoch_lsn: int) -> None:
        """Source substreams go on after the barrier; the others after EPOCH, with nothing seen of this epoch."""
        assert isinstance(lanes, dict)
        self.resume(lanes)
        for tag, lane in self.lanes.items():
            if tag in self._sources:
                lane.position = lane.read = barrier_lsn
                continue
            lane.position = lane.read = epoch_lsn
            for producer in lane.producers.values():
                producer.instance = producer.sequence = 0

    # Reading

    def admit(self, records: Mapping[str, Sequence[Record]]) -> Iterator[Sequence[Delivery]]:
        group: list[Delivery] = []
        for tag, arrived in records.items():
            lane = self.lanes[tag]
            for record in arrived:
                lane.read = record.lsn
                self._arrive(lane, record, group)
        while True:
            if group:
                yield group
            self._settle()
            if not self._barrier or not self._aligned() or (self.exhausted() and not self._ended):
                return  # in the last case the runner publishes END first, so that this checkpoint holds it
            self._checkpoint(CheckpointId(self.epoch, self._barrier))
            group = []
            self._go_on(group)

    # Writing

    def publish(
        self, outputs: Mapping[str, Sequence[pa.RecordBatch]], watermark: int, end: bytes | None = None
    ) -> None:
        self._outbox.add(outputs, watermark, end)
        self._ended = self._ended or end is not None

    def tick(self, now_ms: float) -> None:
        self._now_ms = now_ms
        if self._outbox.due(now_ms) or self._ended > self._told_end:
            self._flush()
        for key, durable in self._ctx.uploads.poll():
            if checkpoint := self._uploading.pop(key, None):
                self._answer(checkpoint, durable)
        if self._end_number and not self._finished:
            self._finished = self._end_is_covered()

    def _end_is_covered(self) -> bool:
        newest = self._ctx.log.last(ORDERS)
        if newest is None or newest.header.epoch != self.epoch:
            return False
        return newest.header.transaction >= self._end_number

    def finished(self) -> bool:
        return self._finished

    def _checkpoint(self, checkpoint: CheckpointId) -> None:
        """All before the barrier is published: flush it with the barrier behind it, copy the state, store the copy."""
        self._ctx.vitals.enter(Phase.COMMIT)
        self._flush(barrier_entry(self._ctx, self._ctx.plan.outputs, checkpoint))
        if self._ended and not self._end_number:
            self._end_number = checkpoint.number
        key = snapshot_key(checkpoint, self._name)
        place = {"lanes": self.place(), "ended": self._ended}
        self._uploading[key] = checkpoint
        self._ctx.vitals.committed()
        self._ctx.uploads.start(key, _pack(place, self._ctx.state.snapshot()))

    def _flush(self, *barrier: Entry) -> None:
        entries = [*self._outbox.drain(self._now_ms, epoch=self.epoch), *barrier]
        if self._ended and not self._told_end:
            self._told_end = True
            entries.append(control_entry(self._ctx, (CONTROL,), Control.ENDED, epoch=self.epoch))
        self._append(entries)

    def _answer(self, checkpoint: CheckpointId, durable: bool) -> None:
        covered = 0 < self._end_number <= checkpoint.number
        answer = control_entry(
            self._ctx,
            (CONTROL,),
            Control.ACK if durable else Control.FAILED,
            epoch=checkpoint.epoch,
            number=checkpoint.number,
            ended=covered,
        )
        self._append([answer])

    def _append(self, entries: Sequence[Entry]) -> None:
        """Conditional on the epoch as well. An epoch that has passed voids the state, not the instance."""
        if not entries:
            return
        try:
            self._writer.append(entries)
        except Fenced as fenced:
            if fenced.found[f"instance/{self._name}"] != self._ctx.instance:
                raise
            raise RolledBack(f"epoch {self.epoch} has passed") from fenced


def _pack(place: Mapping[str, object], state: pa.Buffer) -> list[pa.Buffer | bytes]:
    """The place's length, the place padded so that the state's columns stay aligned, and the state."""
    text = json.dumps(place, separators=(",", ":")).encode()
    text += b" " * (-(_PLACE.size + len(text)) % _ALIGNMENT)
    return [_PLACE.pack(len(text)), text, state]


def _unpack(snapshot: pa.Buffer) -> tuple[dict[str, object], pa.Buffer]:
    (size,) = _PLACE.unpack_from(snapshot)
    place = json.loads(snapshot.slice(_PLACE.size, size).to_pybytes())
    return place, snapshot.slice(_PLACE.size + size)
