"""The index of an embedded log: one LMDB tree that says which entries exist and where they lie.

    0x00                          head: next LSN, first LSN, next segment, bytes in segments
    0x01 segment                  last LSN and committed bytes of a segment
    0x02 key                      a metadata counter
    0x03 length tag LSN           where the entry lies (one row per tag and entry)

What a committed LMDB transaction wrote here exists; bytes that no row names do not. Numbers in keys are big-endian, so
that LMDB's order is theirs.
"""

import contextlib
import errno
import struct
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import lmdb

from sharedlog.errors import Corrupted, LogError, LogFull
from sharedlog.frame import Location
from sharedlog.turn import Turn

HEAD_KEY = b"\x00"
SEGMENT_PREFIX = b"\x01"
COUNTER_PREFIX = b"\x02"
ENTRY_PREFIX = b"\x03"
LSN_KEY = struct.Struct(">Q")
LARGEST_LSN = b"\xff" * 8
LOCATION = struct.Struct("<IIIHB")
COUNTER = struct.Struct("<Q")
HEAD = struct.Struct("<QQIQ")
_SEGMENT_KEY = struct.Struct(">cI")
SEGMENT = struct.Struct("<QQ")
_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
_MAX_READERS = 1024


class Head(NamedTuple):
    """The log as a whole. `used_bytes` is the sum of all segments' committed bytes."""

    next_lsn: int = 1
    first_lsn: int = 1
    next_segment: int = 1
    used_bytes: int = 0

    def pack(self) -> bytes:
        return HEAD.pack(*self)


class SegmentRow(NamedTuple):
    """One writer's file. A trim may drop it when `last_lsn` is below the trim point, even if it is in use."""

    last_lsn: int
    committed_bytes: int

    def pack(self) -> bytes:
        return SEGMENT.pack(*self)


def segment_key(number: int) -> bytes:
    return _SEGMENT_KEY.pack(SEGMENT_PREFIX, number)


def entry_prefix(tag: bytes) -> bytes:
    return ENTRY_PREFIX + bytes((len(tag),)) + tag


def no_room(error: OSError, what: str) -> LogError | OSError:
    """`LogFull` if `error` says that the disk is full; otherwise `error` itself, to be raised again."""
    if error.errno in _NO_ROOM:
        return LogFull(f"{what}: {error.strerror}; trim the log or free disk space, then retry")
    return error


class Write:
    """A write transaction as a context manager. One object for all of them: every append enters one, one at a time."""

    __slots__ = ("_index", "_txn")

    def __init__(self, index: "Index") -> None:
        self._index = index

    def __enter__(self) -> lmdb.Transaction:
        self._index.queue.take()
        try:
            self._txn = self._index.begin_write()
        except BaseException as error:
            self._index.queue.leave()
            if isinstance(error, lmdb.Error):
                raise self._index.translation(error, "writing") from error
            raise
        return self._txn

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._txn.commit()
            else:
                self._txn.abort()
        except lmdb.Error as failed:
            raise self._index.translation(failed, "writing") from failed
        finally:
            self._index.queue.leave()
        if isinstance(error, lmdb.Error):
            raise self._index.translation(error, "writing") from error


