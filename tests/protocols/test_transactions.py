"""Transactions, step by step on the memory log: who waits for what, what counts when, what the dead can still do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from dataflow.state import CounterStore, TaskState
from protocols.base import Channel, Context, Job, Plan, ProtocolError, RolledBack, TaskContext, Uploads
from protocols.outbox import Outbox, Writer
from protocols.transaction_coordinator import Phase, Standing
from protocols.transaction_messages import Ask, Message, coordinator_of
from protocols.transaction_reader import decode_marker
from protocols.transaction_task import TransactionTask
from protocols.transactions import Transactions
from sharedlog.codec import decode_batch
from sharedlog.errors import Fenced
from sharedlog.log import Entry, Kind
from sharedlog.memory import MemoryLog, MemorySnapshotStore

SCHEMA = pa.schema([("n", pa.int64())])
PROTOCOL = Transactions(commit_interval_ms=100, snapshot_interval_ms=0, transaction_timeout_ms=1000)
OUTPUTS = ("d/out/0", "d/out/1")
COORDINATOR = "coordinator/0"

# One source feeds a/0, which writes even rows to one substream and odd rows to the other; the sink reads both.
JOB = Job(
    sources=("source/0",),
    source_tags=("d/in/0",),
    tasks={"a/0": Plan("a/0", {"d/in/0": ("source/0",)}, OUTPUTS)},
    sink_inputs=dict.fromkeys(OUTPUTS, ("a/0",)),
    flush_interval_ms=0,
    watermark_interval_ms=1e9,
)


@dataclass
class Post(Channel):
    """Messages that arrive when the script says so; by default at once. `drop` loses those that it picks."""

    world: "World"
    name: str
    inbox: list[tuple[str, bytes]] = field(default_factory=list)

    def send(self, to: str, message: bytes) -> None:
        self.world.sent.append((self.name, to, Message.decode(message)))
        receiver = self.world.posts.get(to)
        if receiver is not None and not self.world.drop(Message.decode(message)):
            receiver.inbox.append((self.name, message))

    def receive(self) -> list[tuple[str, bytes]]:
        arrived, self.inbox = self.inbox, []
        return arrived


@dataclass
class InstantUploads(Uploads):
    store: MemorySnapshotStore
    done: list[tuple[str, bool]] = field(default_factory=list)
    fail: bool = False

    def start(self, key: str, parts: Sequence[pa.Buffer | bytes]) -> None:
        if not self.fail:
            self.store.put(key, parts)
        self.done.append((key, not self.fail))

    def poll(self) -> list[tuple[str, bool]]:
        done, self.done = self.done, []
        return done


class World:
    def __init__(self, protocol: Transactions = PROTOCOL) -> None:
        self.protocol = protocol
        self.log = MemoryLog()
        self.store = MemorySnapshotStore()
        self.now_ms = 1000.0
        self.posts: dict[str, Post] = {}
        self.sent: list[tuple[str, str, Message]] = []
        self.drop: Callable[[Message], bool] = lambda message: False
        self._source = Context(**self.parts("source/0"))
        self._outbox = Outbox(self._source, JOB.source_tags, Kind.INPUT)

    def parts(self, name: str) -> dict[str, Any]:
        self.posts[name] = Post(self, name)
        return {
            "job": JOB,
            "name": name,
            "instance": self.log.increment(f"instance/{name}"),
            "log": self.log,
            "snapshots": self.store,
            "uploads": InstantUploads(self.store),
            "channel": self.posts[name],
            "now_us": lambda: int(self.now_ms * 1000),
        }

    def feed(self, *numbers: int, end: bool = False) -> None:
        self._outbox.add({"d/in/0": [rows(numbers)]} if numbers else {}, 2**62 if end else 0, b"" if end else None)
        Writer(self._source).append(self._outbox.drain(0))

    def markers(self, tag: str) -> list[tuple[int, int, bool]]:
        """(instance, number, committed) of all decisions in a substream, in order."""
        records = self.log.read(tag, self.log.first() - 1, max_bytes=1 << 30)
        return [
            (r.header.instance, r.header.transaction, decode_marker(r.body.to_pybytes())[0])
            for r in records
            if r.header.kind is Kind.MARKER
        ]

    def phases(self, task: str = "a/0") -> list[Phase]:
        """What the coordinator's log says about a task, in order."""
        records = self.log.read(f"x/{COORDINATOR}", self.log.first() - 1, max_bytes=1 << 30)
        standings = [Standing.decode(r.body.to_pybytes()) for r in records]
        return [standing.phase for standing in standings if standing.task == task]

    def visible(self) -> list[int]:
        """What a sink that begins now may act on."""
        observer = self.protocol.observer(Context(**{**self.parts("sink"), "channel": Post(self, "sink")}))
        found = []
        records = {tag: self.log.read(tag, after, max_bytes=1 << 30) for tag, after in observer.inputs().items()}
        for group in observer.admit(records):
            found += [numbers(d.record.body) for d in group if d.record.header.rows]
        return sorted(n for part in found for n in part)


