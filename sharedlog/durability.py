"""Group durability: a recovery point on disk every few milliseconds, and the way back to it after a power cut.

LMDB without synchronous commits survives the death of any process, but after a power cut its file may hold any mixture
of old and new pages. So the live index is never trusted across a restart of the machine: a recovery point is a compact
copy of it, put in place by a rename after all payloads that it names have reached the disk.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from sharedlog.core import Core
from sharedlog.index import Index, no_room, segments
from sharedlog.segments import segment_files, segment_path, sync_directory

_CHECKPOINT = "checkpoint.mdb"
_BOOT = "BOOT"
_log = logging.getLogger(__name__)


class Syncer:
    """Makes recovery points from a thread of its own, `group_ms` after the first append that has none yet."""

    def __init__(self, core: Core, group_ms: float) -> None:
        self._core = core
        self._group_s = group_ms / 1000
        self._dirty = threading.Event()
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._synced_lsn = 0  # all payloads up to it are known to be on disk
        self._thread = threading.Thread(target=self._run, name="tidemark-log-sync", daemon=True)
        self._thread.start()

    def note(self) -> None:
        """After an append or increment. Raises when the last recovery point failed and cannot be made now either."""
        self._dirty.set()
        if self._failure is not None:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Everything committed by any process before this call survives a power cut after it."""
        core = self._core
        try:
            with self.exclusive():
                temporary = core.path / f"{_CHECKPOINT}.new"
                with open(temporary, "wb") as file:
                    # The copy reads beside this process's own reader and so needs a second slot, for which LMDB takes
                    # its readers' mutex: in turn, like everything that waits for a mutex of LMDB.
                    with core.mutex, core.index.turn():
                        core.index.copy(file.fileno())
                    os.fsync(file.fileno())
                # Segments' rows go under this lock only, so these are all the segments that the copy names.
                with core.mutex, core.index.read() as txn:
                    changed = [(number, row.last_lsn) for number, row in segments(txn)]
                for number, last_lsn in changed:
                    if last_lsn > self._synced_lsn:
                        _sync_file(segment_path(core.segments_path, number))
                sync_directory(core.segments_path)
                os.replace(temporary, core.path / _CHECKPOINT)
                sync_directory(core.path)
        except OSError as error:
            raise no_room(error, f"making a recovery point of {core.path}") from error
        self._synced_lsn = max((last_lsn for _, last_lsn in changed), default=self._synced_lsn)
        self._failure = None

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """While no process makes a recovery point. A trim forgets segments under it."""
        with locked(self._core.path / "sync.lock"):
            yield

    def close(self) -> None:
        """The last recovery point, then no more."""
        self._stop.set()
        self._dirty.set()
        self._thread.join()
        self.checkpoint()

    def _run(self) -> None:
        # `close` may come between the wait for `_stop` and the clearing of `_dirty`, which then takes its wake-up away;
        # so `_stop` is looked at again before the next wait.
        while not self._stop.is_set():
            self._dirty.wait()
            if self._stop.wait(self._group_s):
                return
            self._dirty.clear()
            try:
                self.checkpoint()
            except Exception as error:
                self._failure = error
                _log.error("no recovery point could be made, appends will fail until one can: %s", error)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """An exclusive lock between processes and threads that the kernel takes from the dead."""
    with open(path, "ab") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(
                file.fileno(), fcntl.LOCK_UN
            )  # Closing would not do: a child forked meanwhile has it open, too.


def settle_boot(path: Path, durability: str) -> None:
    """Called under the opening lock, before the index is opened: has the machine restarted since the log was in use?"""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    known = (path / _BOOT).read_text().strip() if (path / _BOOT).exists() else None
    if known == boot:
        return
    if known is not None:
        _log.warning("%s was last used before the machine restarted (durability=%s)", path, durability)
        if durability == "group":
            _restore(path)
        elif durability == "process":
            _log.warning("%s promises nothing after a restart; `python -m sharedlog.check %s` tells", path, path)
    (path / _BOOT).write_text(boot + "\n")


def _restore(path: Path) -> None:
    """Back to the recovery point; without one, to an empty log. Payload files that it does not name go."""
    shutil.rmtree(path / "index", ignore_errors=True)
    named: set[int] = set()
    if (path / _CHECKPOINT).exists():
        (path / "index").mkdir()
        shutil.copyfile(path / _CHECKPOINT, path / "index" / "data.mdb")
        index = Index(path / "index", map_bytes=(path / _CHECKPOINT).stat().st_size + (1 << 20), sync=True)
        with index.read() as txn:
            named = {number for number, _ in segments(txn)}
        index.close()
    for number, file in segment_files(path / "segments").items():
        if number not in named:
            file.unlink()


def _sync_file(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # its writer has named it and not yet made it, or a trim is about to forget it
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
