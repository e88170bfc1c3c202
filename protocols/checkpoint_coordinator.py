"""The coordinator of aligned checkpoints: opens epochs, injects barriers, counts acknowledgements, decides.

All of its knowledge is a fold over the control log `x/…`: joins, its own barriers, acknowledgements and decisions. So
a successor recounts what is there and goes on; the death of a coordinator rolls nothing back.

Each decision is one append, conditional on the coordinator's instance and on the job epoch, and is believed only when
it was read back.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from protocols.base import Context, Coordinator
from protocols.checkpoint_records import (
    CONTROL,
    EPOCH_COUNTER,
    ORDERS,
    CheckpointId,
    Control,
    Standing,
    barrier_entry,
    checkpoint_of,
    control_entry,
    control_of,
    standing_of,
)
from protocols.outbox import Writer
from sharedlog.errors import Fenced, Trimmed
from sharedlog.log import Entry, Kind, Record

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20


@dataclass
class Flight:
    """The one checkpoint that is under way."""

    checkpoint: CheckpointId
    barrier_lsn: int
    since_ms: float
    acks: dict[str, bool] = field(default_factory=dict)  # task → whether its END is in it
    failed: bool = False


class CheckpointCoordinator(Coordinator):
    """Opens epochs, injects barriers, counts acknowledgements, decides."""

    def __init__(self, ctx: Context, *, commit_interval_ms: float, checkpoint_timeout_ms: float) -> None:
        self._ctx = ctx
        self._interval_ms = commit_interval_ms
        self._timeout_ms = checkpoint_timeout_ms
        self._writer = Writer(ctx)
        self._between = tuple(sorted({tag for plan in ctx.job.tasks.values() for tag in plan.outputs}))
        self._forget()

    def _forget(self) -> None:
        """As before the first record; the next step recounts."""
        self._position = -1
        self._standing = Standing()
        self._joined: dict[str, int] = {}
        self._number = 0
        self._flight: Flight | None = None
        self._ended: set[str] = set()
        self._due_ms = -1e18
        self._sweep = False

    def step(self, now_ms: float) -> bool:
        moved = self._catch_up(now_ms)
        return self._decide(now_ms) or moved

    def _catch_up(self, now_ms: float) -> bool:
        """Read to the end of the control log: no decision is taken on less."""
        if self._position < 0:
            self._position = self._ctx.log.first() - 1
        moved = False
        try:
            while records := self._ctx.log.read(CONTROL, self._position, max_bytes=_READ_BYTES):
                for record in records:
                    self._fold(record, now_ms)
                self._position = records[-1].lsn
                moved = True
        except Trimmed:
            # The bound of a predecessor was applied while this one began. What restates the rest is still there.
            self._forget()
            return self._catch_up(now_ms)
        return moved

    def _fold(self, record: Record, now_ms: float) -> None:
        header = record.header
        checkpoint = CheckpointId(header.epoch, header.transaction)
        if header.kind is Kind.MARKER:
            self._flight = Flight(checkpoint, record.lsn, now_ms)
            self._number = checkpoint.number
            return
        what, content = control_of(record)
        flight = self._flight if self._flight and self._flight.checkpoint == checkpoint else None
        match what:
            case Control.JOIN:
                self._join({header.producer: header.instance})
            case Control.ENDED if header.epoch == self._standing.epoch:
                self._ended.add(header.producer)
                if len(self._ended) == len(self._ctx.job.tasks):
                    self._due_ms = now_ms  # the final checkpoint does not wait for the interval
            case Control.ACK if flight:
                flight.acks[header.producer] = bool(content["ended"])
            case Control.FAILED if flight:
                flight.failed = True
            case Control.ABANDON if flight:
                self._flight = None
            case Control.EPOCH | Control.COMPLETE:
                self._restate(standing_of(content), now_ms)

    def _restate(self, standing: Standing, now_ms: float) -> None:
        if standing.epoch > self._standing.epoch:
            self._ended.clear()
            self._due_ms = now_ms + self._interval_ms
        self._standing = standing
        self._number = standing.number
        self._flight = None
        self._join(standing.joined)
        self._sweep = True

    def _join(self, instances: Mapping[str, int]) -> None:
        for task, instance in instances.items():
            self._joined[task] = max(instance, self._joined.get(task, 0))

    def _decide(self, now_ms: float) -> bool:
        """At most one decision; whether there was any."""
        standing, flight, tasks = self._standing, self._flight, self._ctx.job.tasks
        if len(self._joined) < len(tasks):
            return False
        if self._ctx.log.get(EPOCH_COUNTER) != standing.epoch:
            return self._open_epoch()  # somebody died, or was fenced, between increment and EPOCH
        if flight and len(flight.acks) == len(tasks):
            return self._complete(flight)
        if self._joined != standing.instances:
            return self._open_epoch()
        if flight and (flight.failed or now_ms - flight.since_ms >= self._timeout_ms):
            return self._abandon(flight)
        if not flight and not standing.final and now_ms >= self._due_ms:
            return self._start(now_ms)
        return self._swept()

    def _open_epoch(self) -> bool:
        """Everyone goes back to the last complete checkpoint.

        Increment first: from then on no barrier, acknowledgement or COMPLETE of the old epoch can land.
        """
        epoch = self._ctx.log.increment(EPOCH_COUNTER)
        instances = self._instances()
        standing = replace(self._standing, epoch=epoch, number=0, instances=instances, joined=instances)
        logger.info("epoch %d begins at checkpoint %s with %s", epoch, tuple(standing.checkpoint), instances)
        return self._say(Control.EPOCH, standing, (ORDERS, *self._ctx.job.source_tags, *self._between))

    def _instances(self) -> dict[str, int]:
        """The instances that an epoch names: a task works in it only if it is one of them."""
        return dict(self._joined)

    def _complete(self, flight: Flight) -> bool:
        standing = replace(
            self._standing,
            number=flight.checkpoint.number,
            joined=dict(self._joined),
            checkpoint=flight.checkpoint,
            previous=self._standing.checkpoint,
            barrier_lsn=flight.barrier_lsn,
            final=all(flight.acks.values()),
        )
        return self._say(Control.COMPLETE, standing, (ORDERS, *self._ctx.job.result_tags))

    def _say(self, what: Control, standing: Standing, tags: tuple[str, ...]) -> bool:
        entry = control_entry(
            self._ctx,
            (CONTROL, *tags),
            what,
            epoch=standing.epoch,
            number=standing.number,
            standing=asdict(standing),
        )
        return self._append(entry, standing.epoch)

    def _abandon(self, flight: Flight) -> bool:
        logger.info("checkpoint %s is abandoned; acknowledged by %s", tuple(flight.checkpoint), sorted(flight.acks))
        epoch, number = flight.checkpoint
        return self._append(control_entry(self._ctx, (CONTROL,), Control.ABANDON, epoch=epoch, number=number), epoch)

    def _start(self, now_ms: float) -> bool:
        """One multi-tag append, so that the barrier has one place in the order of all source substreams."""
        # A start that is only late by the granularity of steps does not move the schedule.
        on_time = now_ms - self._due_ms < min(self._interval_ms / 2, 5)
        self._due_ms = (self._due_ms if on_time else now_ms) + self._interval_ms
        checkpoint = CheckpointId(self._standing.epoch, self._number + 1)
        tags = (CONTROL, *self._ctx.job.source_tags)
        return self._append(barrier_entry(self._ctx, tags, checkpoint), checkpoint.epoch)

    def _append(self, entry: Entry, epoch: int) -> bool:
        self._writer.expect[EPOCH_COUNTER] = epoch
        try:
            self._writer.append([entry])
        except Fenced as fenced:
            if fenced.found[f"instance/{self._ctx.name}"] != self._ctx.instance:
                raise
            # A predecessor that was thought dead has moved the epoch on; the next step opens one that counts.
        return True

    def _swept(self) -> bool:
        """Delete all but the last two checkpoints. Newer ones are under way."""
        if not self._sweep:
            return False
        self._sweep = False
        kept = (self._standing.checkpoint, self._standing.previous)
        for key in self._ctx.snapshots.list("checkpoint/"):
            checkpoint = checkpoint_of(key)
            if checkpoint < self._standing.checkpoint and checkpoint not in kept:
                self._ctx.snapshots.delete(key)
        return True

    def inputs(self) -> Mapping[str, int]:
        return {CONTROL: self._position} if self._position >= 0 else {}

    def bound(self) -> int:
        """A restore reads source substreams after the last complete barrier, and a recount needs no more than that.

        The COMPLETE of that barrier, and any EPOCH since, were appended when all control records before the barrier
        had been read, and state what followed from them.
        """
        return self._standing.barrier_lsn + 1