class Boss:
    """A coordinator's process."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.part = world.protocol.coordinator(Context(**world.parts(COORDINATOR)))

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.part.step(self.world.now_ms)

    def settle(self) -> None:
        """Until nothing is left to do."""
        while self.part.step(self.world.now_ms):
            pass


class Worker:
    """A task's process: it counts its rows and passes them on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counts = CounterStore()
        self.ctx = TaskContext(plan=JOB.tasks["a/0"], state=TaskState({"counts": self.counts}), **world.parts("a/0"))
        part = world.protocol.task(self.ctx)
        assert isinstance(part, TransactionTask)
        self.part = part
        self.ready = self.ended = False

    @property
    def total(self) -> int:
        return self.counts["rows"][0]

    def step(self) -> None:
        try:
            if not self.ready:
                self.ctx.state.restore(None)
                recovery = self.part.recover()
                self.ready = recovery is not None
                self.ended = recovery is not None and recovery.ended
                return
            reads = self.part.inputs()
            records = {tag: self.world.log.read(tag, after, max_bytes=1 << 20) for tag, after in reads.items()}
            for group in self.part.admit(records):
                self._process([n for d in group if d.record.header.rows for n in numbers(d.record.body)])
            if not self.ended and self.part.exhausted():
                self.ended = True
                self.part.publish({}, 2**62, b"")
            self.part.tick(self.world.now_ms)
        except RolledBack:
            self.ready = False

    def _process(self, taken: Sequence[int]) -> None:
        self.counts.add("rows", len(taken))
        parts = {tag: [n for n in taken if n % 2 == index] for index, tag in enumerate(OUTPUTS)}
        self.part.publish({tag: [rows(part)] for tag, part in parts.items() if part}, 0)


def rows(numbers: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(numbers)}, SCHEMA)


def numbers(body: pa.Buffer) -> list[int]:
    found: list[int] = decode_batch(body, SCHEMA).column("n").to_pylist()
    return found


def turn(world: World, *parts: "Boss | Worker", ms: float = 0, times: int = 8) -> None:
    """Let time pass, then everyone a few steps."""
    world.now_ms += ms
    for _ in range(times):
        for part in parts:
            part.step()


def started(protocol: Transactions = PROTOCOL) -> tuple[World, Boss, Worker]:
    world = World(protocol)
    boss, worker = Boss(world), Worker(world)
    turn(world, worker, boss, times=4)
    assert worker.ready
    return world, boss, worker


def asks_commit(world: World, boss: Boss, worker: Worker) -> None:
    """Up to the moment when COMMIT is asked for, and the coordinator has not heard of it."""
    turn(world, worker, boss)
    world.now_ms += 100
    worker.step()
    assert worker.part.inputs() == {}


def test_output_counts_after_commit_and_positions_with_it() -> None:
    world, boss, worker = started()
    world.feed(1, 2, 3)
    turn(world, worker, boss)
    assert world.phases()[-1] is Phase.OPEN
    assert world.visible() == []
    turn(world, worker, boss, ms=100)
    assert world.phases()[-1] is Phase.COMMITTED
    assert world.visible() == [1, 2, 3]
    assert [world.markers(tag) for tag in (*OUTPUTS, "c/a/0", "t/a/0")] == [[(1, 1, True)]] * 4
    successor = Worker(world)
    turn(world, successor, boss)
    assert successor.total == 3
    assert successor.part.inputs() == worker.part.inputs()


