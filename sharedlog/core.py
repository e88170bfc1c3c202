"""What one process holds of an open embedded log, and how it appends, reads and waits.

An append writes its payload into this process's own segment without any lock, then takes the LMDB write lock, checks
the condition, learns its LSNs and commits the index rows. That commit is the only instant that counts: a process may
be killed before it (nothing happened) or after it (everything happened).
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import lmdb

from sharedlog import frame
from sharedlog.codec import encode_counter_key, encode_tag
from sharedlog.doorbell import Listener, Ringer, bell_of, create_bells
from sharedlog.errors import Corrupted, Fenced, LogFull, Trimmed
from sharedlog.frame import Frame, Location
from sharedlog.index import (
    COUNTER,
    COUNTER_PREFIX,
    HEAD,
    HEAD_KEY,
    LARGEST_LSN,
    LOCATION,
    LSN_KEY,
    SEGMENT,
    Head,
    Index,
    SegmentRow,
    counter_of,
    entry_prefix,
    head_of,
    segment_key,
    segment_of,
)
from sharedlog.log import Entry, Kind, Record
from sharedlog.segments import Segment, SegmentMaps, sync_directory
from sharedlog.stress import Suffering

_ATTEMPTS = 100  # against trims that come between; one of them is rare
_NOTHING: Mapping[bytes, tuple[str, int]] = {}


class Core:
    """Shared by all handles of a process. The mutex serialises its threads; other processes are LMDB's business."""

    def __init__(
        self, path: Path, *, segment_bytes: int, max_bytes: int | None, map_bytes: int, sync_each_append: bool
    ) -> None:
        self.path = path
        self.segments_path = path / "segments"
        self.segments_path.mkdir(parents=True, exist_ok=True)
        self.mutex = threading.Lock()
        self.index = Index(path / "index", map_bytes=map_bytes, sync=sync_each_append)
        self._segment_bytes = segment_bytes
        self._max_bytes = max_bytes
        self._sync_each_append = sync_each_append
        self._maps = SegmentMaps(self.segments_path)
        self._maps_first_lsn = 0
        self._segment: Segment | None = None
        self._next_lsn = 1  # as this process's last append left it
        self._prefixes: dict[str, tuple[bytes, int]] = {}  # of tags read, and of tags written:
        self._encoded: dict[bytes, tuple[bytes, int]] = {}
        self._bells_path = path / "bells"
        create_bells(self._bells_path)
        self._ringer = Ringer(self._bells_path)
        self._listeners = threading.local()
        self._suffering = Suffering(path)

    def append(self, entries: Sequence[Entry], expect: Mapping[str, int]) -> list[int]:
        guess = self._next_lsn  # right for a writer that is alone since its last append; else corrected
        frames: list[Frame] = []
        bells: set[int] = set()
        size = 0
        for lsn, entry in enumerate(entries, guess):
            one = frame.build(entry, lsn)
            frames.append(one)
            size += one.padded_bytes
            for tag in one.tags:
                bells.add((self._encoded.get(tag) or self._encode(tag))[1])
        if (stress := self._suffering.now()) is not None:
            self._suffer(*stress)
        expected = {encode_counter_key(key): (key, value) for key, value in expect.items()} if expect else _NOTHING
        with self.mutex:
            for _ in range(_ATTEMPTS):
                segment = self._segment_for(size)
                segment.write(frames)
                start = self._commit(segment, frames, size, expected, guess)
                if start is not None:
                    break
            else:
                raise LogFull(f"{self.path}: trims dropped this writer's segment {_ATTEMPTS} times in a row; retry")
            self._ringer.ring(bells)
        return list(range(start, start + len(frames)))

    def read(self, tag: str, after: int, max_bytes: int) -> list[Record]:
        prefix, _ = self._prefix(tag)
        for _ in range(_ATTEMPTS):
            with self.mutex:
                with self.index.read() as txn:
                    head = self._look(txn)
                    if after + 1 < head.first_lsn:
                        raise Trimmed(tag, after, head.first_lsn)
                    found = list(_locate(txn, prefix, after, max_bytes))
                try:
                    return [self._maps.record(lsn, location) for lsn, location in found]
                except FileNotFoundError as error:
                    missing = error  # A trim came between: look again, now it says so.
        raise Corrupted(f"tag {tag!r} after LSN {after}: {missing.filename} is missing although the index names it")

    def last(self, tag: str, kind: Kind | None) -> Record | None:
        prefix, _ = self._prefix(tag)
        for _ in range(_ATTEMPTS):
            with self.mutex:
                with self.index.read() as txn:
                    head = self._look(txn)
                    found = _locate_last(txn, prefix, kind, head.first_lsn)
                try:
                    return None if found is None else self._maps.record(*found)
                except FileNotFoundError as error:
                    missing = error
        raise Corrupted(f"last entry of tag {tag!r}: {missing.filename} is missing although the index names it")

    def wait(self, positions: Mapping[str, int], timeout_ms: float, wake_fd: int | None = None) -> bool:
        wanted = [(*self._prefix(tag), after) for tag, after in positions.items()]
        if self._any_after(wanted):
            return True
        deadline = time.monotonic() + timeout_ms / 1000
        listener: Listener | None = getattr(self._listeners, "mine", None)
        if listener is None:
            listener = self._listeners.mine = Listener(self._bells_path)
        listener.watch(bell for _, bell, _ in wanted)
        while (left := deadline - time.monotonic()) > 0:
            listener.drain()
            if self._any_after(wanted):
                return True
            if listener.sleep(left * 1000, wake_fd):
                break
        return self._any_after(wanted)

    def head(self) -> Head:
        with self.mutex, self.index.read() as txn:
            return self._look(txn)

    def get(self, key: str) -> int:
        encoded = encode_counter_key(key)
        with self.mutex, self.index.read() as txn:
            return counter_of(txn, encoded)

    def increment(self, key: str) -> int:
        encoded = encode_counter_key(key)
        with self.mutex, self.index.write() as txn:
            value = counter_of(txn, encoded) + 1
            txn.put(COUNTER_PREFIX + encoded, COUNTER.pack(value))
        return value

    def close(self) -> None:
        with self.mutex:
            if self._segment is not None:
                self._segment.close()
            self._ringer.close()
            self._suffering.close()
            self.index.close()

    def _suffer(self, append_delay_ms: int, full: bool) -> None:
        time.sleep(append_delay_ms / 1000)  # outside of all locks, as a slow disk would be
        if full:
            raise LogFull(f"append to {self.path}: its STRESS file says that the disk is full; clear it and retry")

    def _segment_for(self, size: int) -> Segment:
        """This process's segment with room for `size` bytes; a new one, known to the index first, when needed."""
        segment = self._segment
        if segment is not None and segment.committed_bytes + size <= segment.size:
            return segment
        if segment is not None:
            self._segment = None
            segment.close()
        with self.index.write() as txn:
            head = head_of(txn)
            number = head.next_segment
            last_lsn = head.next_lsn - 1
            txn.put(segment_key(number), SegmentRow(last_lsn, 0).pack())
            txn.put(HEAD_KEY, head._replace(next_segment=number + 1).pack())
        try:
            self._segment = Segment(self.segments_path, number, max(self._segment_bytes, size), last_lsn)
            if self._sync_each_append:
                sync_directory(self.segments_path)
        except BaseException:
            with self.index.write() as txn:
                txn.delete(segment_key(number))
            raise
        return self._segment

    def _commit(
        self,
        segment: Segment,
        frames: Sequence[Frame],
        size: int,
        expected: Mapping[bytes, tuple[str, int]],
        guess: int,
    ) -> int | None:
        """Make the written frames exist. Returns their first LSN; None when a trim has dropped the segment."""
        # From here on the segment is given up unless the outcome is known: were the commit to land and this process
        # not to notice (an interrupt, say), its next append would overwrite what readers already see.
        self._segment = None
        committing = False
        try:
            with self.index.write() as txn:
                head = head_of(txn)
                if expected:
                    found = {name: counter_of(txn, key) for key, (name, _) in expected.items()}
                    if found != (wanted := dict(expected.values())):
                        raise Fenced(wanted, found)
                # A trim drops a segment only when all of it is below the first LSN, so mostly there is no need to look.
                if segment.last_lsn < head.first_lsn and txn.get(segment.key) is None:
                    return None
                used_bytes = head.used_bytes + size
                if self._max_bytes is not None and used_bytes > self._max_bytes:
                    raise LogFull(
                        f"append of {size} bytes to {self.path}: it holds {head.used_bytes} bytes and max_bytes is"
                        f" {self._max_bytes}; trim and retry"
                    )
                if guess != head.next_lsn:
                    segment.renumber(frames, head.next_lsn)
                if self._sync_each_append:
                    segment.sync()
                next_lsn = head.next_lsn
                for one, location in zip(frames, segment.locations(frames), strict=True):
                    packed_lsn = LSN_KEY.pack(next_lsn)
                    for tag in one.tags:
                        txn.put(self._encoded[tag][0] + packed_lsn, location)
                    next_lsn += 1
                txn.put(segment.key, SEGMENT.pack(next_lsn - 1, segment.committed_bytes + size))
                txn.put(HEAD_KEY, HEAD.pack(next_lsn, head.first_lsn, head.next_segment, used_bytes))
                committing = True
        except Exception:
            if not committing:
                self._segment = segment
            raise
        segment.committed_bytes += size
        segment.last_lsn = next_lsn - 1
        self._segment = segment
        self._next_lsn = next_lsn
        return head.next_lsn

    def _look(self, txn: lmdb.Transaction) -> Head:
        """The head; and what a trim by anybody means for this process's maps."""
        head = head_of(txn)
        if head.first_lsn != self._maps_first_lsn:
            self._maps.drop(lambda number: segment_of(txn, number) is None)
            self._maps_first_lsn = head.first_lsn
        return head

    def _any_after(self, wanted: Sequence[tuple[bytes, int, int]]) -> bool:
        with self.mutex, self.index.read() as txn:
            first_lsn = self._look(txn).first_lsn
            cursor = txn.cursor()
            for prefix, _, after in wanted:
                start = prefix + LSN_KEY.pack(max(after + 1, first_lsn))
                if cursor.set_range(start) and bytes(cursor.key()).startswith(prefix):
                    return True
        return False

    def _encode(self, tag: bytes) -> tuple[bytes, int]:
        known = self._encoded[tag] = (entry_prefix(tag), bell_of(tag))
        return known

    def _prefix(self, tag: str) -> tuple[bytes, int]:
        """What a tag's index rows begin with, and its bell."""
        known = self._prefixes.get(tag)
        if known is None:
            encoded = encode_tag(tag)
            known = self._prefixes[tag] = (entry_prefix(encoded), bell_of(encoded))
        return known


def _locate(txn: lmdb.Transaction, prefix: bytes, after: int, max_bytes: int) -> Iterator[tuple[int, Location]]:
    cursor = txn.cursor()
    if not cursor.set_range(prefix + LSN_KEY.pack(after + 1)):
        return
    at_least_one = True
    for key, value in cursor.iternext():
        if not bytes(key).startswith(prefix):
            return
        location = Location._make(LOCATION.unpack(value))
        max_bytes -= location.cost_bytes
        if max_bytes < 0 and not at_least_one:
            return
        at_least_one = False
        yield LSN_KEY.unpack(key[-8:])[0], location


def _locate_last(
    txn: lmdb.Transaction, prefix: bytes, kind: Kind | None, first_lsn: int
) -> tuple[int, Location] | None:
    cursor = txn.cursor()
    found = cursor.prev() if cursor.set_range(prefix + LARGEST_LSN) else cursor.last()
    while found and (key := bytes(cursor.key())).startswith(prefix):
        lsn = LSN_KEY.unpack(key[-8:])[0]
        if lsn < first_lsn:
            return None
        location = Location._make(LOCATION.unpack(cursor.value()))
        if kind is None or location.kind == kind:
            return lsn, location
        found = cursor.prev()
    return None
