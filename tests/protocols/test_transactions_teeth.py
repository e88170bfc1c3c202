"""The simulator finds transactions that are deliberately wrong, within the seeds of the default run.

Each bug is a variant of one part. Most are found by the seeds as they are; a revived coordinator needs several things
to go wrong at once, so its seeds are aimed at that.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import pytest

from protocols.base import Context, Coordinator, Protocol, TaskContext, TaskProtocol
from protocols.inbox import Lane, Verdict
from protocols.outbox import Writer
from protocols.transaction_coordinator import Account, Phase, Standing, TransactionCoordinator
from protocols.transaction_messages import Ask, Message
from protocols.transaction_reader import Decision, TransactionInbox, decode_marker
from protocols.transaction_task import TransactionTask
from protocols.transactions import Transactions
from runners.simfaults import Action, Fault
from runners.simjob import simulate
from runners.simplan import Schedule
from runners.simulated import load_protocol, schedule_of
from runners.simworld import Network
from sharedlog.log import Entry, Kind, Record

SEEDS = range(300)
TIMEOUT_MS = 40  # shorter than a pause, so that transactions are aborted under living tasks too
Plan = Callable[[int, Protocol, str], Schedule]


def first_failure(
    variant: type[Transactions], queries: tuple[str, ...], planned: Plan = schedule_of, seeds: range = SEEDS
) -> str | None:
    """What the first failing seed of the default run says."""
    right = load_protocol("transactions")
    assert isinstance(right, Transactions)
    protocol = variant(**{**asdict(right), "transaction_timeout_ms": TIMEOUT_MS})
    for query in queries:
        for seed in seeds:
            if failure := simulate(protocol, query, planned(seed, protocol, query)).failure:
                print(f"{query}, seed {seed}: {failure}")
                return failure
    return None


TASKS = ("split/0", "split/1", "sum/0", "sum/1")  # of the query `windowed`


def aimed(seed: int, protocol: Protocol, query: str, faults: Sequence[Fault]) -> Schedule:
    return replace(schedule_of(seed, protocol, query), faults=tuple(faults), network=Network())


def revived(seed: int, protocol: Protocol, query: str) -> Schedule:
    """The coordinator hangs in an append and has a successor; soon after it is back, all tasks die."""
    draw = random.Random(seed)
    at_ms, pause_ms = draw.uniform(15, 90), draw.uniform(10, 25)
    hang = Fault(
        action=Action.ZOMBIE,
        role="coordinator/0",
        at_ms=at_ms,
        operation="append",
        skip=draw.randrange(8),
        delay_ms=pause_ms,
    )
    back_ms = at_ms + pause_ms
    deaths = [Fault(action=Action.CRASH_BEFORE, role=task, at_ms=back_ms + draw.uniform(0.5, 8)) for task in TASKS]
    return aimed(seed, protocol, query, [hang, *deaths])


def stalled(seed: int, protocol: Protocol, query: str) -> Schedule:
    """The coordinator is held up in an append, so that requests pile up, and dies soon after."""
    draw = random.Random(seed)
    at_ms = draw.uniform(20, 110)
    faults = [
        Fault(
            action=Action.PAUSE,
            role="coordinator/0",
            at_ms=at_ms,
            operation="append",
            skip=draw.randrange(6),
            delay_ms=15,
        ),
        Fault(
            action=Action.CRASH_BEFORE,
            role="coordinator/0",
            at_ms=at_ms + 15,
            operation="append",
            skip=draw.randrange(12),
        ),
    ]
    return aimed(seed, protocol, query, faults)


def all_die(seed: int, protocol: Protocol, query: str) -> Schedule:
    """Every task and the coordinator die, somewhere between two operations of a transaction."""
    draw = random.Random(seed)
    faults = [
        Fault(
            action=draw.choice([Action.CRASH_BEFORE, Action.CRASH_AFTER]),
            role=role,
            at_ms=draw.uniform(15, 140),
            operation=draw.choice(["append", "send", "receive"]),
            skip=draw.randrange(3),
        )
        for role in (*TASKS, "coordinator/0", "coordinator/0")
    ]
    return aimed(seed, protocol, query, faults)


def asleep(seed: int, protocol: Protocol, query: str) -> Schedule:
    """Every task is held up for longer than its transaction may stay open, and nobody takes its place."""
    draw = random.Random(seed)
    faults = [
        Fault(
            action=Action.PAUSE,
            role=task,
            at_ms=draw.uniform(15, 140),
            operation=draw.choice(["append", "send", "receive"]),
            delay_ms=draw.uniform(TIMEOUT_MS, 2 * TIMEOUT_MS),
        )
        for task in TASKS
    ]
    return aimed(seed, protocol, query, faults)


@pytest.mark.parametrize("planned", [revived, stalled, all_die, asleep])
def test_transactions_as_they_are_hold(planned: Plan) -> None:
    """Otherwise the schedules below would prove nothing."""
    assert first_failure(Transactions, ("windowed",), planned, range(50)) is None


def with_task(kind: type[TransactionTask]) -> type[Transactions]:
    """Transactions whose tasks are of another kind."""

    @dataclass(frozen=True, kw_only=True)
    class Variant(Transactions):
        def task(self, ctx: TaskContext) -> TaskProtocol:
            part = super().task(ctx)
            part.__class__ = kind
            return part

    return Variant


def with_coordinator(kind: type[TransactionCoordinator]) -> type[Transactions]:
    """Transactions whose coordinators are of another kind."""

    @dataclass(frozen=True, kw_only=True)
    class Variant(Transactions):
        def coordinator(self, ctx: Context) -> Coordinator:
            return kind(ctx, self.transaction_timeout_ms, self.restate_interval_ms)

    return Variant


class Hasty(TransactionCoordinator):
    """The next transaction may begin while markers of the last are still missing; they follow in the background."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.unfinished: list[Account] = []

    def _register(self, account: Account, ask: Message, now_ms: float) -> None:
        last = account.standing
        if last.phase is Phase.PREPARE and ask.number == last.number + 1:
            self.unfinished.append(Account(last, account.lsn, now_ms, now_ms, told=account.told))
            account.standing = replace(last, phase=Phase.COMMITTED)
        super()._register(account, ask, now_ms)

    def step(self, now_ms: float) -> bool:
        moved = super().step(now_ms)
        for account in list(self.unfinished):
            if account.told == len(account.standing.tags):
                self.unfinished.remove(account)
                continue
            self._append([self._marker(account.standing, account.standing.tags[account.told], True)])
            account.told += 1
            moved = True
        return moved