def test_only_touched_substreams_get_markers() -> None:
    world, boss, worker = started()
    world.feed(2, 4)
    turn(world, worker, boss)
    turn(world, worker, boss, ms=100)
    assert world.visible() == [2, 4]
    assert world.markers("d/out/0") == [(1, 1, True)]
    assert world.markers("d/out/1") == []


def test_registration_is_durable_before_the_first_append() -> None:
    world, boss, worker = started()
    world.feed(2)
    worker.step()
    worker.step()
    assert world.log.last("d/out/0") is None
    boss.step()
    assert world.phases()[-1] is Phase.OPEN
    assert world.log.last("d/out/0") is None
    worker.step()
    assert world.log.last("d/out/0") is not None


def test_answer_at_prepare_and_next_transaction_after_complete() -> None:
    world, boss, worker = started()
    world.feed(1, 2)
    asks_commit(world, boss, worker)
    boss.step()  # PREPARE, and the first marker
    assert world.phases()[-1] is Phase.PREPARE
    worker.step()
    assert worker.part.inputs() != {}, "it goes on with PREPARE"
    world.feed(3, 4)
    before = world.log.last("d/out/0", kind=Kind.DATA)
    for _ in range(3):
        worker.step()
    assert worker.total == 4
    assert world.log.last("d/out/0", kind=Kind.DATA) == before, "but it keeps its output"
    boss.step(2)
    worker.step()
    assert world.phases()[-1] is Phase.PREPARE
    assert world.markers("t/a/0") == [], "markers come one by one"
    assert world.log.last("d/out/0", kind=Kind.DATA) == before
    boss.settle()
    assert world.phases()[-2:] == [Phase.COMMITTED, Phase.OPEN], "the request waited for COMPLETE"
    turn(world, worker, boss, ms=100)
    assert world.visible() == [1, 2, 3, 4]


def test_a_full_buffer_stops_the_input_until_complete() -> None:
    protocol = Transactions(
        commit_interval_ms=100, snapshot_interval_ms=0, transaction_timeout_ms=1000, buffer_bytes=64
    )
    world, boss, worker = started(protocol)
    world.feed(1, 2)
    asks_commit(world, boss, worker)
    boss.step()
    world.feed(*range(3, 40))
    worker.step()
    worker.step()
    assert world.phases()[-1] is Phase.PREPARE
    assert worker.part.inputs() == {}
    boss.settle()
    worker.step()
    assert worker.part.inputs() != {}


def test_coordinator_dies_between_prepare_and_commit() -> None:
    world, boss, worker = started()
    world.feed(1, 2, 3)
    asks_commit(world, boss, worker)
    boss.step(2)
    assert world.phases()[-1] is Phase.PREPARE
    assert sum(len(world.markers(tag)) for tag in OUTPUTS) == 2
    successor = Boss(world)
    successor.settle()
    assert world.phases()[-1] is Phase.COMMITTED
    assert world.visible() == [1, 2, 3], "repeated markers do nothing"
    with pytest.raises(Fenced):
        boss.settle()
    world.feed(4)
    turn(world, worker, successor, ms=100)
    turn(world, worker, successor, ms=100)
    assert world.visible() == [1, 2, 3, 4]


def test_late_commit_of_a_revived_coordinator_is_fenced() -> None:
    world, boss, worker = started()
    world.feed(1, 2, 3)
    asks_commit(world, boss, worker)
    boss.step()
    successor = Boss(world)
    turn(world, successor, worker)
    world.feed(4, 5)
    turn(world, worker, successor)
    assert world.phases()[-1] is Phase.OPEN
    with pytest.raises(Fenced):
        boss.step()
    assert world.visible() == [1, 2, 3], "nothing of the second transaction"


def test_a_late_marker_decides_its_own_transaction_only() -> None:
    """The second line of defence: were an old COMMIT to land after all, its number says that it means another."""
    world, boss, worker = started()
    world.feed(1, 2, 3)
    turn(world, worker, boss)
    turn(world, worker, boss, ms=100)
    late = world.log.last("d/out/0", kind=Kind.MARKER)
    world.feed(4, 6)
    turn(world, worker, boss)
    assert late is not None
    world.log.append([Entry(("d/out/0",), late.header, late.body)])
    assert world.visible() == [1, 2, 3]


