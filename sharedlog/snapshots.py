"""Snapshots as files: written aside, then renamed, so that a snapshot is whole or absent whenever a process dies."""

import itertools
import mmap
import os
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
from fastcrc.crc32 import iscsi as crc32c

from sharedlog.errors import Corrupted, InvalidEntry, UnknownFormat
from sharedlog.index import no_room
from sharedlog.log import SnapshotStore
from sharedlog.segments import sync_directory

_SUFFIX = ".snapshot"
_MAX_NAME_BYTES = 255
_FORMAT_VERSION = 1
# magic, format version, crc32c of the data, its length; padded so that the data begins at a multiple of 64
_HEAD = struct.Struct("<4sIIQ44x")
_MAGIC = b"TMsn"
_numbers = itertools.count()


class FileSnapshotStore(SnapshotStore):
    """With `sync`, a snapshot that `put` returned from survives a power cut too."""

    def __init__(self, directory: Path, *, sync: bool) -> None:
        self._directory = directory
        self._sync = sync
        directory.mkdir(parents=True, exist_ok=True)
        self._sweep()

    def put(self, key: str, parts: Sequence[pa.Buffer | bytes]) -> None:
        path = self._path(key)
        checksum = length = 0
        for part in parts:
            checksum = crc32c(part, checksum) if len(part) else checksum
            length += len(part)
        temporary = self._directory / _temporary_name()
        try:
            with open(temporary, "xb") as file:
                file.write(_HEAD.pack(_MAGIC, _FORMAT_VERSION, checksum, length))
                for part in parts:
                    file.write(part)
                file.flush()
                if self._sync:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
            if self._sync:
                sync_directory(self._directory)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise no_room(error, f"writing snapshot {key!r} of {length} bytes to {path}") from error

    def get(self, key: str) -> pa.Buffer | None:
        """The snapshot's bytes as a view of its file; valid even after it is deleted or replaced."""
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < _HEAD.size:
                    raise Corrupted(f"snapshot {key!r} in {path} has {size} bytes, less than its head; {_ADVICE}")
                mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
        except FileNotFoundError:
            return None
        magic, version, checksum, length = _HEAD.unpack_from(mapping)
        if magic != _MAGIC or version != _FORMAT_VERSION:
            raise UnknownFormat(
                f"snapshot {key!r} in {path} has format {magic!r} {version}; this code reads {_MAGIC!r}"
                f" {_FORMAT_VERSION}: use the release that wrote it, or delete the snapshot"
            )
        data = pa.py_buffer(mapping).slice(_HEAD.size)
        if len(data) != length or crc32c(data) != checksum:
            raise Corrupted(f"snapshot {key!r} in {path} does not match its checksum; {_ADVICE}")
        return data

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)
        if self._sync:
            sync_directory(self._directory)

    def list(self, prefix: str = "") -> list[str]:
        keys = (unquote(name.removesuffix(_SUFFIX)) for name in os.listdir(self._directory) if name.endswith(_SUFFIX))
        return sorted(key for key in keys if key.startswith(prefix))

    def _path(self, key: str) -> Path:
        name = quote(key, safe="") + _SUFFIX
        if not key or len(name) > _MAX_NAME_BYTES:
            raise InvalidEntry(
                f"snapshot key {key[:40]!r} makes a file name of {len(name)} bytes; use 1 to"
                f" {_MAX_NAME_BYTES - len(_SUFFIX)} bytes, where all but letters, digits and _.-~ count three"
            )
        return self._directory / name

    def _sweep(self) -> None:
        """Remove what processes left behind that died while writing."""
        for path in self._directory.glob(".new-*"):
            _, pid, started, *_ = path.name.split("-")
            if _start_time(int(pid)) != started:
                path.unlink(missing_ok=True)


def _temporary_name() -> str:
    """Names its process by pid and start time, because pids are used again."""
    pid = os.getpid()
    return f".new-{pid}-{_start_time(pid)}-{threading.get_ident()}-{next(_numbers)}"


def _start_time(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat.rpartition(")")[2].split()[19]


_ADVICE = "delete it and recover from an older one or from the log"