def test_no_wait_for_the_previous_transaction_is_found() -> None:
    assert first_failure(with_coordinator(Hasty), ("windowed",), stalled)


class Revived(TransactionCoordinator):
    """Markers are appended whoever is at work: one that was held up may come much later."""

    def _unconditional(self, tag: str) -> bool:
        return True

    def _finish(self, account: Account, now_ms: float) -> None:
        standing = account.standing
        if account.told < len(standing.tags) and self._unconditional(standing.tags[account.told]):
            marker = self._marker(standing, standing.tags[account.told], standing.phase is Phase.PREPARE)
            Writer(self.ctx, conditional=False).append([marker])
            account.told += 1
        else:
            super()._finish(account, now_ms)


def test_unconditional_markers_are_found() -> None:
    """In the task log a late COMMIT leads the next instance back to an old position."""
    assert first_failure(with_coordinator(Revived), ("windowed",), revived)


class Unnumbered(Revived):
    """COMMIT means whatever is open of (task, instance): a late one commits half of the next transaction.

    The number is the second line of defence; the first, that markers are conditional, has to be down as well.
    """

    def _unconditional(self, tag: str) -> bool:
        return tag.startswith("d/")

    def _marker(self, standing: Standing, tag: str, committed: bool) -> Entry:
        marker = super()._marker(standing, tag, committed)
        return marker._replace(header=marker.header._replace(transaction=0))


def learn_unnumbered(self: TransactionInbox, lane: Lane, record: Record) -> None:
    header = record.header
    if header.kind is Kind.MARKER:
        committed, _ = decode_marker(record.body.to_pybytes())
        known = self._decisions.setdefault((lane.tag, header.producer), deque())
        known.append(Decision(header.instance, 0, committed, record.lsn, header.time_us))


def decide_unnumbered(self: TransactionInbox, lane: Lane, head: Record) -> tuple[Verdict, int]:
    header = head.header
    if header.kind is Kind.INPUT:
        return Verdict.DELIVER, header.time_us
    for decision in self._decisions.get((lane.tag, header.producer), ()):
        if decision.instance > header.instance or (decision.instance == header.instance and not decision.committed):
            return Verdict.DROP, 0
        if decision.instance == header.instance and decision.lsn > head.lsn:
            return Verdict.DELIVER, decision.time_us
    return Verdict.WAIT, 0


def test_commit_without_transaction_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionInbox, "learn", learn_unnumbered)
    monkeypatch.setattr(TransactionInbox, "decide", decide_unnumbered)
    assert first_failure(with_coordinator(Unnumbered), ("windowed",), revived)


def test_input_positions_outside_the_transaction_are_found() -> None:
    class Outside(TransactionTask):
        def _last_position(self) -> int:
            last = self._ctx.log.last(self._task_log, kind=Kind.COORDINATION)
            return last.lsn if last is not None else 0

    assert first_failure(with_task(Outside), ("windowed",))


def test_init_answered_before_complete_is_found() -> None:
    class Eager(TransactionCoordinator):
        def _init(self, account: Account, ask: Message, now_ms: float) -> None:
            super()._init(account, ask, now_ms)
            if account.waiting is ask:
                self._send(account.standing.task, ask, Ask.READY)

    assert first_failure(with_coordinator(Eager), ("windowed",), all_die)


def test_appends_before_registration_are_found() -> None:
    class Unregistered(TransactionTask):
        def _may_write(self, tags: Sequence[str]) -> bool:
            super()._may_write(tags)
            return True

    assert first_failure(with_task(Unregistered), ("windowed",))


def test_a_snapshot_named_before_it_is_durable_is_found() -> None:
    class Early(TransactionTask):
        def _maybe_snapshot(self, now_ms: float) -> None:
            super()._maybe_snapshot(now_ms)
            self._durable = self._uploading or self._durable

    assert first_failure(with_task(Early), ("windowed",), all_die)


def test_an_aborted_task_that_goes_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Phase, "void", property(lambda self: False))
    assert first_failure(Transactions, ("windowed",), asleep)


def test_abort_that_misses_the_changelog_is_found() -> None:
    class Forgetful(TransactionCoordinator):
        def _finish(self, account: Account, now_ms: float) -> None:
            standing = account.standing
            if standing.phase is Phase.PREPARE_ABORT:
                account.standing = replace(standing, tags=tuple(t for t in standing.tags if not t.startswith("c/")))
            super()._finish(account, now_ms)

    assert first_failure(with_coordinator(Forgetful), ("windowed",))


def test_a_bound_at_uncommitted_positions_is_found() -> None:
    class Loose(TransactionTask):
        def bound(self) -> int:
            return TransactionInbox.bound(self)

    assert first_failure(with_task(Loose), ("windowed",))
