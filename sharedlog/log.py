"""The log's interface: the one medium between all roles.

A log is a total order of entries. An entry has an LSN (starting at 1), a set of string tags and a payload (fixed
header and body). It is stored once and found under each of its tags. Backends implement `SharedLog`; everything
that holds for one of them is written down once, in the conformance suite of the tests.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from sharedlog.errors import LogError
from sharedlog.stress import Stress


class Kind(enum.IntEnum):
    """What an entry is for. The run directory counts entries and bytes by it."""

    INPUT = 1
    DATA = 2
    CHANGELOG = 3
    MARKER = 4
    COORDINATION = 5
    REPORT = 6


class Header(NamedTuple):
    """The fixed part of an entry. Unused numbers are 0.

    `sequence` counts per (instance, tag). `watermark` is event time in µs; `time_us` is the writer's wall clock just
    before the append. `end` marks the producer's last entry of a substream.
    """

    kind: Kind
    producer: str
    instance: int = 0
    sequence: int = 0
    epoch: int = 0
    transaction: int = 0
    watermark: int = 0
    rows: int = 0
    time_us: int = 0
    end: bool = False


class Entry(NamedTuple):
    """What a writer hands over. `body` is an encoded Arrow record batch, or a control record's bytes."""

    tags: tuple[str, ...]
    header: Header
    body: pa.Buffer | bytes = b""


class Record(NamedTuple):
    """What a reader gets. `body` is a view of the log's own bytes, valid as long as it is referenced."""

    lsn: int
    header: Header
    body: pa.Buffer


class SharedLog(ABC):
    """A totally ordered log with selective read by tag. Every method may be called from any process."""

    @abstractmethod
    def append(self, entries: Sequence[Entry], *, expect: Mapping[str, int] | None = None) -> list[int]:
        """Append all entries with consecutive LSNs, or none; a reader sees all of them or none.

        `expect` makes it conditional: unless every counter holds the given value *when the append lands*, nothing is
        written and `Fenced` is raised. An append that raises anything else has an unknown outcome.
        """

    @abstractmethod
    def read(self, tag: str, after: int, *, max_bytes: int) -> list[Record]:
        """The tag's entries with LSN > `after`, in LSN order.

        At least one if there is any, then as many as fit into `max_bytes`. Raises `Trimmed` when entries after
        `after` may have been cut, that is when after + 1 < first().
        """

    @abstractmethod
    def wait(self, positions: Mapping[str, int], timeout_ms: float, *, wake_fd: int | None = None) -> bool:
        """Block until some tag has an entry after its position; False when the time ran out first.

        A readable `wake_fd` ends the wait as well: a role that also listens to a socket waits for both at once.
        """

    @abstractmethod
    def last(self, tag: str, *, kind: Kind | None = None) -> Record | None:
        """The tag's newest entry (of that kind) that has not been trimmed. Recovery starts here."""

    @abstractmethod
    def first(self) -> int:
        """The smallest LSN that may still be read; 1 before any trim."""

    @abstractmethod
    def tail(self) -> int:
        """The newest LSN of the log; 0 when nothing was ever appended."""

    @abstractmethod
    def trim(self, before: int) -> None:
        """Give up all entries with LSN < `before`. Never moves backwards; tail() + 1 empties the log."""

    @abstractmethod
    def get(self, key: str) -> int:
        """A metadata counter's value; 0 if it was never incremented. Counters survive trims."""

    @abstractmethod
    def increment(self, key: str) -> int:
        """Add one to a counter, atomically and in order with appends, and return the new value."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Room that the log takes now, in memory or on disk."""

    def write_lock_holder(self) -> int | None:
        """The process that alone may write at this moment, where a backend has such a lock; otherwise None."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release this process's hold. Bodies already read stay valid."""


class SnapshotStore(ABC):
    """Named blobs beside the log. A snapshot is either whole or absent, whenever a process dies."""

    @abstractmethod
    def put(self, key: str, parts: Sequence[pa.Buffer | bytes]) -> None:
        """Store the concatenation of `parts`, replacing what was there. Durable as the log is, on return."""

    @abstractmethod
    def get(self, key: str) -> pa.Buffer | None: ...

    @abstractmethod
    def delete(self, key: str) -> None:
        """Forget a snapshot; fine if it does not exist."""

    @abstractmethod
    def list(self, prefix: str = "") -> list[str]:
        """The keys that begin with `prefix`, sorted."""


@dataclass(frozen=True, kw_only=True)
class LogSpec(ABC):
    """How to reach a log; built from configs/log/<name>.yaml, picklable, opened by each process for itself."""

    @abstractmethod
    def open(self) -> SharedLog: ...

    @abstractmethod
    def snapshots(self) -> SnapshotStore: ...

    def stress(self) -> Stress:
        """The switch for a slow or full disk, where a backend has one."""
        raise LogError(f"{type(self).__name__} cannot be slowed down or filled on purpose; use log=embedded for that")
