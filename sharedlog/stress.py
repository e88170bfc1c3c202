"""A slow or a full disk, on purpose: what every process that appends to an embedded log shall suffer from now on.

Faults of the disk are part of what is studied, and nobody should need root or a disk of their own for them. The setting
is a small file in the log's directory that every process maps: looking at it costs an append nothing worth measuring,
and a change takes effect with the next append of any process.
"""

import mmap
import os
import struct
from pathlib import Path

from sharedlog.errors import LogError

_SETTING = struct.Struct("<II")  # delay of each append in ms; 1 if the disk plays full
_OFF = bytes(_SETTING.size)
_NAME = "STRESS"
_MAX_DELAY_MS = 60_000


class Stress:
    """The hand on the switch. It outlives its process: whoever sets a stress must clear it."""

    def __init__(self, path: str | Path) -> None:
        """`path` is the directory of a log that some process has opened before."""
        self._file = Path(path) / _NAME
        if not self._file.exists():
            raise LogError(f"{path} holds no log with a {_NAME} file; open the log once before it is put under stress")

    def set(self, *, append_delay_ms: int = 0, full: bool = False) -> None:
        """From now on every append begins `append_delay_ms` late; while `full`, it raises `LogFull` instead.

        Reads, increments and trims go on as always; neither ends with a trim, only with another call.
        """
        if not 0 <= append_delay_ms <= _MAX_DELAY_MS:
            raise ValueError(f"append_delay_ms is {append_delay_ms}; use 0 to {_MAX_DELAY_MS}")
        self._write(_SETTING.pack(append_delay_ms, full))

    def clear(self) -> None:
        self._write(_OFF)

    def _write(self, setting: bytes) -> None:
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, setting, 0)
        finally:
            os.close(descriptor)


class Suffering:
    """What an appending process sees of it."""

    def __init__(self, directory: Path) -> None:
        """To be called under the log's opening lock, because it may make the file."""
        file = directory / _NAME
        if not file.exists() or file.stat().st_size != _SETTING.size:
            file.write_bytes(_OFF)
        with open(file, "rb") as opened:
            self._map = mmap.mmap(opened.fileno(), _SETTING.size, prot=mmap.PROT_READ)

    def now(self) -> tuple[int, bool] | None:
        """(delay in ms, full); None, which is nearly always the answer, when nothing is set."""
        setting = self._map[:]
        if setting == _OFF:
            return None
        append_delay_ms, full = _SETTING.unpack(setting)
        return append_delay_ms, bool(full)

    def close(self) -> None:
        self._map.close()
