"""A sweep's memory: which cells there are and how far each is. Written whole at every change, so no kill harms it."""

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runners.grid import Cell
from runners.rundir import RunDirectory
from runners.settings import ConfigError

NAME = "manifest.json"
PENDING, RUNNING, DONE, FAILED = "pending", "running", "done", "failed"
STATES = (PENDING, RUNNING, DONE, FAILED)


@dataclass(kw_only=True)
class Entry:
    """A cell and its state. `done` with exit code 1: it was measured to its end, and a guarantee was broken."""

    id: str
    overrides: list[str]
    repetition: int
    key: str
    directory: str
    state: str = PENDING
    exit_code: int | None = None
    message: str = ""
    seconds: float | None = None  # how long it took, start and verification included

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state {self.state!r} is none of {', '.join(STATES)}")


@dataclass
class Manifest:
    """The cells of a sweep in the order in which they are run."""

    directory: Path
    experiment: str
    scale: str
    command: str
    seed: int
    cells: list[Entry] = field(default_factory=list)

    def plan(self, cells: Sequence[Cell], keys: Mapping[tuple[str, ...], str], *, force: bool) -> list[Entry]:
        """Take up the cells of this start, and return them.

        What is done already under the same key, and still there, stays done unless forced; everything else begins anew.
        Cells of earlier starts that this one does not have are kept at the end, as they are.
        """
        before = {entry.id: entry for entry in self.cells}
        mine = []
        for cell in cells:
            old, key = before.pop(cell.id, None), keys[cell.overrides]
            if old is not None and not force and old.state == DONE and old.key == key and self._holds(old):
                mine.append(old)
            else:
                mine.append(
                    Entry(id=cell.id, overrides=list(cell.overrides), repetition=cell.repetition, key=key,
                          directory=f"cells/{cell.id}")
                )  # fmt: skip
        self.cells = [*mine, *before.values()]
        return mine

    def _holds(self, entry: Entry) -> bool:
        return (self.directory / entry.directory).is_dir()

    def write(self) -> None:
        content = {name: getattr(self, name) for name in ("experiment", "scale", "command", "seed")}
        RunDirectory(self.directory).write_json(NAME, content | {"cells": [asdict(entry) for entry in self.cells]})


def load(directory: Path) -> list[Entry]:
    """The cells of an earlier start; none if there was none. Raises `ConfigError` when the file is damaged."""
    path = directory / NAME
    if not path.exists():
        return []
    try:
        return [Entry(**cell) for cell in json.loads(path.read_text())["cells"]]
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path} is damaged ({str(error).splitlines()[0]}); move it away to start the sweep anew,"
            " or set hydra.run.dir to another directory"
        ) from error


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One sweep at a time in a directory. The lock goes with its process, however that ends."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another sweep is running in {directory}; wait for it, or set hydra.run.dir") from error
        yield


def key_of(config: Mapping[str, Any], code: str) -> str:
    """Equal for two cells that would measure the same thing: one resolved configuration, one version of the code."""
    return hashlib.sha256(f"{code}\n{json.dumps(config, sort_keys=True, default=str)}".encode()).hexdigest()[:16]
