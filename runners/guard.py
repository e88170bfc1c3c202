"""Whoever stands still while holding the log's write lock stops everybody; after a while the guard kills it."""

import signal
import threading
import time
from collections.abc import Callable

from runners.strike import is_stopped, signalled
from sharedlog.log import SharedLog

LOOK_S = 0.05


class LockGuard:
    """A thread of its own: the supervisor may be among those who wait."""

    def __init__(self, log: SharedLog, timeout_ms: float, record: Callable[..., None]) -> None:
        self._log = log
        self._timeout_s = timeout_ms / 1000
        self._record = record
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lock-guard", daemon=True)
        self.stalled = False  # nobody can write now, so nobody is to be called hung for being silent
        self.killed: list[int] = []

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        suspect, since = None, 0.0
        while not self._over.wait(LOOK_S):
            holder = self._log.write_lock_holder()
            if holder is None or not is_stopped(holder):
                suspect, self.stalled = None, False
                continue
            if holder != suspect:
                suspect, since = holder, time.monotonic()
            self.stalled = True
            if time.monotonic() - since > self._timeout_s and holder not in self.killed:
                self.killed.append(holder)
                signalled(holder, signal.SIGKILL)
                self._record("lock_holder_killed", pid=holder, held_ms=(time.monotonic() - since) * 1000)
