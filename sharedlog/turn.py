"""The writers' queue: a record lock of the kernel that every process takes before it comes near a mutex of LMDB.

A record lock ends with its process, wakes its waiters then, and is not inherited by a forked child. It has no timeout,
so a watchman says who holds it when a wait takes long; it sleeps otherwise, and is not even hired before this process
had to wait for the first time.
"""

import errno
import fcntl
import logging
import os
import struct
import threading
import time
from pathlib import Path

PATIENCE_S = 5.0
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64 bits: type, whence, start, length, pid
_TAKEN = (errno.EAGAIN, errno.EACCES)
_AT_ONCE = fcntl.LOCK_EX | fcntl.LOCK_NB
_UNLOCK = fcntl.LOCK_UN
_log = logging.getLogger(__name__)


class Turn:
    """One per process and log; closing a second one would lose the lock of the first. Callers keep threads apart."""

    def __init__(self, file: Path, *, patience_s: float = PATIENCE_S) -> None:
        self.held = False
        self._file = file
        self._patience_s = patience_s
        self._waiting_since: float | None = None
        self._watchman: threading.Thread | None = None
        self._closed = threading.Event()
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(self) -> None:
        try:
            fcntl.lockf(self._descriptor, _AT_ONCE)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            self._wait()
        self.held = True

    def leave(self) -> None:
        self.held = False
        fcntl.lockf(self._descriptor, _UNLOCK)

    def holder(self) -> int | None:
        """The process whose turn it is now, by the kernel's account; None when it is nobody's."""
        if self.held:  # The kernel tells of others' locks only.
            return os.getpid()
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else pid

    def close(self) -> None:
        self._closed.set()
        os.close(self._descriptor)

    def _wait(self) -> None:
        if self._watchman is None:
            self._watchman = threading.Thread(target=self._watch, name="tidemark-log-watchman", daemon=True)
            self._watchman.start()
        self._waiting_since = time.monotonic()
        try:
            while True:
                try:
                    fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
                    return
                except OSError as error:
                    # The kernel takes threads of one process that wait for different logs for a deadlock.
                    if error.errno != errno.EDEADLK:
                        raise
                    time.sleep(0.001)
        finally:
            self._waiting_since = None

    def _watch(self) -> None:
        told_of: float | None = None
        while not self._closed.wait(self._patience_s / 4):
            since = self._waiting_since
            if since is None or since == told_of or time.monotonic() - since < self._patience_s:
                continue
            told_of = since
            holder = self.holder()
            _log.warning(
                "process %d has waited %.1f s for the write lock %s, which is held by process %s (%s);"
                " a stopped or hanging holder must be continued or killed before anybody can append",
                os.getpid(),
                time.monotonic() - since,
                self._file,
                holder,
                _state_of(holder),
            )


def _state_of(process: int | None) -> str:
    """What the kernel says about a process, such as "T (stopped)"."""
    if process is None:
        return "free again"
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return "gone, or of another user or namespace"
    return next((line.split("\t", 1)[1] for line in status.splitlines() if line.startswith("State:")), "unknown")