def test_zombie_changes_nothing() -> None:
    world, boss, zombie = started()
    world.feed(1, 2)
    turn(world, zombie, boss)
    assert world.log.last("d/out/0") is not None
    successor = Worker(world)
    turn(world, successor, boss)
    assert successor.ready
    assert world.markers("d/out/0") == [(1, 1, False)]
    # What it still has in its hands lands after ABORT, and its next request is refused.
    world.posts["a/0"] = zombie.part._ctx.channel  # type: ignore[assignment]
    world.feed(3, 4)
    zombie.step()
    world.now_ms += 100
    zombie.step()
    assert world.log.last("t/a/0", kind=Kind.COORDINATION) is not None
    boss.step()
    with pytest.raises(Fenced):
        zombie.step()
    world.posts["a/0"] = successor.part._ctx.channel  # type: ignore[assignment]
    turn(world, successor, boss)
    turn(world, successor, boss, ms=100)
    assert world.visible() == [1, 2, 3, 4]
    assert successor.total == 4


def test_late_entries_are_dropped_by_a_reader_that_resumed_after_the_abort() -> None:
    world, boss, zombie = started()
    world.feed(1, 2)
    turn(world, zombie, boss)
    successor = Worker(world)
    turn(world, successor, boss)
    observer = world.protocol.observer(Context(**world.parts("sink")))
    records = {tag: world.log.read(tag, after, max_bytes=1 << 30) for tag, after in observer.inputs().items()}
    assert list(observer.admit(records)) == []
    place = observer.save()
    orphan = world.log.last("d/out/0", kind=Kind.DATA)
    assert orphan is not None
    world.log.append([Entry(("d/out/0",), orphan.header, orphan.body)])
    turn(world, successor, boss)
    turn(world, successor, boss, ms=100)
    observer.load(place)
    records = {tag: world.log.read(tag, after, max_bytes=1 << 30) for tag, after in observer.inputs().items()}
    found = [n for group in observer.admit(records) for d in group for n in numbers(d.record.body)]
    assert sorted(found) == [1, 2]


def test_init_waits_until_the_old_transaction_is_complete() -> None:
    world, boss, worker = started()
    world.feed(1, 2, 3)
    asks_commit(world, boss, worker)
    boss.step()
    successor = Worker(world)
    successor.step()
    boss.step()
    successor.step()
    early = successor.ready
    assert not early, "markers are missing, the task log's among them"
    turn(world, successor, boss)
    assert successor.ready
    assert successor.total == 3
    assert Phase.PREPARE_ABORT not in world.phases(), "nothing aborts after PREPARE"


@pytest.mark.parametrize("lost", [Ask.INIT, Ask.READY, Ask.REGISTER, Ask.REGISTERED, Ask.COMMIT, Ask.PREPARED])
def test_every_message_may_be_lost_once(lost: Ask) -> None:
    world = World()
    gone: list[Message] = []

    def drop(message: Message) -> bool:
        if message.ask is lost and not gone:
            gone.append(message)
            return True
        return False

    world.drop = drop
    boss, worker = Boss(world), Worker(world)
    world.feed(1, 2, 3)
    for _ in range(8):
        turn(world, worker, boss, ms=100)
    assert gone
    assert world.visible() == [1, 2, 3]
    assert worker.total == 3


def test_late_requests_are_refused() -> None:
    world, boss, worker = started()
    world.feed(1, 2)
    turn(world, worker, boss)
    turn(world, worker, boss, ms=100)
    written = world.log.tail()
    register, commit = (
        next(message for _, to, message in world.sent if to == COORDINATOR and message.ask is ask)
        for ask in (Ask.REGISTER, Ask.COMMIT)
    )
    for message in (register, commit, register):
        world.posts["a/0"].send(COORDINATOR, message.encode())
        boss.settle()
    assert world.log.tail() == written
    assert world.phases()[-1] is Phase.COMMITTED


