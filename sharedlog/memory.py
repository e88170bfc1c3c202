"""The log in one process's memory: for the simulator and as the model that other backends are compared with.

Short enough to be believed by reading it. Safe to use from several threads; never blocks but in `wait`.
"""

import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import pyarrow as pa

from sharedlog.codec import HEADER_BYTES, check_entry, encode_counter_key, encode_tag, pack_header
from sharedlog.errors import Fenced, InvalidEntry, LogFull, Trimmed
from sharedlog.log import Entry, Kind, LogSpec, Record, SharedLog, SnapshotStore


class MemoryLog(SharedLog):
    """All who share the log hold the same object; `close` therefore does nothing and the log goes when they do."""

    def __init__(self, *, max_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._records: list[Record] = []  # LSNs first … tail, without gaps
        self._first = 1
        self._lsns: dict[str, list[int]] = {}  # tag → LSNs, ascending
        self._counters: dict[str, int] = {}
        self._known_tags: set[str] = set()
        self._bytes = 0

    def append(self, entries: Sequence[Entry], *, expect: Mapping[str, int] | None = None) -> list[int]:
        size = 0
        for entry in entries:
            check_entry(entry)
            pack_header(entry.header)
            for tag in entry.tags:
                self._check_tag(tag)
            size += HEADER_BYTES + len(entry.body)
        with self._changed:
            if expect:
                found = {key: self._counters.get(key, 0) for key in expect}
                if found != expect:
                    raise Fenced(expect, found)
            if self._max_bytes is not None and self._bytes + size > self._max_bytes:
                raise LogFull(
                    f"append of {size} bytes: the memory log holds {self._bytes} of {self._max_bytes}; trim and retry"
                )
            start = self._first + len(self._records)
            for lsn, (tags, header, body) in enumerate(entries, start):
                for tag in set(tags):
                    self._lsns.setdefault(tag, []).append(lsn)
                self._records.append(Record(lsn, header, pa.py_buffer(body)))
            self._bytes += size
            self._changed.notify_all()
        return list(range(start, start + len(entries)))

    def read(self, tag: str, after: int, *, max_bytes: int) -> list[Record]:
        self._check_tag(tag)
        with self._changed:
            if after + 1 < self._first:
                raise Trimmed(tag, after, self._first)
            lsns = self._lsns.get(tag, [])
            records: list[Record] = []
            for index in range(bisect_right(lsns, after), len(lsns)):
                record = self._records[lsns[index] - self._first]
                max_bytes -= HEADER_BYTES + len(record.body)
                if records and max_bytes < 0:
                    break
                records.append(record)
            return records

    def wait(self, positions: Mapping[str, int], timeout_ms: float, *, wake_fd: int | None = None) -> bool:
        # Threads of one process have no use for a socket between them, so nothing but appends ends this wait.
        for tag in positions:
            self._check_tag(tag)
        if self._any_after(positions):
            return True
        if timeout_ms <= 0:
            return False
        deadline = time.monotonic() + timeout_ms / 1000
        with self._changed:
            while not self._any_after(positions):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True

    def last(self, tag: str, *, kind: Kind | None = None) -> Record | None:
        self._check_tag(tag)
        with self._changed:
            for lsn in reversed(self._lsns.get(tag, [])):
                record = self._records[lsn - self._first]
                if kind is None or record.header.kind == kind:
                    return record
            return None

    def first(self) -> int:
        return self._first

    def tail(self) -> int:
        with self._changed:
            return self._first + len(self._records) - 1

    def trim(self, before: int) -> None:
        with self._changed:
            cut = min(before - self._first, len(self._records))
            if cut <= 0:
                return
            self._bytes -= sum(HEADER_BYTES + len(record.body) for record in self._records[:cut])
            del self._records[:cut]
            self._first += cut
            for tag, lsns in list(self._lsns.items()):
                del lsns[: bisect_right(lsns, self._first - 1)]
                if not lsns:
                    del self._lsns[tag]

    def get(self, key: str) -> int:
        encode_counter_key(key)
        with self._changed:
            return self._counters.get(key, 0)

    def increment(self, key: str) -> int:
        encode_counter_key(key)
        with self._changed:
            self._counters[key] = value = self._counters.get(key, 0) + 1
            return value

    def size_bytes(self) -> int:
        return self._bytes

    def close(self) -> None:
        return

    def _any_after(self, positions: Mapping[str, int]) -> bool:
        for tag, after in positions.items():
            lsns = self._lsns.get(tag)
            if lsns and lsns[-1] > after:
                return True
        return False

    def _check_tag(self, tag: str) -> None:
        if tag not in self._known_tags:
            encode_tag(tag)
            self._known_tags.add(tag)


class MemorySnapshotStore(SnapshotStore):
    """Snapshots in a dictionary. `put` joins the parts first, so that a snapshot is whole or absent here too."""

    def __init__(self) -> None:
        self._snapshots: dict[str, pa.Buffer] = {}

    def put(self, key: str, parts: Sequence[pa.Buffer | bytes]) -> None:
        if not key:
            raise InvalidEntry("a snapshot key is empty; name the snapshot, for example 'task/epoch'")
        self._snapshots[key] = pa.py_buffer(b"".join(parts))

    def get(self, key: str) -> pa.Buffer | None:
        return self._snapshots.get(key)

    def delete(self, key: str) -> None:
        self._snapshots.pop(key, None)

    def list(self, prefix: str = "") -> list[str]:
        return sorted(key for key in list(self._snapshots) if key.startswith(prefix))


@dataclass(frozen=True, kw_only=True)
class MemoryLogSpec(LogSpec):
    """One log and one snapshot store per spec object: whoever opens the same object shares them."""

    log: MemoryLog = field(default_factory=MemoryLog)
    store: MemorySnapshotStore = field(default_factory=MemorySnapshotStore)

    def open(self) -> SharedLog:
        return self.log

    def snapshots(self) -> SnapshotStore:
        return self.store

    def __reduce__(self) -> NoReturn:
        raise TypeError("a memory log lives in one process and cannot be sent to another; use log=embedded there")
