"""The transaction coordinator: one role with a log of its own that decides whether a task's transaction counts.

Each record in `x/<coordinator>` is the whole standing of one task, so the newest record of a task is all that a
successor needs, and restating it lets older ones be trimmed. Every append, markers included, is conditional on the
coordinator's instance: a revived coordinator can answer from its memory but can change nothing.

What it may answer from memory is true for ever (PREPARE was written) or does no harm when it is stale: a task that
believes itself registered after ABORT writes entries that every reader drops.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from protocols.base import Context, Coordinator
from protocols.outbox import Writer
from protocols.transaction_messages import Ask, Message
from protocols.transaction_reader import encode_marker
from sharedlog.errors import Trimmed
from sharedlog.log import Entry, Header, Kind


class Phase(enum.StrEnum):
    OPEN = "open"
    PREPARE = "prepare"
    PREPARE_ABORT = "prepare_abort"
    COMMITTED = "committed"  # COMPLETE after PREPARE, or nothing begun yet
    ABORTED = "aborted"  # COMPLETE after PREPARE_ABORT

    @property
    def finishing(self) -> bool:
        return self in (Phase.PREPARE, Phase.PREPARE_ABORT)

    @property
    def void(self) -> bool:
        return self in (Phase.PREPARE_ABORT, Phase.ABORTED)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One task's last transaction. Number 0: this instance has begun none."""

    task: str
    instance: int = 0
    number: int = 0
    phase: Phase = Phase.COMMITTED
    tags: tuple[str, ...] = ()
    position: int = 0  # LSN of the task's newest position entry that counts, this transaction's from PREPARE on

    def encode(self) -> bytes:
        return json.dumps(vars(self), separators=(",", ":")).encode()

    @staticmethod
    def decode(body: bytes) -> "Standing":
        fields = json.loads(body)
        return Standing(**{**fields, "phase": Phase(fields["phase"]), "tags": tuple(fields["tags"])})


@dataclass
class Account:
    """What the coordinator holds about one task: its standing, where that is written, and what goes on."""

    standing: Standing
    lsn: int
    since_ms: float  # when the standing was written or restated
    begun_ms: float  # when the open transaction began; a new coordinator counts from its own start
    told: int = 0  # markers written in the second phase
    waiting: Message | None = None  # a request that waits for COMPLETE

    @property
    def instance(self) -> int:
        """Lower ones are fenced. A waiting Init counts, so that a zombie cannot begin anything beside it."""
        return max(self.standing.instance, self.waiting.instance if self.waiting else 0)


