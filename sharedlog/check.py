"""Does an embedded log hold what its index says, and nothing else? `python -m sharedlog.check DIRECTORY`

Reads every segment from its beginning, without the index, and compares what it finds with every row of the index. The
kill tests call it after every kill. Others may go on appending and trimming meanwhile.
"""

import argparse
import mmap
import os
import signal
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb

from sharedlog import frame, index
from sharedlog.embedded import borrowed
from sharedlog.errors import Corrupted, LogError
from sharedlog.frame import Location
from sharedlog.index import Head, SegmentRow
from sharedlog.segments import segment_files, segment_path

_MOST_PROBLEMS = 100


@dataclass(frozen=True, kw_only=True)
class Report:
    """`problems` is empty for a sound log. `leftovers` are harmless traces of killed processes; a trim takes them."""

    head: Head
    entries: int
    rows: int
    segments: int
    problems: tuple[str, ...]
    leftovers: tuple[str, ...]


def check(path: str | Path) -> Report:
    """Compare index and segments of one snapshot of the log. Raises `UnknownFormat` for what is no log."""
    with borrowed(path) as core:
        while True:
            files = segment_files(core.segments_path)
            with core.mutex, core.index.read() as txn:
                named = dict(index.segments(txn))
                report = _compare(txn, core.segments_path, named, files)
            # A trim meanwhile takes files away that the snapshot still names: then only a new look can tell. Rows go
            # before files, so if all rows are still there no trim explains the problem.
            with core.mutex, core.index.read() as txn:
                if not report.problems or named.keys() <= dict(index.segments(txn)).keys():
                    return report


def _compare(txn: lmdb.Transaction, directory: Path, segments: dict[int, SegmentRow], files: dict[int, Path]) -> Report:
    head = index.head_of(txn)
    problems: list[str] = []
    found: dict[tuple[str, int], Location] = {}
    lsns: set[int] = set()
    for number, row in segments.items():
        try:
            _scan(segment_path(directory, number), number, row, head, found, lsns)
        except Corrupted as error:
            problems.append(str(error))
    missing = sorted(set(range(head.first_lsn, head.next_lsn)) - lsns)
    problems += [f"LSN {lsn} is in no segment" for lsn in missing]
    used_bytes = sum(row.committed_bytes for row in segments.values())
    if used_bytes != head.used_bytes:
        problems.append(f"segments hold {used_bytes} committed bytes and the head says {head.used_bytes}")
    rows = stale = 0
    for tag, lsn, location in index.rows(txn):
        rows += 1
        expected = found.pop((tag, lsn), None)
        if lsn < head.first_lsn:
            stale += 1
        elif expected is None:
            problems.append(f"LSN {lsn} under tag {tag!r} is in the index and in no segment")
        elif expected != location:
            problems.append(f"LSN {lsn} under tag {tag!r} is indexed at {location} and lies at {expected}")
    problems += [f"LSN {lsn} is not indexed under its tag {tag!r}" for tag, lsn in found if lsn >= head.first_lsn]
    leftovers = [
        f"{path.name}: no longer named by the index" for number, path in files.items() if number not in segments
    ]
    if stale:
        leftovers.append(f"{stale} index rows below the trim point")
    return Report(
        head=head,
        entries=len(lsns),
        rows=rows,
        segments=len(segments),
        problems=tuple(problems[:_MOST_PROBLEMS]),
        leftovers=tuple(leftovers),
    )


def _scan(
    path: Path,
    number: int,
    row: SegmentRow,
    head: Head,
    found: dict[tuple[str, int], Location],
    lsns: set[int],
) -> None:
    """Add what a segment's committed bytes hold. Raises `Corrupted` at the first contradiction."""
    if not row.committed_bytes:
        return  # its writer died or was trimmed before its first append; the file may not even exist
    try:
        with open(path, "rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    except (FileNotFoundError, ValueError) as error:
        raise Corrupted(f"{path} is missing or empty and the index counts on it: {error}") from error
    if len(view) < row.committed_bytes:
        raise Corrupted(f"{path} has {len(view)} bytes and {row.committed_bytes} were committed")
    last = 0
    for lsn, location, tags in frame.scan(view[: row.committed_bytes], number, str(path)):
        if not last < lsn < head.next_lsn or lsn in lsns:
            raise Corrupted(f"LSN {lsn} in {path} at {location.offset} is out of order, not committed or there twice")
        last = lsn
        if lsn >= head.first_lsn:
            lsns.add(lsn)
        for tag in tags:
            found[tag, lsn] = location
    if last != row.last_lsn:
        raise Corrupted(f"{path} ends with LSN {last} and the index says {row.last_lsn}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 for a sound log, 1 for a damaged one."""
    parser = argparse.ArgumentParser(description="Compare an embedded log's index with its segments.")
    parser.add_argument("directory")
    return _say(parser.parse_args(arguments).directory)


def _from_afar() -> int:
    """LMDB trusts its file: pages that were tampered with can kill whoever reads them. So somebody else reads."""
    reader = os.fork()
    if not reader:
        try:
            code = main()
        except SystemExit as ending:  # from argparse
            code = int(str(ending.code or 0))
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1])
    if code < 0:
        print(f"the index is damaged: reading it ended a process with {signal.Signals(-code).name}", file=sys.stderr)
    return abs(code)


def _say(directory: str) -> int:
    try:
        report = check(directory)
    except (lmdb.Error, struct.error, OSError, UnicodeDecodeError) as error:
        print(f"{directory}: damaged or unreadable: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    except LogError as error:
        print(f"{directory}: {error}", file=sys.stderr, flush=True)
        return 1
    print(
        f"{directory}: LSN {report.head.first_lsn} to {report.head.next_lsn - 1}, {report.entries} entries,"
        f" {report.rows} index rows, {report.segments} segments"
    )
    for leftover in report.leftovers:
        print(f"  leftover: {leftover}")
    for problem in report.problems:
        print(f"  problem: {problem}")
    print("damaged" if report.problems else "sound", flush=True)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(min(2, _from_afar()))