class Index:
    """One process's hold of the LMDB environment. Callers serialise their transactions, but for `copy`."""

    def __init__(self, directory: Path, *, map_bytes: int, sync: bool) -> None:
        self._file = directory / "data.mdb"
        self._resize = threading.Lock()  # the map must not move while `copy` reads it
        directory.mkdir(parents=True, exist_ok=True)
        self._latest_read: weakref.ref[lmdb.Transaction] | None = None
        self.queue = Turn(directory / "turn")
        self._write = Write(self)
        # LMDB's mutexes are taken in turn only. Opening begins a write transaction; the first read takes a slot in the
        # table of readers, which this process then keeps.
        with self.turn(), self.translated("opening"):
            # Without `sync`, commits are in the page cache: they survive this process, not a power cut.
            self.env = lmdb.open(
                str(directory),
                map_size=map_bytes,
                sync=sync,
                metasync=sync,
                max_readers=_MAX_READERS,
                max_spare_txns=1,  # By default every single read would take a slot, and LMDB's mutex, anew.
                readahead=False,
                meminit=False,
            )
        with self.write() as txn:
            self.env.reader_check()
            if txn.get(HEAD_KEY) is None:
                txn.put(HEAD_KEY, Head().pack())
        self.read().abort()

    def read(self) -> lmdb.Transaction:
        """A snapshot, to be used as a context manager and left soon: an old one keeps LMDB from reusing pages.

        The binding keeps the reader's slot of one ended transaction, and hands it to the next, once nobody refers to
        the transaction object any more. While somebody does, a traceback perhaps, the next one needs a slot of its
        own, and so LMDB's mutex of readers: in turn.
        """
        txn: lmdb.Transaction
        latest = self._latest_read
        if latest is not None and latest() is None:
            try:
                txn = self.env.begin()
            except lmdb.MapResizedError:
                self._set_map_bytes(0)  # another process enlarged the map; adopt its size, and take a new slot
                txn = self._begin_read_in_turn()
            except lmdb.BadRslotError:
                txn = self._begin_read_in_turn()  # a forked child closed what it inherited, and with it our kept slot
        else:
            txn = self._begin_read_in_turn()
        self._latest_read = weakref.ref(txn)
        return txn

    def write(self) -> "Write":
        """The commit point: all of the block or nothing. All writers of all processes wait meanwhile, in turn."""
        return self._write

    def begin_write(self) -> lmdb.Transaction:
        """To be called in `turn`."""
        try:
            return self.env.begin(write=True)
        except lmdb.MapResizedError:
            self._set_map_bytes(0)
            return self.env.begin(write=True)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """While no other process is at one of LMDB's mutexes. Threads of this process are kept apart by the caller."""
        self.queue.take()
        try:
            yield
        finally:
            self.queue.leave()

    def enlarge(self) -> None:
        """Room for a trim's own page copies when the map is full; other processes adopt it by themselves."""
        map_bytes = self.env.info()["map_size"]
        self._set_map_bytes(map_bytes + max(map_bytes // 8, 1 << 20))

    def copy(self, descriptor: int) -> None:
        """Write a compact copy of a snapshot. To be called in `turn`."""
        with self._resize, self.translated("copying"):
            self.env.copyfd(descriptor, compact=True)

    def close(self) -> None:
        self.env.close()
        self.queue.close()

    @contextlib.contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Turn LMDB's errors into the log's."""
        try:
            yield
        except lmdb.Error as error:
            raise self.translation(error, doing) from error

    def translation(self, error: lmdb.Error, doing: str) -> LogError:
        what = f"{doing} {self._file}"
        if isinstance(error, lmdb.MapFullError):
            self.env.reader_check()  # A reader that died inside a snapshot keeps pages from being used again.
            return LogFull(f"{what}: the index map is full; trim the log or raise map_bytes")
        if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError | lmdb.PanicError):
            return Corrupted(f"{what}: {error}; the index is damaged, remove the log's directory")
        if isinstance(error, lmdb.ReadersFullError):
            return LogError(f"{what}: more than {_MAX_READERS} readers; use fewer processes")
        if isinstance(error, lmdb.VersionMismatchError):
            return LogError(f"{what}: {error}; install the lmdb release that wrote it")
        # LMDB reports a short write, which is how a full disk or a file size limit first shows, as EIO.
        if getattr(error, "code", None) in (*_NO_ROOM, errno.EIO) or "No space left" in str(error):
            return LogFull(f"{what}: {error}; trim the log or free disk space, then retry")
        return LogError(f"{what}: {error}")

    def _begin_read_in_turn(self) -> lmdb.Transaction:
        with contextlib.nullcontext() if self.queue.held else self.turn():
            try:
                return self.env.begin()
            except lmdb.MapResizedError:
                self._set_map_bytes(0)
                return self.env.begin()

    def _set_map_bytes(self, map_bytes: int) -> None:
        with self._resize:
            self.env.set_mapsize(map_bytes)


def head_of(txn: lmdb.Transaction) -> Head:
    return Head._make(HEAD.unpack(txn.get(HEAD_KEY, b"")))


def segment_of(txn: lmdb.Transaction, number: int) -> SegmentRow | None:
    value = txn.get(segment_key(number))
    return None if value is None else SegmentRow._make(SEGMENT.unpack(value))


def counter_of(txn: lmdb.Transaction, key: bytes) -> int:
    value = txn.get(COUNTER_PREFIX + key)
    return 0 if value is None else int(COUNTER.unpack(value)[0])


def segments(txn: lmdb.Transaction) -> Iterator[tuple[int, SegmentRow]]:
    """All segments in the order of their numbers."""
    cursor = txn.cursor()
    if cursor.set_range(SEGMENT_PREFIX):
        for key, value in cursor.iternext():
            if not bytes(key).startswith(SEGMENT_PREFIX):
                return
            yield _SEGMENT_KEY.unpack(key)[1], SegmentRow._make(SEGMENT.unpack(value))


def rows(txn: lmdb.Transaction) -> Iterator[tuple[str, int, Location]]:
    """All entry rows: (tag, LSN, location)."""
    cursor = txn.cursor()
    if cursor.set_range(ENTRY_PREFIX):
        for key, value in cursor.iternext():
            yield bytes(key[2:-8]).decode(), LSN_KEY.unpack(key[-8:])[0], Location._make(LOCATION.unpack(value))


def stale_keys(txn: lmdb.Transaction, first_lsn: int, limit: int) -> list[bytes]:
    """Up to `limit` keys of entry rows below `first_lsn`. Jumps from tag to tag, so it is cheap when there are none."""
    cursor = txn.cursor()
    stale: list[bytes] = []
    found = cursor.set_range(ENTRY_PREFIX)
    while found and len(stale) < limit:
        key = bytes(cursor.key())
        if LSN_KEY.unpack(key[-8:])[0] < first_lsn:
            stale.append(key)
            found = cursor.next()
        else:
            found = cursor.set_range(key[:-8] + LARGEST_LSN)
    return stale
