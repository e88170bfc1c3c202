"""The default log: many processes on one host, no server, and any of them may be killed at any instant.

    FORMAT  BOOT        what the directory is; the machine's boot in which it was last used
    index/              LMDB: which entries exist and where they lie (`index.py`)
    segments/           payloads, one append-only file per writing process (`segments.py`, `frame.py`)
    bells/              how waiting readers are woken (`doorbell.py`)
    STRESS              a slow or full disk on purpose (`stress.py`)
    snapshots/          the snapshot store (`snapshots.py`)
    checkpoint.mdb      the recovery point of group durability (`durability.py`)

docs/log.md argues why every instant of a kill is safe.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from sharedlog.core import Core
from sharedlog.durability import Syncer, locked, settle_boot
from sharedlog.errors import LogError, UnknownFormat
from sharedlog.log import Entry, Kind, LogSpec, Record, SharedLog, SnapshotStore
from sharedlog.snapshots import FileSnapshotStore
from sharedlog.stress import Stress
from sharedlog.trim import trim

FORMAT_VERSION = 1
Durability = Literal["process", "group", "always"]
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, kw_only=True)
class EmbeddedLogSpec(LogSpec):
    """Where the log lies and what it promises.

    `durability` is a property of the log and must be the same for all who open it:

    - `process`: an acknowledged append survives the death of any process. After a power cut or a kernel crash nothing
      is promised.
    - `group`: as `process`; and after a power cut the log is as it was at some instant at most `group_ms`, plus the
      time that one recovery point takes to write, before it. Later appends, acknowledged or not, are lost together; a
      consistent beginning of the order remains. An orderly `close` or `trim` leaves nothing to lose. A process that is
      killed makes no more recovery points: its last appends are covered by the next one that any other process makes.
      A recovery point writes the whole index anew, so a log with much untrimmed history pays for it every `group_ms`.
    - `always`: an acknowledged append survives a power cut.

    `max_bytes` limits the payloads (None: the disk does); `map_bytes` the index, whose file is sparse.
    """

    path: str
    durability: Durability = "process"
    group_ms: float = 20.0
    segment_bytes: int = 64 * _MIB
    max_bytes: int | None = None
    map_bytes: int = 4 * _GIB

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("log path is empty; give the directory that the log shall live in")
        if self.durability not in get_args(Durability):
            raise ValueError(f"log durability is {self.durability!r}; use one of {', '.join(get_args(Durability))}")
        if not 1 <= self.group_ms <= 60_000:
            raise ValueError(f"log group_ms is {self.group_ms}; use 1 to 60000")
        if not 64 * _KIB <= self.segment_bytes <= _GIB:
            raise ValueError(f"log segment_bytes is {self.segment_bytes}; use {64 * _KIB} to {_GIB}")
        if self.max_bytes is not None and self.max_bytes < 2 * self.segment_bytes:
            raise ValueError(
                f"log max_bytes is {self.max_bytes}; a trim frees whole segments, so use at least two of"
                f" segment_bytes={self.segment_bytes}, or null for no limit"
            )
        if self.map_bytes < _MIB or self.map_bytes % 4096:
            raise ValueError(f"log map_bytes is {self.map_bytes}; use a multiple of 4096 of at least {_MIB}")

    def open(self) -> "EmbeddedLog":
        return EmbeddedLog(self)

    def snapshots(self) -> SnapshotStore:
        return FileSnapshotStore(Path(self.path) / "snapshots", sync=self.durability != "process")

    def stress(self) -> Stress:
        return Stress(self.path)

    @classmethod
    def of(cls, path: str | Path) -> "EmbeddedLogSpec":
        """How an existing log was made."""
        return cls(path=str(path), durability=_read_format(Path(path) / "FORMAT"))


class EmbeddedLog(SharedLog):
    """A handle. All handles of a process on one directory share what they hold; open it after a fork, never before."""

    def __init__(self, spec: EmbeddedLogSpec) -> None:
        self._process = _process
        self._held: _Held | None = _acquire(spec)

    def append(self, entries: Sequence[Entry], *, expect: Mapping[str, int] | None = None) -> list[int]:
        held = self._hold()
        lsns = held.core.append(entries, expect or {})
        if held.syncer is not None:
            held.syncer.note()
        return lsns

    def read(self, tag: str, after: int, *, max_bytes: int) -> list[Record]:
        return self._hold().core.read(tag, after, max_bytes)

    def wait(self, positions: Mapping[str, int], timeout_ms: float, *, wake_fd: int | None = None) -> bool:
        return self._hold().core.wait(positions, timeout_ms, wake_fd)

    def last(self, tag: str, *, kind: Kind | None = None) -> Record | None:
        return self._hold().core.last(tag, kind)

    def first(self) -> int:
        return self._hold().core.head().first_lsn

    def tail(self) -> int:
        return self._hold().core.head().next_lsn - 1

    def trim(self, before: int) -> None:
        held = self._hold()
        trim(held.core, before, held.syncer)

    def get(self, key: str) -> int:
        return self._hold().core.get(key)

    def increment(self, key: str) -> int:
        held = self._hold()
        value = held.core.increment(key)
        if held.syncer is not None:
            held.syncer.note()
        return value

    def write_lock_holder(self) -> int | None:
        """The process that holds the log's write lock at this instant, or None.

        One system call. The answer may be stale when it arrives, unless the process it names is stopped: one that was
        stopped with SIGSTOP while it holds the lock keeps all writers waiting until it goes on or is killed.
        """
        return self._hold().core.index.queue.holder()

    def size_bytes(self) -> int:
        """Disk blocks of payloads and index. Files that a reader still maps after a trim are not counted."""
        core = self._hold().core
        files = [*core.segments_path.iterdir(), *(core.path / "index").iterdir()]
        return sum(_blocks(file) for file in files)

    def close(self) -> None:
        if self._held is not None and self._process == _process:
            _release(self._held)
        self._held = None

    def _hold(self) -> "_Held":
        if self._process != _process:
            raise LogError(
                f"a log opened in process {self._process} is used in its fork {_process};"
                " call open() in the process that uses it"
            )
        if self._held is None:
            raise LogError("the log is used after close(); open it again")
        return self._held


class _Held:
    """What a process holds of one directory, counted by its handles."""

    def __init__(self, spec: EmbeddedLogSpec, core: Core) -> None:
        self.spec = spec
        self.core = core
        self.syncer = Syncer(core, spec.group_ms) if spec.durability == "group" else None
        self.handles = 1


_process = os.getpid()  # known without a system call: every append asks
_open_logs: dict[str, _Held] = {}
_open_logs_lock = threading.Lock()
_inherited: dict[str, _Held] = {}


def _forget_parents_logs() -> None:
    """In a forked child. What the parent opened stays its own; it is kept only so that nothing is cleaned up here."""
    global _process, _open_logs, _open_logs_lock
    _process = os.getpid()
    _inherited.update(_open_logs)
    _open_logs = {}
    _open_logs_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_parents_logs)


def _acquire(spec: EmbeddedLogSpec) -> _Held:
    path = Path(os.path.realpath(spec.path))
    with _open_logs_lock:
        held = _open_logs.get(str(path))
        if held is not None:
            if held.spec != spec:
                raise LogError(f"{path} is open in this process as {held.spec}; a second open must ask for the same")
            held.handles += 1
            return held
        if str(path) in _inherited:
            _inherited.pop(str(path)).core.index.close()  # LMDB leaves the parent's locks alone
        path.mkdir(parents=True, exist_ok=True)
        with locked(path / "open.lock"):
            _settle_format(path, spec.durability)
            settle_boot(path, spec.durability)
            core = Core(
                path,
                segment_bytes=spec.segment_bytes,
                max_bytes=spec.max_bytes,
                map_bytes=spec.map_bytes,
                sync_each_append=spec.durability == "always",
            )
        held = _open_logs[str(path)] = _Held(spec, core)
        return held


@contextlib.contextmanager
def borrowed(path: str | Path) -> Iterator[Core]:
    """What this process holds of an existing log already, or as the log was made; for looking at it."""
    with _open_logs_lock:
        held = _open_logs.get(os.path.realpath(path))
        if held is not None:
            held.handles += 1
    if held is None:
        held = _acquire(EmbeddedLogSpec.of(path))
    try:
        yield held.core
    finally:
        _release(held)


def _release(held: _Held) -> None:
    with _open_logs_lock:
        held.handles -= 1
        if held.handles:
            return
        del _open_logs[str(held.core.path)]
        try:
            if held.syncer is not None:
                held.syncer.close()
        finally:
            held.core.close()


def _settle_format(path: Path, durability: str) -> None:
    file = path / "FORMAT"
    if not file.exists():
        if (path / "index").exists():
            raise UnknownFormat(f"{path} holds an index and no FORMAT file; it is not a whole log, so remove it")
        temporary = path / "FORMAT.new"
        temporary.write_text(json.dumps({"format": FORMAT_VERSION, "durability": durability}) + "\n")
        os.replace(temporary, file)
    found = _read_format(file)
    if found != durability:
        raise LogError(
            f"{path} was made with durability={found} and is opened with durability={durability};"
            f" open it with {found} or use another directory"
        )


def _read_format(file: Path) -> Durability:
    try:
        content = json.loads(file.read_text())
        version, durability = content["format"], content["durability"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnknownFormat(
            f"{file} cannot be read ({error}); this directory is no log that this code knows"
        ) from error
    if version != FORMAT_VERSION or durability not in get_args(Durability):
        raise UnknownFormat(
            f"{file} says format {version}, durability {durability}; this code reads format {FORMAT_VERSION}: use the"
            " release that wrote it, or remove the directory to start afresh"
        )
    return durability  # type: ignore[no-any-return]


def _blocks(file: Path) -> int:
    try:
        return file.stat().st_blocks * 512
    except FileNotFoundError:  # a trim was faster
        return 0
