"""The task's side of transactions: what it asks of its coordinator, what it appends, and how it comes back."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from protocols.base import Broken, Phase, Recovery, RolledBack, TaskContext, TaskProtocol
from protocols.changelog import Changelog
from protocols.outbox import Outbox, Writer
from protocols.transaction_messages import Ask, Client, Message
from protocols.transaction_reader import Base, ChangelogReader, TransactionInbox, decode_marker
from sharedlog.errors import Fenced, Trimmed
from sharedlog.log import Entry, Header, Kind


class Commit(NamedTuple):
    """A position entry: what a successor goes on from, once the transaction around it counts."""

    lsn: int
    transaction: tuple[int, int]
    positions: tuple[int, ...]
    base: Base
    ended: bool


class TransactionTask(TransactionInbox, TaskProtocol):
    """One task's transactions, one after the other: register, append, commit; or die with them."""

    def __init__(
        self,
        ctx: TaskContext,
        *,
        coordinator: str,
        commit_interval_ms: float,
        snapshot_interval_ms: float,
        repeat_interval_ms: float,
        restate_interval_ms: float,
        buffer_bytes: int,
    ) -> None:
        super().__init__(ctx, ctx.plan.inputs)
        self._ctx = ctx
        self._commit_interval_ms = commit_interval_ms
        self._snapshot_interval_ms = snapshot_interval_ms
        self._restate_interval_ms = restate_interval_ms
        self._buffer_bytes = buffer_bytes
        self._task_log = f"t/{ctx.name}"
        self._snapshots = f"snapshot/{ctx.name}/"
        self._client = Client(ctx, coordinator, repeat_interval_ms)
        self._writer = Writer(ctx, conditional=False)
        self._void = False  # this instance was aborted
        self._begin()

    def _begin(self) -> None:
        """As an instance that has done nothing yet."""
        self.reset()
        self._outbox = Outbox(self._ctx, self._ctx.plan.outputs)
        self._changelog = Changelog(self._ctx)
        self._ready = False  # the coordinator has ended what the last instance left behind
        self._number = 1
        self._registered: set[str] = set()
        self._committed = Commit(0, (0, 0), self._positions(), Base(), False)
        self._committing: Commit | None = None  # asked for, not answered
        self._worked = False  # something was published since the last position entry
        self._ended = False
        self._commit_ms = self._snapshot_ms = -1.0  # set by the first tick
        self._uploading: Base | None = None
        self._durable: Base | None = None  # uploaded whole; the next position entry names it
        self._change = (0, 0)  # (instance, sequence) of the last change
        self._change_lsn = 0

    # Recovery.

    def recover(self) -> Recovery | None:
        if self._void:
            self._renew()
        if not self._ready:
            self._client.ask(Message(ask=Ask.INIT, instance=self._ctx.instance))
            if not any(answer.ask is Ask.READY for answer in self._client.answers()):
                return None
            self._client.answered()
            self._ready = True
        try:
            return self._restore()
        except Trimmed:
            self._check_current()
            raise

    def _renew(self) -> None:
        """Go on in place, as if restarted: under a fresh instance number, so that nothing of the aborted is reused.

        When a successor starts at the same time, the higher number lives on and the other is fenced.
        """
        self._check_current()
        self._ctx.instance = self._ctx.log.increment(f"instance/{self._ctx.name}")
        self._begin()
        self._client.forget()
        self._void = False

    def _check_current(self) -> None:
        key = f"instance/{self._ctx.name}"
        current = self._ctx.log.get(key)
        if current != self._ctx.instance:
            raise Fenced({key: self._ctx.instance}, {key: current})

    def _restore(self) -> Recovery:
        """The last position entry that counts, the snapshot that it names, and the changes after that."""
        ctx, position = self._ctx, self._last_position()
        if not position:
            # Nothing counts of what was written so far, so that no successor needs it either.
            empty = Base(after=ctx.log.tail(), settled=(ctx.instance, 0))
            self._committed = self._committed._replace(base=empty)
            return Recovery(entries_read=1)
        record = ctx.log.read(self._task_log, position - 1, max_bytes=1)[0]
        if record.lsn != position:
            raise Broken(f"{self._task_log}: the last decision points to entry {position}, and there is {record.lsn}")
        content = json.loads(record.body.to_pybytes())
        key, after, settled, change = content["base"]
        base = Base(key, after, tuple(settled), tuple(change))
        self.resume(content["place"])
        self._load(base.key)
        changes = ChangelogReader(ctx, self._changelog.tag, base)
        applied = sum(ctx.state.apply(change.body) for change in changes.replay())
        if (undecided := changes.undecided) is not None:
            self._check_current()
            raise Broken(f"{self._changelog.tag}: entry {undecided.lsn} is undecided, though all before is complete")
        self._ended = bool(content["ended"])
        transaction = record.header.instance, record.header.transaction
        self._committed = Commit(position, transaction, self._positions(), base, self._ended)
        self._change, self._change_lsn = changes.change, changes.last_lsn
        return Recovery(entries_read=2 + changes.entries_read, changes_applied=applied, ended=self._ended)

    def _last_position(self) -> int:
        """Every decision says which position entry counts from then on; 0 before the first COMMIT."""
        decision = self._ctx.log.last(self._task_log, kind=Kind.MARKER)
        return decode_marker(decision.body.to_pybytes())[1] if decision is not None else 0

    def _load(self, key: str) -> None:
        if not key:
            return
        snapshot = self._ctx.snapshots.get(key)
        if snapshot is None:
            self._check_current()  # a successor may have named a newer one and deleted this
            raise Broken(f"{self._ctx.name}: its position entry names snapshot {key!r}, which does not exist")
        self._ctx.state.restore(snapshot)

    # Work.

    def inputs(self) -> Mapping[str, int]:
        """Nothing while the commit is asked for, nor while too much waits for the last transaction's COMPLETE."""
        if self._committing is not None or self._outbox.nbytes >= self._buffer_bytes:
            return {}
        return super().inputs()

    def publish(
        self, outputs: Mapping[str, Sequence[pa.RecordBatch]], watermark: int, end: bytes | None = None
    ) -> None:
        if self._committing is not None:
            raise Broken(f"{self._ctx.name}: work was done between a position entry and the answer to its commit")
        self._outbox.add(outputs, watermark, end)
        self._worked = True
        self._ended = self._ended or end is not None

    def tick(self, now_ms: float) -> None:
        if self._commit_ms < 0:
            self._commit_ms = self._snapshot_ms = now_ms
        self._listen(now_ms)
        self._poll_uploads()
        if self._committing is not None:
            self._ask_commit()
        elif self._commit_due(now_ms):
            changelog = [self._changelog.tag] if self._worked else []
            if self._may_write([*self._outbox.touched(now_ms), *changelog, self._task_log]):
                self._commit(now_ms)
        elif self._outbox.due(now_ms) and self._may_write(
            # The commit will need the task log: this saves it a round trip.
            [*self._outbox.touched(now_ms), self._changelog.tag, self._task_log]
        ):
            self._append(self._drain(now_ms))

    def _listen(self, now_ms: float) -> None:
        for answer in self._client.answers():
            if answer.number != self._number:
                continue  # about a transaction that is over
            if answer.ask is Ask.ABORTED:
                self._void = True
                raise RolledBack(f"transaction {self._number} of {self._ctx.name} was aborted")
            if answer.ask is Ask.REGISTERED:
                self._registered.update(answer.tags)
            elif answer.ask is Ask.PREPARED and self._committing is not None:
                self._prepared(self._committing, now_ms)

    def _may_write(self, tags: Sequence[str]) -> bool:
        """Whether all of them are registered; asks if not. The first registration waits for the last COMPLETE."""
        if self._registered.issuperset(tags):
            self._client.answered()
            return True
        self._client.ask(Message(ask=Ask.REGISTER, instance=self._ctx.instance, number=self._number, tags=tuple(tags)))
        return False

    def _commit_due(self, now_ms: float) -> bool:
        if self._ended and not self._committed.ended:
            return True
        elapsed_ms = now_ms - self._commit_ms
        if elapsed_ms >= self._restate_interval_ms:
            return True  # idle: restated, so that the old position entry does not pin the log
        begun = bool(self._registered) or self._worked or self._positions() != self._committed.positions
        return begun and elapsed_ms >= self._commit_interval_ms

    def _drain(self, now_ms: float) -> list[Entry]:
        changes = self._changelog.drain(transaction=self._number)
        return [*changes, *self._outbox.drain(now_ms, transaction=self._number)]

    def _append(self, entries: Sequence[Entry]) -> int:
        """Returns the last entry's LSN."""
        lsns = self._writer.append(entries)
        for lsn, entry in zip(lsns, entries, strict=True):
            if entry.header.kind is Kind.CHANGELOG:
                self._change, self._change_lsn = (self._ctx.instance, entry.header.sequence), lsn
        return lsns[-1]

    def _commit(self, now_ms: float) -> None:
        """All that is left of this transaction, its position entry last; then ask."""
        self._ctx.vitals.enter(Phase.COMMIT)
        base = self._base()
        content = {"place": self.place(), "ended": self._ended, "base": base}
        header = Header(
            kind=Kind.COORDINATION,
            producer=self._ctx.name,
            instance=self._ctx.instance,
            transaction=self._number,
            time_us=self._ctx.now_us(),
        )
        position = Entry((self._task_log,), header, json.dumps(content, separators=(",", ":")).encode())
        lsn = self._append([*self._drain(now_ms), position])
        self._committing = Commit(lsn, (self._ctx.instance, self._number), self._positions(), base, self._ended)
        self._worked = False
        self._commit_ms = now_ms
        self._ask_commit()

    def _ask_commit(self) -> None:
        assert self._committing is not None
        self._client.ask(
            Message(ask=Ask.COMMIT, instance=self._ctx.instance, number=self._number, position=self._committing.lsn)
        )

    def _prepared(self, commit: Commit, now_ms: float) -> None:
        """Nothing can abort it any more. The state is still that of the position entry, so now it can be copied."""
        old, self._committed, self._committing = self._committed, commit, None
        self._ctx.vitals.committed()
        self._client.answered()
        self._number += 1
        self._registered.clear()
        if self._durable is not None and self._durable.key == commit.base.key:
            self._durable = None
        if old.base.key != commit.base.key:
            self._forget_older(commit.base.key)
        self._maybe_snapshot(now_ms)

    # Snapshots: copied at commit n, named by a later transaction's position entry, which begins after COMPLETE(n).

    def _maybe_snapshot(self, now_ms: float) -> None:
        commit, interval_ms = self._committed, self._snapshot_interval_ms
        if not interval_ms or now_ms - self._snapshot_ms < interval_ms or self._uploading or self._durable:
            return
        if self._change_lsn <= commit.base.after:
            return  # nothing has changed since the last one
        self._snapshot_ms = now_ms
        instance, number = commit.transaction
        key = f"{self._snapshots}{instance}/{number}"
        self._uploading = Base(key, commit.lsn, commit.transaction, self._change)
        self._ctx.uploads.start(self._uploading.key, [self._ctx.state.snapshot()])

    def _poll_uploads(self) -> None:
        for key, whole in self._ctx.uploads.poll():
            if self._uploading is not None and key == self._uploading.key:
                if whole:
                    self._durable = self._uploading
                self._uploading = None

    def _forget_older(self, named: str) -> None:
        """Those that no position entry names any more, or that none ever named. A zombie finds no newer ones old."""
        for key in self._ctx.snapshots.list(self._snapshots):
            if self._transaction_of(key) < self._transaction_of(named):
                self._ctx.snapshots.delete(key)

    def _transaction_of(self, key: str) -> tuple[int, ...]:
        return tuple(map(int, key.removeprefix(self._snapshots).split("/")))

    def _base(self) -> Base:
        """What the next position entry names. Without changes since, replay may start later: nothing is pinned."""
        base = self._durable or self._committed.base
        if self._change_lsn <= base.after < self._committed.lsn:
            return base._replace(after=self._committed.lsn, settled=self._committed.transaction)
        return base

    def finished(self) -> bool:
        return self._committed.ended

    def bound(self) -> int:
        commit = self._committed
        return min(commit.lsn or 1, commit.base.after + 1, *(position + 1 for position in commit.positions))

    def _positions(self) -> tuple[int, ...]:
        return tuple(lane.position for lane in self.lanes.values())