@dataclass
class TransactionCoordinator(Coordinator):
    ctx: Context
    timeout_ms: float  # of open transactions
    restate_interval_ms: float
    accounts: dict[str, Account] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tag = f"x/{self.ctx.name}"
        self._writer = Writer(self.ctx)
        self._announced: tuple[int, float] | None = None  # LSN and time of this coordinator's own record

    def step(self, now_ms: float) -> bool:
        if self._announced is None:
            self._recover(now_ms)
            return True
        arrived = self.ctx.channel.receive()
        for task, message in arrived:
            self._answer(task, Message.decode(message), now_ms)
        moved = bool(arrived)
        for account in self.accounts.values():
            if account.standing.phase.finishing:
                self._finish(account, now_ms)
                moved = True
            elif account.standing.phase is Phase.OPEN and now_ms - account.begun_ms >= self.timeout_ms:
                self._write(account, replace(account.standing, phase=Phase.PREPARE_ABORT), now_ms)
                moved = True
        self._restate(now_ms)
        return moved

    def inputs(self) -> Mapping[str, int]:
        """Only messages wake a coordinator."""
        return {}

    def bound(self) -> int:
        """Only what this coordinator wrote itself counts: a fenced one must not report more than it knows."""
        if self._announced is None:
            return 0
        return min([self._announced[0], *(account.lsn for account in self.accounts.values() if account.lsn)])

    # Recovery: the newest record of every task; then all markers of what was decided, again.

    def _recover(self, now_ms: float) -> None:
        found = self._newest()
        # Nothing was read of a log that somebody else may still write: the increment came before, and this append
        # shows that it still holds.
        [lsn] = self._append([self._record(Standing(task=""))])
        self._announced = lsn, now_ms
        for at, standing in found.values():
            self.accounts[standing.task] = Account(standing, at, now_ms, now_ms)

    def _newest(self) -> dict[str, tuple[int, Standing]]:
        found: dict[str, tuple[int, Standing]] = {}
        while True:
            after = self.ctx.log.first() - 1
            try:
                while records := self.ctx.log.read(self._tag, after, max_bytes=1 << 20):
                    for record in records:
                        standing = Standing.decode(record.body.to_pybytes())
                        if standing.task:
                            found[standing.task] = record.lsn, standing
                    after = records[-1].lsn
                return found
            except Trimmed:
                found.clear()  # trimmed while we read: what we need has been restated

    # Requests.

    def _answer(self, task: str, ask: Message, now_ms: float) -> None:
        account = self.accounts.setdefault(task, Account(Standing(task=task), 0, now_ms, now_ms))
        if ask.instance < account.instance:
            self._send(task, ask, Ask.FENCED, current=account.instance)
        elif ask.ask is Ask.INIT:
            self._init(account, ask, now_ms)
        elif ask.instance > account.standing.instance:
            return  # its Init is still waiting; a task that has no answer to it does not ask for more
        elif ask.ask is Ask.REGISTER:
            self._register(account, ask, now_ms)
        elif ask.ask is Ask.COMMIT:
            self._commit(account, ask, now_ms)

    def _init(self, account: Account, ask: Message, now_ms: float) -> None:
        """A new instance: end what the old one left open, and only then let the new one read."""
        standing = account.standing
        if ask.instance == standing.instance:
            if standing.number == 0:  # the answer was lost
                self._send(standing.task, ask, Ask.READY)
            return
        if standing.phase is Phase.OPEN:
            self._write(account, replace(account.standing, phase=Phase.PREPARE_ABORT), now_ms)
        if account.standing.phase.finishing:
            account.waiting = ask
            return
        self._write(account, Standing(task=standing.task, instance=ask.instance, position=standing.position), now_ms)
        self._send(standing.task, ask, Ask.READY)

    def _register(self, account: Account, ask: Message, now_ms: float) -> None:
        """Touched substreams are in the log before the first entry is in them, so that ABORT reaches every orphan."""
        standing = account.standing
        if ask.number not in (standing.number, standing.number + 1):
            return  # a late repetition
        if standing.phase.void:
            self._send(standing.task, ask, Ask.ABORTED)
        elif ask.number == standing.number:
            if standing.phase is not Phase.OPEN:
                return  # a late repetition: it is committed
            if not set(ask.tags) <= set(standing.tags):
                tags = tuple(dict.fromkeys((*standing.tags, *ask.tags)))
                self._write(account, replace(standing, tags=tags), now_ms)
            self._send(standing.task, ask, Ask.REGISTERED, tags=account.standing.tags)
        elif self._must_wait(account):
            account.waiting = ask
        else:
            account.begun_ms = now_ms
            self._write(account, replace(standing, number=ask.number, phase=Phase.OPEN, tags=ask.tags), now_ms)
            self._send(standing.task, ask, Ask.REGISTERED, tags=ask.tags)

    def _must_wait(self, account: Account) -> bool:
        """The next transaction begins after COMPLETE: a substream never holds two undecided ones of one task."""
        return account.standing.phase is Phase.PREPARE

    def _commit(self, account: Account, ask: Message, now_ms: float) -> None:
        """PREPARE decides; the task has its answer, and the second phase runs in later steps."""
        standing = account.standing
        if ask.number != standing.number:
            return  # a late repetition
        if standing.phase.void:
            self._send(standing.task, ask, Ask.ABORTED)
            return
        if standing.phase is Phase.OPEN:
            self._write(account, replace(standing, phase=Phase.PREPARE, position=ask.position), now_ms)
        self._send(standing.task, ask, Ask.PREPARED)

    # The second phase, one append for each step and task.

    def _finish(self, account: Account, now_ms: float) -> None:
        standing = account.standing
        committed = standing.phase is Phase.PREPARE
        if account.told < len(standing.tags):
            self._append([self._marker(standing, standing.tags[account.told], committed)])
            account.told += 1
            return
        self._write(account, replace(standing, phase=Phase.COMMITTED if committed else Phase.ABORTED), now_ms)
        waiting, account.waiting = account.waiting, None
        if waiting is not None:
            self._answer(standing.task, waiting, now_ms)

    def _marker(self, standing: Standing, tag: str, committed: bool) -> Entry:
        """COMMIT or ABORT in the task's name. It decides exactly (task, instance, number)."""
        header = Header(
            kind=Kind.MARKER,
            producer=standing.task,
            instance=standing.instance,
            transaction=standing.number,
            time_us=self.ctx.now_us(),
        )
        return Entry((tag,), header, encode_marker(committed, standing.position))

    # This coordinator's log.

    def _write(self, account: Account, standing: Standing, now_ms: float) -> None:
        """A standing counts once it is in the log."""
        [account.lsn] = self._append([self._record(standing)])
        account.standing, account.since_ms, account.told = standing, now_ms, 0

    def _restate(self, now_ms: float) -> None:
        """Old records would pin the log: write them again, together with this coordinator's own."""
        assert self._announced is not None
        oldest_ms = now_ms - self.restate_interval_ms
        if self._announced[1] > oldest_ms:
            return
        old = [account for account in self.accounts.values() if account.lsn and account.since_ms <= oldest_ms]
        records = [self._record(account.standing) for account in old]
        lsns = self._append([*records, self._record(Standing(task=""))])
        self._announced = lsns[-1], now_ms
        for account, lsn in zip(old, lsns, strict=False):
            account.lsn, account.since_ms = lsn, now_ms

    def _record(self, standing: Standing) -> Entry:
        header = Header(
            kind=Kind.COORDINATION,
            producer=self.ctx.name,
            instance=self.ctx.instance,
            transaction=standing.number,
            time_us=self.ctx.now_us(),
        )
        return Entry((self._tag,), header, standing.encode())

    def _append(self, entries: list[Entry]) -> list[int]:
        return self._writer.append(entries)

    def _send(self, task: str, ask: Message, answer: Ask, tags: tuple[str, ...] = (), current: int = 0) -> None:
        message = Message(ask=answer, instance=ask.instance, number=ask.number, tags=tags, current=current)
        self.ctx.channel.send(task, message.encode())
