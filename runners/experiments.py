"""What a cell of a sweep can be: a verified run, the log alone, a search for the sustained rate; and what it leaves."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from runners import log_latency
from runners.rundir import RunDirectory
from runners.settings import ConfigError
from runners.soak import grown
from runners.sustained import INSTRUMENT, Found, Search
from runners.sweep import Result
from sharedlog.log import LogSpec

LOG_LATENCY, SEARCH = "log_latency.json", "search.json"


def run_result(run: Mapping[str, Any]) -> Result:
    """A run's summary as a cell's. An invalid measurement is finished, and says why it is not to be quoted."""
    if "interrupted" in run["invalid_reasons"]:
        raise KeyboardInterrupt
    broken = run["guarantee_held"] is False
    if not run["complete"]:
        return Result(text=f"incomplete: {'; '.join(run['invalid_reasons'])}", finished=False, broken=broken)
    latency = run["latency_ms"]["visible"]
    seen = "no results" if latency["p50"] is None else f"visible {latency['p50']:.0f} / {latency['p99']:.0f} ms"
    if broken:
        seen += f", {run['guarantee'].replace('_', ' ')} BROKEN"
    return Result(text=seen, broken=broken, remarks=tuple(f"invalid: {reason}" for reason in run["invalid_reasons"]))


def soak_result(run: Mapping[str, Any], resources: pd.DataFrame) -> Result:
    """Broken, too, if anything grew that must not. Latencies of a soak are not quoted, so slow instruments are fine."""
    plain = run_result(run)
    leaks = grown(resources, log_pinned=run["log_pinned"])
    remarks = [reason for reason in run["invalid_reasons"] if not reason.startswith(INSTRUMENT)]
    text = f"{len(run['faults'])} faults, {run['restarts']} restarts, {plain.text}"
    return Result(text=text, finished=plain.finished, broken=plain.broken or bool(leaks), remarks=(*leaks, *remarks))


def check_rates(rates: Any, seconds_each: Any) -> None:
    """What `measure_log` will ask for. Raises `ConfigError`."""
    if not isinstance(rates, Sequence) or not rates or not all(_positive(rate, int) for rate in rates):
        raise ConfigError(f"experiment.rates must be a list of appends per second, got {rates!r}")
    if not _positive(seconds_each, (int, float)):
        raise ConfigError(f"experiment.seconds_each must be a positive number, got {seconds_each!r}")


def _positive(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and value > 0


def measure_log(log: LogSpec, rates: Sequence[int], seconds_each: float, directory: Path) -> Result:
    """The log alone; leaves log_latency.json."""
    rows = log_latency.measure(log, rates, seconds_each)
    content = [
        {
            "rate": row.rate,
            "p50_us": row.latency_us_p50,
            "p99_us": row.latency_us_p99,
            "max_us": row.latency_us_max,
            "begin_delay_p99_us": row.begin_delay_us_p99,
            "count": row.appends,
        }
        for row in rows
    ]
    partial = directory / f".{LOG_LATENCY}.partial"
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(directory / LOG_LATENCY)
    middle = ", ".join(f"{row.rate}/s {row.latency_us_p50:.0f} / {row.latency_us_p99:.0f} µs" for row in rows)
    return Result(text=middle)


def latency_table(places: Sequence[Path]) -> str:
    """Every cell beside the published figures; repetitions are not averaged."""
    return "\n".join(f"\n{place.name}\n{log_latency.format_table(_latency_rows(place))}" for place in sorted(places))


def _latency_rows(place: Path) -> list[log_latency.LatencyRow]:
    return [
        log_latency.LatencyRow(
            rate=row["rate"],
            appends=row["count"],
            latency_us_p50=row["p50_us"],
            latency_us_p99=row["p99_us"],
            latency_us_max=row["max_us"],
            begin_delay_us_p99=row["begin_delay_p99_us"],
        )
        for row in json.loads((place / LOG_LATENCY).read_text())
    ]


def search_table(places: Sequence[Path]) -> str:
    """The sustained rate of every query and protocol, and why the search ended there."""
    found = [json.loads((place / SEARCH).read_text()) for place in places]
    found.sort(key=lambda one: (one["query"], one["protocol"], one["repetition"]))
    lines = [f"\n{'query':<6} {'protocol':<20} {'events/s':>12} {'probes':>7}  limited by"]
    for one in found:
        reason = one["limited_by"][0] if one["limited_by"] else one["ended"]
        lines.append(f"{one['query']:<6} {one['protocol']:<20} {one['rate']:>12,} {len(one['probes']):>7}  {reason}")
    return "\n".join([*lines, ""])


def search_rate(search: Search, measure: Callable[[int, Path], Mapping[str, Any]], directory: Path) -> Result:
    """The highest sustainable rate; leaves search.json, and a run directory for each probe below `probes/`.

    search.json is there from the first probe on, so that an interrupted search still shows what it saw.
    """
    seen: list[dict[str, Any]] = []

    def probe(rate: int) -> Mapping[str, Any]:
        place = Path("probes") / f"{len(seen)}-{rate}"
        summary = measure(rate, directory / place)
        seen.append({"rate": rate, "directory": str(place), "summary": summary})
        _write_search(directory, search, seen, None)
        return summary

    found = search.run(probe)
    _write_search(directory, search, seen, found)
    remarks = [f"broke at {probe.rate}/s: {probe.why_not[-1]}" for probe in found.broken if probe.why_not]
    lost = [probe.rate for probe in found.probes if probe.summary["guarantee_held"] is False]
    remarks += [f"guarantee broken at {rate}/s" for rate in lost]
    return Result(text=f"{found.rate:,} events/s sustained; {found.ended}", broken=bool(lost), remarks=tuple(remarks))


def _write_search(directory: Path, search: Search, seen: Sequence[Mapping[str, Any]], found: Found | None) -> None:
    judged = found.probes if found else ()
    verdicts = [{"sustained": probe.sustained, "broken": probe.broken, "why_not": probe.why_not} for probe in judged]
    first = seen[0]["summary"]
    content = {
        "query": first["query"],
        "protocol": first["protocol"],
        "repetition": first["repetition"],
        "rate": found.rate if found else None,
        "ended": found.ended if found else "not finished",
        "limited_by": found.limited_by if found else (),
        "search": asdict(search),
        "probes": [
            {
                "rate": probe["rate"],
                "directory": probe["directory"],
                "visible_p99_ms": probe["summary"]["latency_ms"]["visible"]["p99"],
                "rate_processed": probe["summary"]["rate_sustained"],
                **(verdicts[place] if found else {}),
            }
            for place, probe in enumerate(seen)
        ],
    }
    RunDirectory(directory).write_json(SEARCH, content)
