"""What a fault-tolerance protocol is: rules for what may be read, and when what was written counts.

A protocol is a value built from configs/protocol/<name>.yaml. For each role it makes a living part, and the runner
drives those parts without knowing which protocol they belong to. The parts are step machines: no hook blocks, time
comes as an argument, and the world is touched only through the context's log, snapshots and channel. So the same
code runs at full speed under Spark and is crashed everywhere in the simulator.

Any hook may raise `Fenced` (a successor is at work: this process ends) or `RolledBack` (the state of this task no
longer counts: the runner clears it and calls `recover` again, in place).
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import pyarrow as pa

from dataflow.state import TaskState
from sharedlog.log import Record, SharedLog, SnapshotStore


class Guarantee(enum.StrEnum):
    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    NONE = "none"


class ProtocolError(ValueError):
    """A protocol configured in a way that cannot work."""


class RolledBack(Exception):
    """What this task did since its last recovery is void; recover again."""


class Broken(AssertionError):
    """An invariant of the protocol does not hold. Always a bug, never a fault."""


class Plan(NamedTuple):
    """One task's place in the job, in tags: what it reads and from whom, and where it may write."""

    name: str
    inputs: Mapping[str, tuple[str, ...]]  # data tag → the producers that write to it
    outputs: tuple[str, ...]  # data tags of all downstream substreams


@dataclass(frozen=True, kw_only=True)
class Job:
    """The roles of one run and the tags between them. Pure names; picklable; the same for every role."""

    sources: tuple[str, ...]
    source_tags: tuple[str, ...]
    tasks: Mapping[str, Plan]
    sink_inputs: Mapping[str, tuple[str, ...]]
    flush_interval_ms: float = 10
    flush_bytes: int = 128 * 1024
    watermark_interval_ms: float = 100
    max_held_bytes: int = 256 * 1024 * 1024

    @property
    def result_tags(self) -> tuple[str, ...]:
        return tuple(self.sink_inputs)


class Delivery(NamedTuple):
    """An admitted data entry. `committed_us` is when the entry that made it admissible was appended: its own commit,
    or that of an entry which had to go first."""

    tag: str
    record: Record
    committed_us: int


class Recovery(NamedTuple):
    """What it cost to come back, and how far this task had come."""

    entries_read: int = 0
    changes_applied: int = 0
    ended: bool = False  # its END is committed; nothing is left to publish


class Channel(ABC):
    """Messages between tasks and coordinators. Non-blocking and lossy: they may vanish, repeat or overtake."""

    @abstractmethod
    def send(self, to: str, message: bytes) -> None: ...

    @abstractmethod
    def receive(self) -> list[tuple[str, bytes]]:
        """(sender, message) pairs that arrived since the last call."""


class Phase(enum.IntEnum):
    """What a role is about to do. A fault can wait for it."""

    WORK = 0
    RECOVERY = 1
    COMMIT = 2
    SNAPSHOT = 3


class Vitals:
    """What can be seen of a role from outside while it lives, and what is left to see when it has died.

    Protocols say here when they commit. Nobody looks unless the runner puts something better in its place.
    """

    def enter(self, phase: Phase) -> None:
        """Called before what the phase is named after; a fault that waits for it strikes now."""

    def took(self, entries: int, size: int) -> None:
        """Input was processed: from now on it would have to be processed again."""

    def recovered(self) -> None:
        """What was taken before is forgotten, and work begins from the recovered state."""

    def committed(self) -> None:
        """A successor would not process again what was taken so far (once the commit's own coordinator agrees)."""


class Uploads(ABC):
    """Snapshots in the background: started, then polled."""

    @abstractmethod
    def start(self, key: str, parts: Sequence[pa.Buffer | bytes]) -> None: ...

    @abstractmethod
    def poll(self) -> list[tuple[str, bool]]:
        """Uploads finished since the last call: (key, whole and durable or not)."""


