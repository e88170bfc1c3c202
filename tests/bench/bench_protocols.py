"""What the protocols cost, as ratios to a baseline that was measured in the same run.

    python -m tests.bench.bench_protocols [--quick] [--queries q1 q5 q8] [--repetitions 3] [--parallelism 2]

Three parts, each in an order drawn from the seed: the sustained rate of every protocol; every protocol's latency at
half the rate that the baseline sustained; and two protocols against each other at several commit intervals, at the
same load. Ratios are taken within a repetition; with several, their median and range are shown. Latencies are taken
with the paper's flushes: with shorter ones the baseline gets faster, and what a commit interval adds weighs more. The
search flushes every 10 ms: with 100 ms a short run has so few flushes that one late one ends it. Snapshots come every
second: with the default of ten, a short run would end before the first one, and neither their cost nor the trim behind
them, which keeps the log small, would be part of what is measured.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median
from typing import Any

from runners.sustained import Found
from tests.bench import harness
from tests.bench.measuring import (
    Plan,
    Results,
    add_options,
    as_json,
    config_difference,
    doubts,
    first_line,
    interruptible,
    milliseconds,
    plan_of,
    say,
    table,
)

RATE_BAR = 0.8  # of the baseline's sustained rate
EMIT_BAR = 2.0  # times the baseline's emit p50 at half its sustained rate
REVISIONS_APART = 0.2  # rule 2: beyond this, latencies of two runs are not comparable as they stand
COMMIT_MS = 100
SNAPSHOT_MS = 1000
PAPER_FLUSH_MS = {"q1": 10.0, "q2": 10.0}  # Impeller §5.3; 100 ms for all others

Cell = tuple[int, str, str]  # repetition, query, protocol


@dataclass
class Measured:
    """Everything found so far."""

    searches: dict[Cell, Found] = field(default_factory=dict)
    latencies: dict[Cell, dict[str, Any]] = field(default_factory=dict)
    intervals: dict[tuple[int, str, str, int], dict[str, Any]] = field(default_factory=dict)

    def as_json(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "sustained": [_named(cell, as_json(found)) for cell, found in self.searches.items()],
            "latency": [_named(cell, run) for cell, run in self.latencies.items()],
            "intervals": [
                {**_named(key[:3], run), "commit_interval_ms": key[3]} for key, run in self.intervals.items()
            ],
        }


def _named(cell: Cell, value: dict[str, Any]) -> dict[str, Any]:
    repetition, query, protocol = cell
    return {"repetition": repetition, "query": query, "protocol": protocol, "result": value}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints tables; the exit code is 0 unless a run broke or an answer was wrong."""
    options = _options(argv)
    bench = Bench(options)
    bench.sustained()
    bench.latency()
    if options.interval_protocols:
        bench.intervals()
    bench.results.finish()
    return bench.exit_code()


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    known = harness.protocols()
    parser = argparse.ArgumentParser(description="What the protocols cost, relative to none.")
    # A ratio has the errors of two searches, and its bar is 80%: so look closer than at one rate alone.
    add_options(parser, parallelism=2, queries=("q1", "q5", "q8"), runs=9, tolerance=0.05)
    parser.add_argument("--protocols", nargs="+", default=known, choices=known, metavar="PROTOCOL")
    parser.add_argument("--baseline", default="unsafe", choices=known, help="default: %(default)s")
    parser.add_argument("--judged", default="progress_marking", help="whom the bars are for (default: %(default)s)")
    parser.add_argument("--interval-protocols", nargs="*", default=["progress_marking", "transactions"],
                        choices=known, metavar="PROTOCOL", help="compared at several commit intervals")  # fmt: skip
    parser.add_argument("--intervals", nargs="+", type=int, default=[10, 25, 50, 100], metavar="MS")
    parser.add_argument(
        "--flush-ms", type=float, help="for the latencies (default: the paper's, 10 for q1 and q2, else 100)"
    )
    parser.add_argument("--repetitions", type=int, default=1, help="default: %(default)s")
    options = parser.parse_args(argv)
    if options.baseline not in options.protocols:
        options.protocols.append(options.baseline)
    return options


