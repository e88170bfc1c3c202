"""Aligned checkpoints, step by step on the memory log: who waits for whom, and what counts when."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from dataflow.state import CounterStore, TaskState
from protocols.aligned_checkpoint import AlignedCheckpoint
from protocols.base import Channel, Context, Coordinator, Job, Plan, ProtocolError, RolledBack, TaskContext, Uploads
from protocols.checkpoint_records import CONTROL, Control, control_of
from protocols.outbox import Outbox, Writer
from sharedlog.codec import decode_batch
from sharedlog.errors import Fenced
from sharedlog.log import Kind
from sharedlog.memory import MemoryLog, MemorySnapshotStore

SCHEMA = pa.schema([("n", pa.int64())])
PROTOCOL = AlignedCheckpoint(commit_interval_ms=100, checkpoint_timeout_ms=1000)

# Two sources feed a/0 and a/1, which both feed b/0, which feeds the sink.
JOB = Job(
    sources=("source/0", "source/1"),
    source_tags=("d/in/0", "d/in/1"),
    tasks={
        "a/0": Plan("a/0", {"d/in/0": ("source/0", "source/1")}, ("d/mid/0",)),
        "a/1": Plan("a/1", {"d/in/1": ("source/0", "source/1")}, ("d/mid/0",)),
        "b/0": Plan("b/0", {"d/mid/0": ("a/0", "a/1")}, ("d/out/0",)),
    },
    sink_inputs={"d/out/0": ("b/0",)},
    flush_interval_ms=0,
)


class NoChannel(Channel):
    def send(self, to: str, message: bytes) -> None:
        raise AssertionError("this protocol speaks through the log alone")

    def receive(self) -> list[tuple[str, bytes]]:
        return []


@dataclass
class HeldUploads(Uploads):
    """Uploads that end when the script says so."""

    store: MemorySnapshotStore
    automatic: bool = True
    running: list[tuple[str, Sequence[pa.Buffer | bytes]]] = field(default_factory=list)
    done: list[tuple[str, bool]] = field(default_factory=list)

    def start(self, key: str, parts: Sequence[pa.Buffer | bytes]) -> None:
        self.running.append((key, parts))
        if self.automatic:
            self.finish()

    def finish(self, *, durable: bool = True) -> None:
        for key, parts in self.running:
            if durable:
                self.store.put(key, parts)
            self.done.append((key, durable))
        self.running.clear()

    def poll(self) -> list[tuple[str, bool]]:
        done, self.done = self.done, []
        return done


class World:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.store = MemorySnapshotStore()
        self.now_ms = 0.0

    def context(self, name: str) -> dict[str, object]:
        return {
            "job": JOB,
            "name": name,
            "instance": self.log.increment(f"instance/{name}"),
            "log": self.log,
            "snapshots": self.store,
            "uploads": HeldUploads(self.store),
            "channel": NoChannel(),
            "now_us": lambda: int(self.now_ms * 1000),
        }

    def controls(self, what: Control) -> list[int]:
        """LSNs of the control records of that kind."""
        records = self.log.read(CONTROL, self.log.first() - 1, max_bytes=1 << 30)
        return [r.lsn for r in records if r.header.kind is Kind.COORDINATION and control_of(r)[0] is what]


class Source:
    def __init__(self, world: World, name: str) -> None:
        self._ctx = Context(**world.context(name))  # type: ignore[arg-type]
        self._outbox = Outbox(self._ctx, JOB.source_tags, Kind.INPUT)
        self._writer = Writer(self._ctx)

    def send(self, tag: str, *numbers: int) -> None:
        self._outbox.add({tag: [rows(numbers)]}, 0)
        self._writer.append(self._outbox.drain(0))

    def end(self) -> None:
        self._outbox.add({}, 2**62, b"")
        self._writer.append(self._outbox.drain(0))


class Worker:
    """A task that counts its rows and passes them on; what the runner does, in as many words."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.counts = CounterStore()
        self.plan = JOB.tasks[name]
        ctx = TaskContext(plan=self.plan, state=TaskState({"counts": self.counts}), **world.context(name))  # type: ignore[arg-type]
        assert isinstance(ctx.uploads, HeldUploads)
        self.ctx, self.uploads = ctx, ctx.uploads
        self.protocol = PROTOCOL.task(ctx)
        self.ready = self.ended = False
        self.rollbacks = 0

    @property
    def total(self) -> int:
        return self.counts["rows"][0]

    def step(self) -> None:
        try:
            if not self.ready:
                self.ctx.state.restore(None)
                recovery = self.protocol.recover()
                self.ready = recovery is not None
                self.ended = recovery is not None and recovery.ended
                return
            self._consume()
            if not self.ended and self.protocol.exhausted():
                self.ended = True
                self.protocol.publish({}, 2**62, b"")
            self.protocol.tick(self.world.now_ms)
        except RolledBack:
            self.rollbacks += 1
            self.ready = False

    def _consume(self) -> None:
        inputs = self.protocol.inputs()
        found = {tag: self.world.log.read(tag, after, max_bytes=1 << 20) for tag, after in inputs.items()}
        for group in self.protocol.admit(found):
            numbers = [n for delivery in group for n in numbers_of(delivery.record.body, delivery.record.header.rows)]
            self.counts.add("rows", len(numbers))
            self.protocol.publish({self.plan.outputs[0]: [rows(numbers)] if numbers else []}, 0)