@dataclass(kw_only=True)
class Context:
    """What every role gets: the job, its own name and instance, and the world."""

    job: Job
    name: str
    instance: int
    log: SharedLog
    snapshots: SnapshotStore
    uploads: Uploads
    channel: Channel
    now_us: Callable[[], int]
    written: dict[str, list[int]] = field(default_factory=dict)  # kind → [entries, bytes], filled by Writer
    measured: dict[str, float] = field(default_factory=dict)  # what else a protocol counts, by name
    vitals: Vitals = field(default_factory=Vitals)


@dataclass(kw_only=True)
class TaskContext(Context):
    plan: Plan
    state: TaskState


class Admission(ABC):
    """What a reader may act on. Stages have one inside their protocol; the sink has the protocol's observer."""

    @abstractmethod
    def inputs(self) -> Mapping[str, int]:
        """Tags to read, and the positions after which. A missing tag is back-pressure."""

    @abstractmethod
    def admit(self, records: Mapping[str, Sequence[Record]]) -> Iterator[Sequence[Delivery]]:
        """Hold back, drop, release. Records are those after `inputs()`; there may be none.

        Yields groups; a group may be processed as one batch. The iterator is resumed only after what a group caused
        was published, so what it does next (moving a position, forwarding a barrier) covers that group.
        """

    @abstractmethod
    def watermark(self) -> int:
        """The least watermark over all producers, as far as admitted."""

    @abstractmethod
    def exhausted(self) -> bool:
        """Every producer's END was admitted, and what came before it was processed."""

    @abstractmethod
    def bound(self) -> int:
        """The smallest LSN that this role, or its successor after a crash now, may still read."""

    @property
    def held_bytes(self) -> int:
        """Bodies that are held back in memory; never more than the job's `max_held_bytes`."""
        return 0


class Observer(Admission):
    """The sink's reader. Its place can be saved, so that a new sink goes on where a dead one was."""

    @abstractmethod
    def save(self) -> bytes: ...

    @abstractmethod
    def load(self, saved: bytes) -> None: ...


class TaskProtocol(Admission):
    """The protocol's part in one task."""

    @abstractmethod
    def recover(self) -> Recovery | None:
        """Bring `ctx.state` to the last committed point. Called first, and again after `RolledBack`.

        The state is empty then. None: not yet (a coordinator has to answer); the runner calls again.
        """

    @abstractmethod
    def publish(
        self, outputs: Mapping[str, Sequence[pa.RecordBatch]], watermark: int, end: bytes | None = None
    ) -> None:
        """Take over rows for data tags, and this task's watermark; appended when full or due.

        `end` closes all outputs: it is the body of the END entries, and nothing is published after it.
        """

    @abstractmethod
    def tick(self, now_ms: float) -> None:
        """Flush, commit, poll uploads and the channel. Called in every step, also after the end."""

    @abstractmethod
    def finished(self) -> bool:
        """END is published and a commit covers it. The runner goes on ticking until the job is done."""


class Coordinator(ABC):
    """An extra long-lived role of a protocol."""

    @abstractmethod
    def step(self, now_ms: float) -> bool:
        """A bounded amount of work; whether there was any."""

    @abstractmethod
    def inputs(self) -> Mapping[str, int]:
        """What to wait for when idle."""

    @abstractmethod
    def bound(self) -> int:
        """The smallest LSN that this role or its successor may still read."""


@dataclass(frozen=True, kw_only=True)
class Protocol(ABC):
    """A protocol's configuration and the maker of its living parts. Validated on construction, picklable."""

    guarantee: ClassVar[Guarantee]

    @abstractmethod
    def task(self, ctx: TaskContext) -> TaskProtocol: ...

    @abstractmethod
    def observer(self, ctx: Context) -> Observer: ...

    def pins_log(self) -> bool:
        """Whether its log can not be trimmed behind the readers, but grows with the run."""
        return False

    def coordinators(self, job: Job) -> Sequence[str]:
        """Names of the extra roles that this job needs; most protocols need none."""
        return ()

    def coordinator(self, ctx: Context) -> Coordinator:
        raise ProtocolError(f"protocol {type(self).__name__} has no coordinators")


def require(condition: bool, who: str, what: str) -> None:
    """Raise a ProtocolError unless a configured value makes sense."""
    if not condition:
        raise ProtocolError(f"protocol {who}: {what}")
