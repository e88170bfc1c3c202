"""Segment files: where the payloads of an embedded log lie.

Every process appends to a segment of its own, so writing payloads needs no lock, and what a killed process left behind
half-written is never reused: it lies beyond the bytes that the index calls committed, and goes when the file goes.
Committed bytes never change, so readers map the file and hand out views of it.
"""

import contextlib
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa

from sharedlog import frame
from sharedlog.frame import Frame, Location
from sharedlog.index import LOCATION, no_room, segment_key
from sharedlog.log import Record

_SUFFIX = ".segment"
_MAX_PIECES = 1020  # of one pwritev; Linux takes 1024
_MAX_MAPS = 512
_WORTH_RESERVING = 256 << 10
_MAX_AHEAD = 8 << 20  # bytes reserved beyond what is written


def segment_path(directory: Path, number: int) -> Path:
    return directory / f"{number:010d}{_SUFFIX}"


def segment_files(directory: Path) -> dict[int, Path]:
    """The segment files that are there, named by the index or not."""
    return {int(path.name.removesuffix(_SUFFIX)): path for path in directory.glob(f"*{_SUFFIX}")}


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Segment:
    """The file that this process appends to. `committed_bytes` follows the index; bytes after it are scratch."""

    def __init__(self, directory: Path, number: int, size: int, last_lsn: int) -> None:
        """Create the file at its full length, sparse, so that readers need to map it only once."""
        self.number = number
        self.key = segment_key(number)
        self.last_lsn = last_lsn  # as its row in the index says
        self.committed_bytes = 0
        self.size = size
        self._reserved = 0
        self._path = segment_path(directory, number)
        self._file: IO[bytes] = open(self._path, "xb", buffering=0)  # noqa: SIM115
        self._descriptor = self._file.fileno()
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            self._file.close()
            self._path.unlink(missing_ok=True)
            raise no_room(error, f"creating {self._path}") from error

    def write(self, frames: Sequence[Frame]) -> None:
        """Write frames after the committed bytes. They exist only when the index says so."""
        pieces: list[bytes | pa.Buffer] = []
        size = 0
        for one in frames:
            pieces += one.pieces
            size += one.padded_bytes
        at = self.committed_bytes
        if at + size > self._reserved:
            self._reserve(at + size)
        try:
            if len(pieces) <= _MAX_PIECES:
                self._write_all(pieces, at, size)
                return
            for start in range(0, len(pieces), _MAX_PIECES):
                some = pieces[start : start + _MAX_PIECES]
                some_bytes = sum(map(len, some))
                self._write_all(some, at, some_bytes)
                at += some_bytes
        except OSError as error:
            raise no_room(error, f"writing {size} bytes to {self._path}") from error

    def locations(self, frames: Sequence[Frame]) -> list[bytes]:
        """Where the frames that were just written lie, as index rows say it."""
        at, number = self.committed_bytes, self.number
        rows: list[bytes] = []
        for one in frames:
            rows.append(LOCATION.pack(number, at, one.length, one.body_offset, one.kind))
            at += one.padded_bytes
        return rows

    def renumber(self, frames: Sequence[Frame], first_lsn: int) -> None:
        """Correct the LSNs of frames that were just written with others."""
        at = self.committed_bytes
        for lsn, one in enumerate(frames, first_lsn):
            os.pwrite(self._descriptor, frame.LSN.pack(lsn), at + frame.LSN_OFFSET)
            at += one.padded_bytes

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        self._file.close()

    def _reserve(self, end: int) -> None:
        """Ask for disk blocks ahead: a write into reserved ones is a quarter cheaper than one that finds its own.

        As far ahead again as was written already, so that a process that writes little takes little.
        """
        if end < _WORTH_RESERVING:
            return
        until = min(max(2 * end, _WORTH_RESERVING), end + _MAX_AHEAD, self.size)
        with contextlib.suppress(OSError):  # On a full disk the write itself tells, as exactly as ever.
            os.posix_fallocate(self._descriptor, self._reserved, until - self._reserved)
        self._reserved = until

    def _write_all(self, pieces: list[bytes | pa.Buffer], at: int, size: int) -> None:
        written = os.pwritev(self._descriptor, pieces, at)
        if written < size:  # Short before a full disk or a file size limit: the rest tells which.
            rest = memoryview(b"".join(pieces))
            while written < size:
                written += os.pwrite(self._descriptor, rest[written:], at + written)


class SegmentMaps:
    """Segments mapped for reading. A dropped map lives on until the last body that views it is gone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._maps: dict[int, tuple[memoryview, pa.Buffer, str]] = {}

    def record(self, lsn: int, location: Location) -> Record:
        """Raises `FileNotFoundError` when a trim has removed the file meanwhile, and `Corrupted`."""
        mapped = self._maps.get(location.segment)
        if mapped is None:
            mapped = self._map(location.segment)
        view, buffer, path = mapped
        return frame.record(view, buffer, location, lsn, path)

    def drop(self, gone: Callable[[int], bool]) -> None:
        """Give up the maps of segments that are `gone`: a mapped file keeps its disk space."""
        for number in [number for number in self._maps if gone(number)]:
            del self._maps[number]

    def _map(self, number: int) -> tuple[memoryview, pa.Buffer, str]:
        path = segment_path(self._directory, number)
        with open(path, "rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
        while len(self._maps) >= _MAX_MAPS:
            del self._maps[next(iter(self._maps))]
        self._maps[number] = mapped = (memoryview(mapping), pa.py_buffer(mapping), str(path))
        return mapped