class Bench:
    """One benchmark under way."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.plan: Plan = plan_of(options, "protocols")
        self.results = Results("protocols", options)
        self.measured = Measured()
        self._random = random.Random(options.seed)
        self._settings = {name: harness.settings_of(name) for name in harness.protocols()}
        print(f"protocols against {options.baseline}: {COMMIT_MS} ms commits, a snapshot every {SNAPSHOT_MS} ms,"
              f" parallelism {self.plan.parallelism},"
              f" {self.plan.sources} source(s), latencies at flushes of {options.flush_ms or '10 (q1, q2) or 100'} ms,"
              f" runs of {self.plan.seconds:g} s, n={options.repetitions}",
              flush=True)  # fmt: skip

    def sustained(self) -> None:
        for label, cell in self._shuffled("sustained rate"):
            repetition, query, protocol = cell
            say(label)
            found = self.plan.search(f"{repetition}-{query}-{protocol}", query, protocol, *self._commit(protocol))
            self.measured.searches[cell] = found
            self.results.put("measured", self.measured.as_json())
        print(self._rates_table(), flush=True)

    def latency(self) -> None:
        for label, cell in self._shuffled("latency"):
            repetition, query, protocol = cell
            rate = self._half(repetition, query)
            say(f"{label} at {rate:,}/s")
            if rate:
                name = f"{repetition}-{query}-{protocol}-latency"
                self.measured.latencies[cell] = self.plan.run(
                    name, query, protocol, rate, *self._overrides(query, protocol)
                )
                self.results.put("measured", self.measured.as_json())
        print(self._latency_table(), flush=True)

    def intervals(self) -> None:
        wanted = self.options.interval_protocols
        names = [name for name in wanted if "commit_interval_ms" in self._settings[name]]
        cells = list(product(range(self.options.repetitions), self.options.queries, names, self.options.intervals))
        self._random.shuffle(cells)
        for number, key in enumerate(cells, 1):
            repetition, query, protocol, interval = key
            rate = self._half(repetition, query)
            say(f"[{number}/{len(cells)}] commit interval {interval} ms: {query} {protocol} at {rate:,}/s")
            if rate:
                name = f"{repetition}-{query}-{protocol}-{interval}ms"
                run = self.plan.run(name, query, protocol, rate, *self._overrides(query, protocol, interval))
                self.measured.intervals[key] = run
                self.results.put("measured", self.measured.as_json())
        print(self._intervals_table(names), flush=True)

    def exit_code(self) -> int:
        broken = [cell for cell, found in self.measured.searches.items() if found.broken]
        runs = [*self.measured.latencies.values(), *self.measured.intervals.values()]
        wrong = [run for run in runs if any("WRONG" in doubt for doubt in doubts(run))]
        incomplete = [run for run in runs if not run["complete"]]
        return 1 if broken or wrong or incomplete else 0

    def _shuffled(self, what: str) -> Iterator[tuple[str, Cell]]:
        """All cells in random order; a machine that slows down or warms up must not favour anyone."""
        cells = list(product(range(self.options.repetitions), self.options.queries, self.options.protocols))
        self._random.shuffle(cells)
        for number, cell in enumerate(cells, 1):
            yield f"[{number}/{len(cells)}] {what}: {cell[1]} {cell[2]}, repetition {cell[0]}", cell

    def _overrides(self, query: str, protocol: str, interval_ms: int = COMMIT_MS) -> list[str]:
        flush_ms = self.options.flush_ms or PAPER_FLUSH_MS.get(query, 100.0)
        return [f"flush_interval_ms={flush_ms:g}", *self._commit(protocol, interval_ms)]

    def _commit(self, protocol: str, interval_ms: int = COMMIT_MS) -> list[str]:
        """The same intervals for all that have them."""
        intervals = {"commit_interval_ms": interval_ms, "snapshot_interval_ms": SNAPSHOT_MS}
        known = self._settings[protocol]
        return [f"protocol.{name}={value}" for name, value in intervals.items() if name in known]

    def _half(self, repetition: int, query: str) -> int:
        """Half of what the baseline sustained: the common load."""
        return self.measured.searches[repetition, query, self.options.baseline].rate // 2

    def _rates_table(self) -> str:
        head = ["query protocol", "events/s", "ratio", f"bar ≥ {RATE_BAR:.0%}", "limited by; doubts"]
        rows = []
        for query, protocol in product(self.options.queries, self._listed()):
            cells = [(r, query, protocol) for r in range(self.options.repetitions)]
            found = [self.measured.searches[cell] for cell in cells]
            base = [self.measured.searches[r, query, self.options.baseline].rate for r, _, _ in cells]
            ratios = [search.rate / rate for search, rate in zip(found, base, strict=True) if rate]
            remarks = [f"above it: {first_line(search.limited_by[0])}" for search in found[:1] if search.limited_by]
            remarks += [f"broke at {p.rate}/s: {first_line(p.why_not[-1])}" for search in found for p in search.broken]
            rates = f"{median(search.rate for search in found):,.0f}"
            verdict = self._verdict(protocol, ratios, lambda ratio: ratio >= RATE_BAR)
            rows.append([f"{query} {protocol}", rates, _spread(ratios), verdict, "; ".join(remarks)])
        return table(head, rows)

    def _latency_table(self) -> str:
        head = ["query protocol", "at /s", "emit p50", "p99 ms", "ratio p50", "p99", "visible p50", "p99 ms",
                "ratio p50", "p99", f"bar emit p50 ≤ {EMIT_BAR:g}×", "doubts"]  # fmt: skip
        rows = []
        for query, protocol in product(self.options.queries, self._listed()):
            cells = [(r, query, protocol) for r in range(self.options.repetitions)]
            pairs = [
                (self.measured.latencies[cell], self.measured.latencies[cell[0], query, self.options.baseline])
                for cell in cells
                if cell in self.measured.latencies
            ]
            if not pairs:
                rows.append([f"{query} {protocol}", *["–"] * 10, "the baseline sustained nothing"])
                continue
            row = [f"{query} {protocol}", f"{pairs[0][0]['rate_offered']:,}"]
            for metric in ("emit", "visible"):
                row += [_middle([run for run, _ in pairs], metric, name) for name in ("p50", "p99")]
                row += [_spread(_ratios(pairs, metric, name)) for name in ("p50", "p99")]
            verdict = self._verdict(protocol, _ratios(pairs, "emit", "p50"), lambda ratio: ratio <= EMIT_BAR)
            valid = all(run["valid"] for pair in pairs for run in pair)
            row.append(verdict if valid or not verdict else f"{verdict} (by invalid runs)")
            rows.append([*row, "; ".join(self._doubts(cells))])
        return table(head, rows)

    def _intervals_table(self, names: list[str]) -> str:
        parts = (("visible", "p50"), ("visible", "p99"), ("emit", "p50"))
        head = ["query interval", *(f"{name}: visible p50 / p99 / emit p50 ms" for name in names),
                "ratio of visible p50", "p99", "doubts"]  # fmt: skip
        rows = []
        for query, interval in product(self.options.queries, self.options.intervals):
            runs = [
                [
                    self.measured.intervals[r, query, name, interval]
                    for r in range(self.options.repetitions)
                    if (r, query, name, interval) in self.measured.intervals
                ]
                for name in names
            ]
            if not all(runs):
                continue
            row = [f"{query} {interval} ms"]
            row += [" / ".join(_middle(of_one, metric, part) for metric, part in parts) for of_one in runs]
            pairs = list(zip(runs[0], runs[-1], strict=False))
            row += [_spread(_ratios(pairs, "visible", name)) for name in ("p50", "p99")]
            rows.append(
                [*row, "; ".join(sorted({doubt for of_one in runs for run in of_one for doubt in doubts(run)}))]
            )
        return table(head, rows) + f"\n(ratio: {names[0]} / {names[-1]})" if names else ""

    def _doubts(self, cells: Sequence[Cell]) -> list[str]:
        """What speaks against comparing these runs with the baseline's."""
        found = []
        for cell in cells:
            repetition, query, protocol = cell
            run = self.measured.latencies.get(cell)
            base = self.measured.latencies.get((repetition, query, self.options.baseline))
            found += doubts(run)
            if run is None or base is None:
                continue
            mine, theirs = run["revisions_per_event"], base["revisions_per_event"]
            if mine and theirs and abs(mine / theirs - 1) > REVISIONS_APART:
                found.append(f"{mine:.3f} revisions per event, the baseline {theirs:.3f}")
            here, there = (
                self.plan.directory / f"{repetition}-{query}-{name}-latency"
                for name in (protocol, self.options.baseline)
            )
            found += [f"config differs: {line}" for line in config_difference(here, there)]
        return sorted(set(found))

    def _listed(self) -> list[str]:
        """The baseline first."""
        return sorted(self.options.protocols, key=lambda name: (name != self.options.baseline, name))

    def _verdict(self, protocol: str, ratios: Sequence[float], holds: Any) -> str:
        if protocol != self.options.judged:
            return ""
        return "met" if ratios and holds(median(ratios)) else "NOT MET"


def _ratios(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], metric: str, name: str) -> list[float]:
    values = [(run["latency_ms"][metric][name], base["latency_ms"][metric][name]) for run, base in pairs]
    return [mine / theirs for mine, theirs in values if mine is not None and theirs]


def _middle(runs: Sequence[dict[str, Any]], metric: str, name: str) -> str:
    """The middle repetition's percentile: one that was measured, not an average."""
    known = [run for run in runs if run["latency_ms"][metric][name] is not None]
    ordered = sorted(known, key=lambda run: run["latency_ms"][metric][name])
    return milliseconds(ordered[(len(ordered) - 1) // 2], metric, name) if ordered else "–"


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "–"
    middle = f"{median(ratios):.2f}"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.2f}–{max(ratios):.2f})"


if __name__ == "__main__":
    raise SystemExit(interruptible(main))
