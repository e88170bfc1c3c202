"""What can be seen of a role from outside, without asking it: a few numbers in a mapped file on its host.

A role writes them as it goes, at the cost of a few stores to memory. They are there while it is stopped and after it
was killed, so an injector can see what it is about to destroy and can prove afterwards what it destroyed.
"""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from protocols.base import Phase, Vitals

FIELDS = (
    "pid", "born_us", "begun_us", "restored_us", "beat_us", "phase", "entries", "bytes", "commits", "watermark",
    "entries_read", "changes_applied",
)  # fmt: skip
PLACE = {name: place for place, name in enumerate(FIELDS)}
POSITIONS = len(FIELDS)  # what follows are read positions, one for each input in the order of the plan
SIZE = 32
DISARMED = -1

_born_us = 0


def note_birth() -> None:
    """Called in every process that Spark's daemon forks."""
    global _born_us
    _born_us = time.time_ns() // 1000


class SharedVitals(Vitals):
    """The role's side."""

    def __init__(self, directory: Path, role: str, instance: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._arm = _mapped(_arm_file(directory, role), 1, DISARMED)
        now_us = time.time_ns() // 1000
        partial = directory / f".{_plain(role)}@{instance}.{os.getpid()}"
        self._cells = _mapped(partial, SIZE, 0)
        for name, value in (("pid", os.getpid()), ("born_us", _born_us or now_us), ("begun_us", now_us)):
            self._cells[PLACE[name]] = value
        self._cells[PLACE["phase"]] = Phase.RECOVERY
        partial.rename(directory / f"{_plain(role)}@{instance}")  # complete from the first look on

    def enter(self, phase: Phase) -> None:
        """An armed role stops here by itself: so the one who armed it finds it exactly there, and kills it or not."""
        self._cells[PLACE["phase"]] = phase
        if self._arm[0] == phase:
            self._arm[0] = DISARMED
            os.kill(os.getpid(), signal.SIGSTOP)

    def took(self, entries: int, size: int) -> None:
        self._cells[PLACE["entries"]] += entries
        self._cells[PLACE["bytes"]] += size

    def recovered(self) -> None:
        self._cells[PLACE["entries"] : PLACE["bytes"] + 1] = 0
        self._cells[PLACE["phase"]] = Phase.WORK

    def committed(self) -> None:
        self._cells[PLACE["commits"]] += 1
        self.recovered()

    def beat(self, now_us: int, watermark: int, positions: Sequence[int]) -> None:
        cells = self._cells
        cells[PLACE["beat_us"]] = now_us
        cells[PLACE["watermark"]] = watermark
        for place, position in enumerate(positions[: SIZE - POSITIONS]):
            cells[POSITIONS + place] = position

    def restored(self, now_us: int, entries_read: int, changes_applied: int) -> None:
        cells = self._cells
        cells[PLACE["entries_read"]], cells[PLACE["changes_applied"]] = entries_read, changes_applied
        cells[PLACE["phase"]] = Phase.WORK
        cells[PLACE["restored_us"]] = now_us


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One instance as it was seen at one moment. Times are 0 where something has not happened yet."""

    role: str
    instance: int
    pid: int
    born_us: int
    begun_us: int
    restored_us: int
    beat_us: int
    phase: int
    entries: int
    bytes: int
    commits: int
    watermark: int
    entries_read: int
    changes_applied: int
    positions: tuple[int, ...]


class Ward:
    """Everybody else's side: all instances that ever began on this host."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        # One map for each role, of the instance looked at last: a map is an open file, and roles may start very often.
        self._cells: dict[str, tuple[int, npt.NDArray[np.int64]]] = {}
        self._arms: dict[str, npt.NDArray[np.int64]] = {}

    def instances(self, role: str) -> list[int]:
        """Of the processes that ran this role, in order."""
        prefix = f"{_plain(role)}@"
        return sorted(int(name[len(prefix) :]) for name in os.listdir(self._directory) if name.startswith(prefix))

    def newest(self, role: str) -> Seen | None:
        known = self.instances(role)
        return self.look(role, known[-1]) if known else None

    def look(self, role: str, instance: int) -> Seen:
        known = self._cells.get(role)
        if known is None or known[0] != instance:
            file = self._directory / f"{_plain(role)}@{instance}"
            known = self._cells[role] = instance, np.memmap(file, np.int64, "r")
        cells = known[1].tolist()
        return Seen(
            role=role, instance=instance, positions=tuple(cells[POSITIONS:]), **dict(zip(FIELDS, cells, strict=False))
        )

    def arm(self, role: str, phase: Phase) -> None:
        """Whoever next plays this role stops on entering the phase."""
        self._cell(role)[0] = phase

    def disarm(self, role: str) -> None:
        self._cell(role)[0] = DISARMED

    def _cell(self, role: str) -> npt.NDArray[np.int64]:
        if role not in self._arms:
            self._arms[role] = _mapped(_arm_file(self._directory, role), 1, DISARMED)
        return self._arms[role]


def _mapped(path: Path, size: int, value: int) -> npt.NDArray[np.int64]:
    """The file's numbers; a new file begins with `value` everywhere."""
    try:
        with path.open("xb") as file:
            file.write(np.full(size, value, np.int64).tobytes())
    except FileExistsError:
        while path.stat().st_size < 8 * size:  # another process is just making it
            time.sleep(0.001)
    return np.memmap(path, np.int64, "r+", shape=(size,))


def _arm_file(directory: Path, role: str) -> Path:
    return directory / f"arm.{_plain(role)}"


def _plain(role: str) -> str:
    return role.replace("/", ".")