class Reader:
    def __init__(self, world: World, saved: bytes | None = None) -> None:
        self.world = world
        self.observer = PROTOCOL.observer(Context(**world.context("sink")))  # type: ignore[arg-type]
        if saved is not None:
            self.observer.load(saved)
        self.numbers: list[int] = []

    def step(self) -> list[int]:
        """What became visible by this step."""
        inputs = self.observer.inputs()
        found = {tag: self.world.log.read(tag, after, max_bytes=1 << 20) for tag, after in inputs.items()}
        seen = [
            n
            for group in self.observer.admit(found)
            for delivery in group
            for n in numbers_of(delivery.record.body, delivery.record.header.rows)
        ]
        self.numbers += seen
        return seen


def rows(numbers: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=SCHEMA)


def numbers_of(body: pa.Buffer, count: int) -> list[int]:
    numbers: list[int] = decode_batch(body, SCHEMA).column(0).to_pylist() if count else []
    return numbers


def coordinator(world: World) -> Coordinator:
    return PROTOCOL.coordinator(Context(**world.context("coordinator/0")))  # type: ignore[arg-type]


def a_few_times(step: Callable[[], object]) -> None:
    for _ in range(3):
        step()


class Running:
    """The job in epoch 1: everyone has joined."""

    def __init__(self) -> None:
        self.world = World()
        self.sources = [Source(self.world, name) for name in JOB.sources]
        self.workers = {name: Worker(self.world, name) for name in JOB.tasks}
        self.coordinator = coordinator(self.world)
        self.reader = Reader(self.world)
        self.all_step()
        self.decide()
        self.all_step()

    def all_step(self) -> None:
        for worker in self.workers.values():
            worker.step()

    def decide(self, later_ms: float = 0) -> None:
        self.world.now_ms += later_ms
        while self.coordinator.step(self.world.now_ms):
            pass

    def checkpoint(self) -> None:
        """One whole checkpoint, and everything that lies before it."""
        self.decide(later_ms=100)
        self.all_step()
        self.all_step()
        self.decide()


@pytest.fixture
def job() -> Running:
    return Running()


def test_an_epoch_begins_when_every_task_has_joined() -> None:
    world = World()
    first, second = Worker(world, "a/0"), Worker(world, "a/1")
    chief = coordinator(world)
    first.step()
    second.step()
    chief.step(0)
    assert not world.controls(Control.EPOCH)
    third = Worker(world, "b/0")
    third.step()
    chief.step(0)
    assert len(world.controls(Control.EPOCH)) == 1
    for worker in (first, second, third):
        worker.step()
        assert worker.ready


