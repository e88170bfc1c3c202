"""What the end-to-end benchmarks share: their options, the search for a sustained rate, and where results go."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from nexmark.parameters import QUERIES
from runners.rundir import ROOT, RunDirectory, environment
from runners.sustained import Found, Search
from tests.bench import harness

RESULTS = ROOT / "results" / "bench"
BARS = {"q1": 1_000_000, "q2": 1_000_000, "q3": 400_000, "q5": 400_000, "q7": 400_000, "q8": 400_000,
        "q4": 150_000, "q6": 150_000}  # fmt: skip
"""Sustained events/s that a query should reach on two cores, without fault tolerance."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Of every run of one benchmark."""

    directory: Path  # the runs' directories go in here
    parallelism: int
    sources: int
    seconds: float
    warmup_s: float
    max_runs: int
    tolerance: float
    seed: int
    verify: bool
    start_share: float  # of a query's bar: where its search begins

    def run(self, name: str, query: str, protocol: str, rate: int, *overrides: str, **settings: Any) -> dict[str, Any]:
        """One run in a directory of its own, which is kept without its log."""
        common = {"parallelism": self.parallelism, "sources": self.sources, "seed": self.seed, "verify": self.verify}
        run = harness.run(
            *overrides,
            query=query,
            protocol=protocol,
            rate=max(1, rate),
            directory=self.directory / name,
            **{"duration_s": self.seconds, "warmup_s": self.warmup_s, **common, **settings},
        )
        if "interrupted" in run["invalid_reasons"]:
            raise KeyboardInterrupt
        return run

    def search(self, name: str, query: str, protocol: str, *overrides: str) -> Found:
        """The highest sustainable rate. Probes are not verified: most of them are overloaded, and there are many."""

        def measure(rate: int) -> dict[str, Any]:
            run = self.run(f"{name}-{rate}", query, protocol, rate, *overrides, verify=False)
            verdict = "sustained" if run["sustainable"] and run["valid"] else "not sustained"
            reasons = "; ".join(map(first_line, run["invalid_reasons"]))
            say(f"    {rate:>10,}/s  {verdict}  visible p99 {milliseconds(run, 'visible', 'p99')} ms  {reasons}")
            return run

        start_rate = max(1000, int(BARS[query] * self.start_share))
        return Search(start_rate=start_rate, max_runs=self.max_runs, tolerance=self.tolerance).run(measure)


def add_options(
    parser: argparse.ArgumentParser, *, parallelism: int, queries: Sequence[str], runs: int, tolerance: float
) -> None:
    parser.add_argument("--quick", action="store_true", help="short runs, coarse search: does it work? not how fast")
    parser.add_argument("--queries", nargs="+", default=list(queries), choices=list(QUERIES), metavar="QUERY")
    parser.add_argument("--parallelism", type=int, default=parallelism, help="tasks per stage (default: %(default)s)")
    parser.add_argument("--sources", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, help="length of every run, warm-up included (default: 10)")
    parser.add_argument("--runs", type=int, default=runs, help="at most so many per search (default: %(default)s)")
    parser.add_argument("--tolerance", type=float, default=tolerance, help="of a search (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="of the events and of the order (default: %(default)s)")
    parser.add_argument("--no-verify", action="store_true", help="don't compare the answers with the oracle's")
    parser.add_argument("--json", type=Path, help="where the numbers go (default: results/bench/<name>.json)")


def plan_of(options: argparse.Namespace, name: str) -> Plan:
    seconds = options.seconds or (4.0 if options.quick else 10.0)
    return Plan(
        directory=RESULTS / "runs" / f"{datetime.now():%Y%m%d-%H%M%S}-{name}",
        parallelism=options.parallelism,
        sources=options.sources,
        seconds=seconds,
        warmup_s=min(3.0, seconds / 4),
        max_runs=min(2, options.runs) if options.quick else options.runs,
        tolerance=options.tolerance,
        seed=options.seed,
        verify=not options.no_verify,
        start_share=0.02 if options.quick else 0.5,
    )


class Results:
    """The benchmark's JSON file, written again after every number: what was measured survives an interrupt."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.path: Path = options.json or RESULTS / f"{name}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        plain = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        self._content: dict[str, Any] = {
            "benchmark": name,
            "complete": False,
            "options": plain,
            "environment": environment(options.seed, ""),
            "started": f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}",
        }
        self._began_s = time.monotonic()

    def put(self, name: str, value: Any) -> None:
        self._content[name] = value
        self._content["wall_s"] = time.monotonic() - self._began_s
        RunDirectory(self.path.parent).write_json(self.path.name, self._content)

    def finish(self) -> None:
        self.put("complete", True)
        say(f"numbers in {self.path}")


INTERRUPTED = 130


def interruptible(main: Callable[[], int]) -> int:
    """Ctrl-C is no error: what was measured is in the results' file already."""
    try:
        return main()
    except KeyboardInterrupt:
        say("interrupted; what was measured so far is kept")
        return INTERRUPTED


def say(text: str) -> None:
    """Progress: to people, at once."""
    print(text, file=sys.stderr, flush=True)


def first_line(text: str) -> str:
    """Reasons may carry a traceback; the run's directory keeps it."""
    return text.strip().split("\n")[0]


def milliseconds(run: dict[str, Any], metric: str, name: str) -> str:
    value = run["latency_ms"][metric][name]
    return "–" if value is None else f"{value:.1f}"


def as_json(found: Found) -> dict[str, Any]:
    return {
        "rate": found.rate,
        "ended": found.ended,
        "limited_by": list(found.limited_by),
        "probes": [
            {"rate": probe.rate, "sustained": probe.sustained, "why_not": list(probe.why_not), "broken": probe.broken,
             "run": dict(probe.summary)}
            for probe in found.probes
        ],
    }  # fmt: skip


def doubts(run: dict[str, Any] | None) -> list[str]:
    """What speaks against a run's numbers."""
    if run is None:
        return ["not measured"]
    found = [first_line(reason) for reason in run["invalid_reasons"]]
    if run["verification"] is None:
        found.append("not verified")
    elif not good(run):
        found.append(f"WRONG ANSWER: {run['verification']['examples'][:1]}")
    return found


def good(run: dict[str, Any]) -> bool:
    """Without faults every protocol gives the right answer."""
    checked = run["verification"]
    return not (checked["lost"] or checked["duplicated"] or checked["wrong"]) and bool(checked["edges_ok"])


def config_difference(first: Path, second: Path) -> list[str]:
    """Where the resolved configurations of two runs differ, beside the protocol itself."""
    one, two = (_flat(yaml.safe_load((path / "config.yaml").read_text())) for path in (first, second))
    return [
        f"{key}: {one.get(key)!r} ≠ {two.get(key)!r}"
        for key in sorted(one.keys() | two.keys())
        if not key.startswith("protocol.") and one.get(key) != two.get(key)
    ]


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value)
    return flat


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be; the first one to the left, numbers to the right, the last one free."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, *rows]:
        middle = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *middle, row[-1]]).rstrip())
    return "\n".join(lines)
