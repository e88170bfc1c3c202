"""How a waiting process learns of an append: writers ring, readers sleep in the kernel.

A bell is a one-byte file. Ringing reads that byte and the kernel tells everyone who watches the file (inotify). Reading
dirties nothing and works on a full disk. Tags are spread over a number of bells, so that an append wakes few of those
who do not care. Bells carry no meaning: whoever wakes looks into the index, and a writer may die before it rings.
"""

import errno
import logging
import os
import select
import zlib
from collections.abc import Iterable
from pathlib import Path

import inotify_simple

BELLS = 64
FALLBACK_MS = 50.0  # how long a dead writer's append may go unnoticed
_POLL_MS = 1.0
_log = logging.getLogger(__name__)


def bell_of(tag: bytes) -> int:
    return zlib.crc32(tag) % BELLS


def create_bells(directory: Path) -> None:
    """Make the files; safe when several processes do it at once."""
    directory.mkdir(parents=True, exist_ok=True)
    for bell in range(BELLS):
        path = directory / f"{bell:02d}"
        if not path.exists() or path.stat().st_size != 1:
            path.write_bytes(b"\0")


class Ringer:
    """The writers' end, one per process."""

    def __init__(self, directory: Path) -> None:
        self._descriptors = [os.open(directory / f"{bell:02d}", os.O_RDONLY | os.O_CLOEXEC) for bell in range(BELLS)]

    def ring(self, bells: Iterable[int]) -> None:
        for bell in bells:
            os.pread(self._descriptors[bell], 1, 0)

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


class Listener:
    """The readers' end, one per waiting thread. Once watched, a bell is watched for good.

    Used as: `watch`, then repeatedly `drain`, look into the index, `sleep`. A ring after the drain ends the sleep, so
    no append that the look missed can be slept through.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._watched: set[int] = set()
        self._wakers: set[int] = set()
        self._inotify: inotify_simple.INotify | None = None
        self._poll = select.poll()
        try:
            self._inotify = inotify_simple.INotify(nonblocking=True)
            self._poll.register(self._inotify.fileno(), select.POLLIN)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENOSPC):
                raise
            self._poll_instead(error)

    def watch(self, bells: Iterable[int]) -> None:
        for bell in bells:
            if bell not in self._watched and self._inotify is not None:
                try:
                    self._inotify.add_watch(str(self._directory / f"{bell:02d}"), inotify_simple.flags.ACCESS)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    self._poll_instead(error)
                self._watched.add(bell)

    def drain(self) -> None:
        """Forget the rings so far. Equal unread rings are merged by the kernel, so this is one short read."""
        if self._inotify is not None:
            try:
                while os.read(self._inotify.fileno(), 65536):
                    pass
            except BlockingIOError:
                pass

    def sleep(self, timeout_ms: float, wake_fd: int | None = None) -> bool:
        """Until a watched bell rings, at most for the timeout and never much longer than `FALLBACK_MS`.

        True when `wake_fd` became readable.
        """
        if wake_fd is not None and wake_fd not in self._wakers:
            self._poll.register(wake_fd, select.POLLIN)
            self._wakers.add(wake_fd)
        limit_ms = FALLBACK_MS if self._inotify is not None else _POLL_MS
        ready = self._poll.poll(min(timeout_ms, limit_ms))
        return any(descriptor == wake_fd for descriptor, _ in ready)

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()

    def _poll_instead(self, error: OSError) -> None:
        _log.warning(
            "waiting by polling every %s ms, because inotify said: %s; raise fs.inotify.max_user_instances",
            _POLL_MS,
            error,
        )
        self._inotify = None