def test_a_task_waits_for_the_barrier_of_every_producer(job: Running) -> None:
    one, other, last = job.workers.values()
    job.sources[0].send("d/in/0", 1)
    job.sources[0].send("d/in/1", 2)
    job.decide(later_ms=100)
    one.step()  # its row, then the barrier
    job.sources[0].send("d/in/0", 3)
    one.step()  # a row behind the barrier
    last.step()
    assert last.total == 1, "the row behind a/0's barrier was not held back"
    assert not [key for key in job.world.store.list() if key.endswith("b/0")], "copied after one barrier of two"
    other.step()  # its row, then the barrier
    last.uploads.automatic = False
    last.step()
    assert last.total == 3
    last.uploads.finish()
    job.all_step()
    job.decide()
    assert len(job.world.controls(Control.COMPLETE)) == 1
    # The copy of b/0 was taken between: rows 1 and 2 are in it, row 3 is not.
    job.workers["a/1"] = Worker(job.world, "a/1")
    job.all_step()
    job.decide()
    last.step()  # notices the new epoch
    last.step()  # is back at the checkpoint
    assert (last.rollbacks, last.total) == (1, 2)


def test_the_death_of_one_task_rolls_everyone_back(job: Running) -> None:
    job.sources[0].send("d/in/0", 1, 2)
    job.checkpoint()
    assert job.reader.step() == [1, 2]
    job.sources[0].send("d/in/0", 3)
    job.sources[1].send("d/in/1", 4)
    job.all_step()
    assert [worker.total for worker in job.workers.values()] == [3, 1, 4]
    dead = job.workers["a/1"]
    job.workers["a/1"] = Worker(job.world, "a/1")
    job.all_step()  # joins
    job.decide()
    for name in ("a/0", "b/0"):
        job.workers[name].step()
        assert not job.workers[name].ready, f"{name} went on in a void epoch"
    job.all_step()
    assert [worker.total for worker in job.workers.values()] == [2, 0, 2]
    job.checkpoint()
    assert job.reader.step() == [3, 4]
    with pytest.raises(Fenced):  # a zombie notices, whatever it does next
        a_few_times(dead.step)


def test_output_of_a_void_epoch_is_never_visible(job: Running) -> None:
    job.sources[0].send("d/in/0", 1)
    job.decide(later_ms=100)
    job.workers["b/0"].uploads.automatic = False
    job.all_step()
    job.all_step()  # all barriers are in the log, and one acknowledgement is missing
    assert job.reader.step() == []
    saved = job.reader.observer.save()
    job.workers["b/0"] = Worker(job.world, "b/0")
    job.workers["b/0"].step()
    job.decide()
    job.all_step()
    job.all_step()
    job.checkpoint()
    assert job.reader.step() == [1]
    assert Reader(job.world, saved).step() == [1], "a new reader that goes on in the middle of an epoch sees the same"


def test_the_death_of_the_coordinator_rolls_nothing_back(job: Running) -> None:
    job.sources[0].send("d/in/0", 1)
    job.decide(later_ms=100)
    job.workers["a/0"].step()
    job.workers["a/0"].step()
    old = job.coordinator
    old.step(job.world.now_ms)  # it has counted one acknowledgement
    job.coordinator = coordinator(job.world)
    job.all_step()
    job.all_step()
    job.decide()
    assert len(job.world.controls(Control.COMPLETE)) == 1
    assert job.reader.step() == [1]
    assert len(job.world.controls(Control.EPOCH)) == 1
    assert not any(worker.rollbacks for worker in job.workers.values())
    job.world.now_ms += 100
    with pytest.raises(Fenced):
        a_few_times(lambda: old.step(job.world.now_ms))


def test_output_of_an_abandoned_checkpoint_becomes_visible_with_the_next(job: Running) -> None:
    job.sources[0].send("d/in/0", 1)
    job.workers["a/1"].uploads.automatic = False
    job.decide(later_ms=100)
    job.all_step()
    job.all_step()
    job.workers["a/1"].uploads.finish(durable=False)
    job.all_step()
    job.decide()
    assert len(job.world.controls(Control.ABANDON)) == 1
    assert job.reader.step() == []
    job.sources[0].send("d/in/0", 2)
    job.workers["a/1"].uploads.automatic = True
    job.checkpoint()
    assert job.reader.step() == [1, 2]
    assert len(job.world.controls(Control.EPOCH)) == 1