def test_a_transaction_that_stays_open_is_aborted_and_the_task_begins_again() -> None:
    world, boss, worker = started()
    world.feed(1, 2, 3)
    turn(world, worker, boss)
    assert worker.total == 3
    world.now_ms += 1000  # the task hangs
    boss.settle()
    assert world.phases()[-1] is Phase.ABORTED
    turn(world, worker, boss, times=12)
    assert worker.ctx.instance == 2, "a fresh number, so that nothing of the aborted is reused"
    turn(world, worker, boss, ms=100)
    turn(world, worker, boss, ms=100)
    assert world.visible() == [1, 2, 3]
    assert worker.total == 3


def test_an_aborted_task_with_a_successor_ends() -> None:
    world, boss, worker = started()
    world.feed(1)
    turn(world, worker, boss)
    world.now_ms += 1000
    boss.settle()
    post = world.posts["a/0"]
    Worker(world)
    world.posts["a/0"] = post
    with pytest.raises(Fenced):
        turn(world, worker, boss, times=12)


def test_end_is_committed_at_once_and_recovered() -> None:
    world, boss, worker = started()
    world.feed(1, 2)
    world.feed(end=True)
    turn(world, worker, boss, times=12)
    assert worker.part.finished()
    assert world.visible() == [1, 2]
    successor = Worker(world)
    turn(world, successor, boss)
    assert successor.part.finished()
    assert successor.ended


def test_snapshots_shorten_recovery_and_free_the_log() -> None:
    protocol = replace(PROTOCOL, snapshot_interval_ms=200)
    world, boss, worker = started(protocol)
    for number in range(20):
        world.feed(number)
        turn(world, worker, boss, ms=100)
    assert len(world.store.list("snapshot/")) <= 2
    assert world.visible() == list(range(20))
    bound = min(worker.part.bound(), boss.part.bound())
    assert bound > world.log.tail() / 2
    world.log.trim(bound)
    successor = Worker(world)
    for _ in range(3):
        successor.step()
        boss.settle()
    state = TaskState({"counts": successor.counts})
    state.restore(None)
    recovery = successor.part.recover()
    assert recovery is not None
    assert successor.total == 20
    assert recovery.entries_read < 20


def test_a_failed_upload_is_never_named() -> None:
    protocol = replace(PROTOCOL, snapshot_interval_ms=200)
    world, boss, worker = started(protocol)
    uploads = worker.ctx.uploads
    assert isinstance(uploads, InstantUploads)
    uploads.fail = True
    for number in range(10):
        world.feed(number)
        turn(world, worker, boss, ms=100)
    first_change = world.log.read("c/a/0", 0, max_bytes=1)[0].lsn
    assert worker.part.bound() <= first_change, "without a snapshot the changelog is needed from its beginning"
    successor = Worker(world)
    turn(world, successor, boss)
    assert successor.total == 10


def test_idle_roles_do_not_pin_the_log() -> None:
    protocol = replace(PROTOCOL, snapshot_interval_ms=200)
    world, boss, worker = started(protocol)
    for number in range(5):
        world.feed(number)
        turn(world, worker, boss, ms=100)
    last, last_input = world.log.tail(), world.log.last("d/in/0")
    for _ in range(40):
        turn(world, worker, boss, ms=100)
    assert boss.part.bound() > last
    assert last_input is not None
    assert worker.part.bound() == last_input.lsn + 1, "only its input position is left to hold it"
    successor = Boss(world)
    world.log.trim(min(worker.part.bound(), boss.part.bound()))
    successor.settle()
    world.feed(5)
    turn(world, worker, successor, ms=100)
    turn(world, worker, successor, ms=100)
    fresh = Worker(world)
    turn(world, fresh, successor)
    assert fresh.total == 6


def test_tasks_are_spread_over_coordinators() -> None:
    names = [f"stage/{index}" for index in range(100)]
    spread = [coordinator_of(name, 4) for name in names]
    assert set(spread) == {f"coordinator/{index}" for index in range(4)}
    assert coordinator_of("a/0", 1) == COORDINATOR


@pytest.mark.parametrize(
    "wrong",
    [
        {"commit_interval_ms": 0},
        {"snapshot_interval_ms": -1},
        {"coordinator_count": 0},
        {"commit_interval_ms": 100, "transaction_timeout_ms": 100},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="protocol transactions"):
        Transactions(**wrong)
