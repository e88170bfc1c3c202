"""An experiment's grid: from axes, declared as data, to cells in the order in which they are run."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from runners.settings import ConfigError


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a sweep: what it changes, and which repetition it is."""

    overrides: tuple[str, ...]
    repetition: int

    @property
    def id(self) -> str:
        """Readable, and the name of the cell's directory: `query=q5,protocol=unsafe,rate=20000,r0`."""
        parts = [part.replace("/", "-").replace(" ", "") for part in self.overrides]
        return ",".join([*parts, f"r{self.repetition}"])


def expand(axes: Mapping[str, Any], overridden: Mapping[str, str], configs: Path) -> list[tuple[str, ...]]:
    """Every combination of the axes' values, each as a list of overrides. Raises `ConfigError`.

    An axis is a list of values (`rate: [1000, 2000]`); a pattern over the files of the config group of that name
    (`protocol: "*"`); a mapping from a value of an earlier axis to such a list (`rate: {q1: [1000], q5: [500]}`); or
    null, and then it is none. A value with a `=` is an override of its own, so an axis may have any name. Whoever sets
    on the command line what an axis sets (`overridden`, from key to value) gets that one value: the axis is left out.
    """
    combinations: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((), ())]  # overrides, and the values behind them
    for name, declared in axes.items():
        if declared is None or _sets(name, declared) & set(overridden):
            continue
        combinations = [
            ((*overrides, _override(name, value)), (*values, str(value)))
            for overrides, values in combinations
            for value in _values(name, declared, (*values, *overridden.values()), configs)
        ]
    return [overrides for overrides, _ in combinations]


def in_order(combinations: Sequence[tuple[str, ...]], repetitions: Any, seed: int) -> list[Cell]:
    """All cells of repetition 0 shuffled, then all of repetition 1, …: a sweep that is cut off covers the grid."""
    if isinstance(repetitions, bool) or not isinstance(repetitions, int) or repetitions < 1:
        raise ConfigError(f"experiment.repetitions must be a positive number, got {repetitions!r}")
    cells = []
    for repetition in range(repetitions):
        part = [Cell(overrides=overrides, repetition=repetition) for overrides in combinations]
        random.Random(f"{seed}/{repetition}").shuffle(part)
        cells += part
    return cells


def keys(overrides: Sequence[str]) -> dict[str, str]:
    """What a command line sets, and to what: `["query=q1", "+a.b=2"]` sets `query` and `a.b`."""
    pairs = (override.lstrip("+~").partition("=") for override in overrides)
    return {key: value for key, _, value in pairs}


def _override(name: str, value: Any) -> str:
    text = str(value)
    return text if "=" in text else f"{name}={text}"


def _sets(name: str, declared: Any) -> set[str]:
    """The configuration keys that an axis varies."""
    if isinstance(declared, str):
        return {name}
    lists = declared.values() if isinstance(declared, Mapping) else [declared]
    values = [value for part in lists if isinstance(part, Sequence) and not isinstance(part, str) for value in part]
    return set(keys([_override(name, value) for value in values])) or {name}


def _values(name: str, declared: Any, before: Sequence[str], configs: Path) -> list[Any]:
    if isinstance(declared, Mapping):
        fitting = [part for key, part in declared.items() if str(key) in before]
        if not fitting:
            raise ConfigError(
                f"experiment.axes.{name} has values for {', '.join(map(str, declared))} only, and none of them is among"
                f" {', '.join(before) or 'the values of earlier axes'}; set experiment.axes.{name}=[...]"
            )
        declared = fitting[0]
    if isinstance(declared, str):
        return _matching(name, declared, configs)
    if not isinstance(declared, Sequence) or not declared:
        raise ConfigError(f"experiment.axes.{name} must be a list of values, got {declared!r}; write [a,b]")
    if len(set(map(str, declared))) < len(declared):
        raise ConfigError(f"experiment.axes.{name} names a value twice: {', '.join(map(str, declared))}")
    return list(declared)


def _matching(name: str, pattern: str, configs: Path) -> list[str]:
    found = sorted(path.stem for path in (configs / name).glob("*.yaml"))
    fitting = [stem for stem in found if fnmatchcase(stem, pattern)]
    if not fitting:
        raise ConfigError(f"experiment.axes.{name}={pattern!r} fits none of {', '.join(found) or 'no files'}")
    return fitting
