"""Runs the cells of a sweep one after another, and survives: what is done stays done, what fails stops nothing else."""

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from runners.grid import Cell
from runners.manifest import DONE, FAILED, PENDING, RUNNING, Entry, Manifest, load, locked
from runners.settings import ConfigError

WELL, BROKEN, BAD_CONFIG = 0, 1, 2
BAR = 10


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a cell came to. Not `finished`: it must be run again before it counts."""

    text: str  # a few words for the display
    finished: bool = True
    broken: bool = False  # a guarantee was not kept
    remarks: tuple[str, ...] = ()  # such as the reasons why a measurement is not valid


class Progress:
    """The overall state as a line for each finished cell; `label` is for the running one's own live line."""

    def __init__(self, total: int, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.total = total
        self.finished = self.failed = 0
        self._quiet = quiet
        self._stream = stream if stream is not None else sys.stderr
        self._spent: list[float] = []

    def say(self, text: str) -> None:
        if not self._quiet:
            print(text, file=self._stream, flush=True)

    def ended(self, entry: Entry, text: str, remarks: Sequence[str] = ()) -> None:
        self.finished += 1
        self.failed += entry.state == FAILED or bool(entry.exit_code)
        if entry.seconds is not None:
            self._spent.append(entry.seconds)
        mark = "✓" if entry.state == DONE and not entry.exit_code else "✗"
        self.say(f"{mark} {short(entry)}: {text}")
        for remark in remarks:
            self.say(f"    {remark}")
        failed = f" · {self.failed} failed" if self.failed else ""
        self.say(f"  {self.bar()} {self.finished}/{self.total}{failed}{self.left()}")

    def bar(self) -> str:
        full = BAR * self.finished // max(1, self.total)
        return "█" * full + "░" * (BAR - full)

    def left(self) -> str:
        """The mean of this start's cells, for each cell that is not finished."""
        if not self._spent or self.finished >= self.total:
            return ""
        seconds = sum(self._spent) / len(self._spent) * (self.total - self.finished)
        return f" · {_duration(seconds)} left"

    def label(self, entry: Entry) -> str:
        return f"{self.bar()} {self.finished}/{self.total}{self.left()} · {short(entry)} ·"


@dataclass(kw_only=True)
class Sweep:
    """One start of a sweep.

    `check` raises `ConfigError` for a cell that cannot run and returns its key otherwise; it must start nothing.
    `measure` runs a cell into an empty directory, showing the label it is given.
    """

    directory: Path
    experiment: str
    scale: str
    command: str
    seed: int
    check: Callable[[tuple[str, ...]], str]
    measure: Callable[[Entry, Path, str], Result]
    force: bool = False
    quiet: bool = False
    stream: TextIO | None = None
    entries: list[Entry] = field(default_factory=list)

    def run(self, cells: Sequence[Cell]) -> int:
        """The exit code. `KeyboardInterrupt` comes out again after the state was written down."""
        keys, impossible = self._check_all(cells)
        if len(impossible) == len({cell.overrides for cell in cells}):
            raise ConfigError(
                f"no cell of {self.experiment} can run; the first one says: {next(iter(impossible.values()))}"
            )
        with locked(self.directory):
            manifest = Manifest(
                self.directory, self.experiment, self.scale, self.command, self.seed, load(self.directory)
            )
            known = {entry.id for entry in manifest.cells if entry.state == DONE}
            self.entries = manifest.plan(cells, keys, force=self.force)
            manifest.write()
            progress = self._progress(manifest, known)
            for entry in [entry for entry in self.entries if entry.state != DONE]:
                if tuple(entry.overrides) in impossible:
                    entry.state, entry.exit_code = FAILED, BAD_CONFIG
                    entry.message = impossible[tuple(entry.overrides)]
                    manifest.write()
                    progress.ended(entry, f"impossible: {entry.message}")
                else:
                    self._run_cell(entry, manifest, progress)
        return BROKEN if any(entry.exit_code for entry in self.entries) else WELL

    def _check_all(self, cells: Sequence[Cell]) -> tuple[Mapping[tuple[str, ...], str], dict[tuple[str, ...], str]]:
        """Keys of all cells, and the objections to those that cannot run; before anything starts."""
        found: dict[tuple[str, ...], str] = {}
        impossible: dict[tuple[str, ...], str] = {}
        for overrides in dict.fromkeys(cell.overrides for cell in cells):
            try:
                found[overrides] = self.check(overrides)
            except ConfigError as error:
                found[overrides], impossible[overrides] = "", str(error)
        return found, impossible

    def _progress(self, manifest: Manifest, known: set[str]) -> Progress:
        progress = Progress(len(self.entries), quiet=self.quiet, stream=self.stream)
        done = [entry for entry in self.entries if entry.state == DONE]
        progress.finished = len(done)
        progress.failed = sum(bool(entry.exit_code) for entry in done)
        progress.say(f"{self.experiment} ({self.scale}): {len(self.entries)} cells in {self.directory}")
        if done:
            progress.say(f"  {len(done)} are finished already and skipped; force=true repeats them")
        again = sum(entry.id in known for entry in self.entries if entry.state != DONE)
        if again and not self.force:
            progress.say(f"  {again} were finished under another configuration or code, or are gone; they run again")
        if others := len(manifest.cells) - len(self.entries):
            progress.say(f"  {others} cells of earlier starts are not part of this one and stay as they are")
        return progress

    def _run_cell(self, entry: Entry, manifest: Manifest, progress: Progress) -> None:
        directory = self.directory / entry.directory
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        entry.state = RUNNING
        manifest.write()
        began = time.monotonic()
        try:
            result = self.measure(entry, directory, progress.label(entry))
        except KeyboardInterrupt:
            entry.state, entry.message = PENDING, "interrupted"
            manifest.write()
            raise
        except Exception as error:  # whatever it was: it is this cell's, and the others go on
            result = Result(text=f"failed: {_first_line(error)}", finished=False)
        entry.seconds = round(time.monotonic() - began, 3)
        entry.state = DONE if result.finished else FAILED
        entry.exit_code = WELL if result.finished and not result.broken else BROKEN
        entry.message = "; ".join(result.remarks) if result.finished else result.text
        manifest.write()
        progress.ended(entry, result.text, result.remarks)


def short(entry: Entry) -> str:
    """A cell in few words: `q5 unsafe 20000 r0`."""
    values = [override.partition("=")[2] for override in entry.overrides]
    return " ".join([*values, f"r{entry.repetition}"])


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _first_line(error: BaseException) -> str:
    said = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