def test_a_checkpoint_that_takes_too_long_is_abandoned_and_a_late_one_starts_at_once(job: Running) -> None:
    job.decide(later_ms=100)
    job.decide(later_ms=999)
    assert not job.world.controls(Control.ABANDON)
    job.decide(later_ms=1)
    assert len(job.world.controls(Control.ABANDON)) == 1
    job.all_step()  # both barriers are there, and both pass through
    job.all_step()
    job.decide()
    assert len(job.world.controls(Control.COMPLETE)) == 1


def test_a_coordinator_that_was_thought_dead_may_move_the_epoch_and_the_job_goes_on(job: Running) -> None:
    job.sources[0].send("d/in/0", 1)
    job.world.log.increment("epoch")  # the last deed of a coordinator that was paused before EPOCH
    job.all_step()
    job.decide()
    job.all_step()
    job.checkpoint()
    assert job.reader.step() == [1]
    assert len(job.world.controls(Control.EPOCH)) == 2


def test_a_new_coordinator_recounts_a_trimmed_log(job: Running) -> None:
    job.sources[0].send("d/in/0", 1)
    job.checkpoint()
    job.all_step()
    job.reader.step()
    bounds = [worker.protocol.bound() for worker in job.workers.values()]
    bound = min(*bounds, job.coordinator.bound(), job.reader.observer.bound())
    assert bound > job.world.controls(Control.EPOCH)[0], "an old EPOCH pins the log"
    job.world.log.trim(bound)
    job.coordinator = coordinator(job.world)
    job.workers["a/0"] = Worker(job.world, "a/0")
    job.all_step()
    job.decide()
    job.all_step()
    job.all_step()
    assert [worker.total for worker in job.workers.values()] == [1, 0, 1]
    job.sources[0].send("d/in/0", 2)
    job.checkpoint()
    assert job.reader.step() == [2]


def test_the_last_two_checkpoints_are_kept(job: Running) -> None:
    for _ in range(4):
        job.checkpoint()
    kept = {key.split("/")[2] for key in job.world.store.list("checkpoint/")}
    assert kept == {"3", "4"}


def test_the_final_checkpoint_starts_when_all_have_ended_and_holds_every_end(job: Running) -> None:
    job.sources[0].send("d/in/0", 1)
    for source in job.sources:
        source.end()
    job.all_step()
    job.all_step()
    assert not any(worker.protocol.finished() for worker in job.workers.values())
    job.decide()  # at once, not after the interval
    job.all_step()
    job.all_step()
    job.decide()
    assert job.reader.step() == [1]
    assert job.reader.observer.exhausted()
    job.all_step()
    assert all(worker.protocol.finished() for worker in job.workers.values())
    # A task that dies now comes back as one that has ended, and nothing is left to do.
    job.workers["b/0"] = Worker(job.world, "b/0")
    job.all_step()
    job.decide()
    job.all_step()
    job.all_step()
    assert all(worker.protocol.finished() for worker in job.workers.values())
    job.decide(later_ms=1000)
    assert job.reader.step() == []
    assert len(job.world.controls(Control.COMPLETE)) == 1


def test_held_back_entries_are_given_up_when_memory_is_short(job: Running) -> None:
    last = job.workers["b/0"]
    last.protocol._max_held = 0  # type: ignore[attr-defined]
    job.decide(later_ms=100)
    job.workers["a/0"].step()
    for number in range(5):
        job.sources[0].send("d/in/0", number)
        job.workers["a/0"].step()
    last.step()
    assert (last.total, last.protocol.held_bytes) == (0, 0)
    job.workers["a/1"].step()
    last.step()
    assert last.total == 5


@pytest.mark.parametrize("wrong", [{"commit_interval_ms": 0}, {"checkpoint_timeout_ms": 99}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ProtocolError, match=next(iter(wrong))):
        AlignedCheckpoint(**wrong)
