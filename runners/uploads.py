"""Snapshot uploads in a thread of their own. The thread decides nothing: a protocol acts only on what it polls."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from protocols.base import Phase, Uploads, Vitals
from sharedlog.log import SnapshotStore


class ThreadUploads(Uploads):
    def __init__(self, snapshots: SnapshotStore, written: dict[str, list[int]], vitals: Vitals | None = None) -> None:
        self._snapshots = snapshots
        self._vitals = vitals or Vitals()
        self._written = written
        self._pool: ThreadPoolExecutor | None = None
        self._running: list[tuple[str, Future[None]]] = []

    def start(self, key: str, parts: Sequence[pa.Buffer | bytes]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="upload")
        count = self._written.setdefault("snapshot", [0, 0])
        count[0] += 1
        count[1] += sum(len(part) for part in parts)
        self._running.append((key, self._pool.submit(self._upload, key, parts)))

    def _upload(self, key: str, parts: Sequence[pa.Buffer | bytes]) -> None:
        self._vitals.enter(Phase.SNAPSHOT)
        self._snapshots.put(key, parts)

    def poll(self) -> list[tuple[str, bool]]:
        if not self._running:
            return []
        done = [(key, future.exception() is None) for key, future in self._running if future.done()]
        self._running = [(key, future) for key, future in self._running if not future.done()]
        return done
