"""Rule 7 of the method: compared runs differ in nothing but the protocol. Their resolved configurations say whether."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.load import ASIDE, REPETITION_KEYS, Results, swept

_MISSING = "(none)"
_KEYS = ("series", "rate_offered", "failure", "repetition")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting that is not the same in all runs of a comparison, with its values by protocol."""

    where: str
    setting: str
    values: Mapping[str, str]


def protocol_settings(results: Results) -> tuple[list[str], dict[str, dict[str, str]]]:
    """What the protocols were configured with: protocols in order, and setting → protocol → all values used."""
    found: dict[str, dict[str, set[str]]] = {}
    protocols = sorted(set(results.frame["protocol"])) if len(results.frame) else []
    for row in results.frame.to_dict("records"):
        for name, value in results.configs[row["directory"]].items():
            if name.startswith("protocol."):
                found.setdefault(name, {}).setdefault(row["protocol"], set()).add(str(value))
    table = {
        name: {protocol: ", ".join(_sorted(values.get(protocol, {"–"}))) for protocol in protocols}
        for name, values in sorted(found.items())
    }
    return protocols, table


def unexpected(results: Results) -> list[Difference]:
    """All settings but the protocol's that differ between runs of one series, rate, failure and repetition.

    What a manifest sweeps is a comparison of its own for each value. Input and code version count as settings.
    """
    if results.frame.empty:
        return []
    known = {name for config in results.configs.values() for name in config}
    axes = {name for name in swept(results.manifests) & known if not name.startswith("protocol")}
    found: dict[tuple[str, str], Difference] = {}
    for key, group in _comparisons(results, axes):
        settings = {row["directory"]: _settings(results, row) for row in group.to_dict("records")}
        for name in sorted({name for each in settings.values() for name in each}):
            if name in axes:
                continue
            values: dict[str, set[str]] = {}
            for row in group.to_dict("records"):
                values.setdefault(row["protocol"], set()).add(settings[row["directory"]].get(name, _MISSING))
            if len({value for each in values.values() for value in each}) > 1:
                said = {protocol: ", ".join(_sorted(each)) for protocol, each in values.items()}
                found.setdefault((key, name), Difference(where=key, setting=name, values=said))
    return list(found.values())


def _comparisons(results: Results, names: Iterable[str]) -> Iterable[tuple[str, pd.DataFrame]]:
    """Groups of runs that are compared with each other, by name; repetitions are compared one by one."""
    runs = results.frame
    axes = [
        pd.Series([f"{name}={results.configs[path].get(name)}" for path in runs["directory"]], index=runs.index)
        for name in sorted(names)
    ]
    for key, group in runs.groupby([*_KEYS, *axes], dropna=False):
        series, rate, failure, _, *rest = key
        yield ", ".join([str(series), f"{rate:,}/s", f"failure {failure}", *map(str, rest)]), group


def _settings(results: Results, row: Mapping[Any, Any]) -> dict[str, str]:
    config = results.configs[str(row["directory"])]
    kept = {
        name: str(value)
        for name, value in config.items()
        if not name.startswith(("protocol.", *REPETITION_KEYS, *ASIDE))
    }
    return kept | {"(hash of the input)": str(row["input_hash"]), "(code version)": str(row["code"])}


def _sorted(values: Iterable[str]) -> list[str]:
    return sorted(values, key=lambda value: (len(value), value))
