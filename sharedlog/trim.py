"""Trimming an embedded log: the cut first, then the cleaning behind it.

The cut is one small transaction; from then on nobody reads below it. Cleaning takes index rows away in short batches,
because all writers wait while one runs, and drops whole segment files. A process killed in between leaves rubbish
that the next trim by anybody takes along.
"""

import contextlib
from collections.abc import Callable
from typing import TypeVar

import lmdb

from sharedlog.core import Core
from sharedlog.durability import Syncer
from sharedlog.errors import LogFull
from sharedlog.index import HEAD_KEY, head_of, segment_key, segment_of, segments, stale_keys
from sharedlog.segments import segment_files

_ROWS_PER_BATCH = 500
_ENLARGEMENTS = 8
_T = TypeVar("_T")


def trim(core: Core, before: int, syncer: Syncer | None) -> None:
    """With group durability no file goes before a recovery point that no longer names it."""
    first_lsn = _with_room(core, lambda: _cut(core, before))
    while _with_room(core, lambda: _drop_rows(core, first_lsn)):
        pass
    with syncer.exclusive() if syncer else contextlib.nullcontext():
        _with_room(core, lambda: _drop_segments(core, first_lsn))
    # Rows come before their files and go before them, so a file that was there before the look and has no row is
    # rubbish, whoever left it.
    files = segment_files(core.segments_path)
    with core.mutex, core.index.read() as txn:
        rubbish = [path for number, path in files.items() if segment_of(txn, number) is None]
    if rubbish:
        if syncer:
            syncer.checkpoint()
        for path in rubbish:
            path.unlink(missing_ok=True)
    core.head()  # lets go of this process's maps of them


def _cut(core: Core, before: int) -> int:
    with core.mutex, core.index.write() as txn:
        core.index.env.reader_check()
        head = head_of(txn)
        first_lsn = max(head.first_lsn, min(before, head.next_lsn))
        if first_lsn != head.first_lsn:
            txn.put(HEAD_KEY, head._replace(first_lsn=first_lsn).pack())
    return first_lsn


def _drop_rows(core: Core, first_lsn: int) -> bool:
    """One batch; False when nothing is left to drop."""
    with core.mutex:
        with core.index.read() as txn:
            stale = stale_keys(txn, first_lsn, _ROWS_PER_BATCH)
        if stale:
            with core.index.write() as txn:
                for key in stale:
                    txn.delete(key)
    return bool(stale)


def _drop_segments(core: Core, first_lsn: int) -> bool:
    with core.mutex:
        with core.index.read() as txn:
            numbers = [number for number, row in segments(txn) if row.last_lsn < first_lsn]
        if not numbers:
            return False
        with core.index.write() as txn:
            head = head_of(txn)
            used_bytes = head.used_bytes
            for number in numbers:
                row = segment_of(txn, number)
                if row is not None and row.last_lsn < first_lsn:  # Its writer may have appended since the look.
                    txn.delete(segment_key(number))
                    used_bytes -= row.committed_bytes
            txn.put(HEAD_KEY, head._replace(used_bytes=used_bytes).pack())
    return True


def _with_room(core: Core, work: Callable[[], _T]) -> _T:
    """Deleting copies pages too, so on a full map a trim gets a little more room instead of failing."""
    for _ in range(_ENLARGEMENTS):
        try:
            return work()
        except LogFull as error:
            if not isinstance(error.__cause__, lmdb.MapFullError):
                raise
            with core.mutex:
                core.index.enlarge()
    return work()
