"""The simulated runner: the real roles and the real protocol on the memory log, crashed everywhere, by seed.

    python -m runners.simulated --protocol progress_marking --query windowed --seeds 0:10000

One seed makes one schedule: input, speeds, interleaving and faults. After each, the committed output must be the
brute-force answer. A failing seed replays exactly (`--seed 17 --trace`) and is shortened before it is printed.
"""

import argparse
import dataclasses
import importlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from protocols.base import Protocol
from runners.plan import lay_out
from runners.simcheck import QUERIES
from runners.simjob import Outcome, roles_of, simulate
from runners.simplan import SOURCES, Schedule, plan, sooner

CONFIGS = Path(__file__).parent.parent / "configs" / "protocol"
CHUNK = 50

# A schedule lasts a few hundred virtual milliseconds, so everything that happens by the clock has to happen sooner.
_CLOCKS_MS = {
    "commit_interval_ms": 15,
    "checkpoint_interval_ms": 15,
    "snapshot_interval_ms": 15,
    "restate_interval_ms": 40,
    "repeat_interval_ms": 5,
    "transaction_timeout_ms": 50,  # shorter than the longest pause, so that living tasks are aborted too
}
_TIMEOUT_MS = 120


def protocol_names() -> list[str]:
    """All protocols that have a configuration."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def load_protocol(name: str) -> Protocol:
    """The protocol of a configuration file, with clocks that suit a short schedule."""
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    module, _, kind = config.pop("_target_").rpartition(".")
    made = getattr(importlib.import_module(module), kind)
    for option in dataclasses.fields(made):
        if option.name in _CLOCKS_MS:
            config[option.name] = _CLOCKS_MS[option.name]
        elif option.name.endswith("_timeout_ms"):
            config[option.name] = _TIMEOUT_MS
    protocol: Protocol = made(**config)
    return protocol


def schedule_of(seed: int, protocol: Protocol, query: str) -> Schedule:
    return plan(seed, roles_of(protocol, lay_out(QUERIES[query].graph, sources=SOURCES)))


def run_seed(protocol: Protocol, query: str, seed: int, *, trace: bool = False) -> Outcome:
    """A seed's schedule, which has at least one fault."""
    schedule = schedule_of(seed, protocol, query)
    outcome = simulate(protocol, query, schedule, trace=trace)
    if outcome.world.struck == 0 and outcome.failure is None:
        outcome = simulate(protocol, query, sooner(schedule), trace=trace)
    return outcome


@dataclass
class Tally:
    """What many schedules came to."""

    schedules: int = 0
    inexact: int = 0  # answers that were not exactly right, allowed or not
    trimmed: int = 0  # schedules in which the log lost its beginning
    slowest_ms: float = 0.0  # from the last fault, or the end of the input, to the end of the job
    faults: Counter[int] = field(default_factory=Counter)  # how many struck → schedules
    coverage: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.inexact += not outcome.exact
        self.trimmed += outcome.world.log.first() > 1
        self.slowest_ms = max(self.slowest_ms, outcome.world.lag_ms)
        self.faults[outcome.world.struck] += 1
        self.coverage += outcome.world.coverage
        self.operations += outcome.world.operations
        if outcome.failure is not None:
            self.failures.append((outcome.schedule.seed, outcome.failure))

    def merge(self, other: "Tally") -> None:
        self.schedules += other.schedules
        self.inexact += other.inexact
        self.trimmed += other.trimmed
        self.slowest_ms = max(self.slowest_ms, other.slowest_ms)
        self.faults += other.faults
        self.coverage += other.coverage
        self.operations += other.operations
        self.failures += other.failures

    def uncovered(self) -> list[str]:
        """Operations that some role did, and that no crash hit from one side or the other."""
        return [
            f"{kind} {operation} {when}"
            for kind, operation in sorted(self.operations)
            for when in ("before", "after")
            if not self.coverage[kind, operation, when]
        ]


def run_seeds(protocol: Protocol, query: str, seeds: Iterable[int]) -> Tally:
    tally = Tally()
    for seed in seeds:
        tally.add(run_seed(protocol, query, seed))
    return tally


def shorten(protocol: Protocol, query: str, schedule: Schedule) -> Outcome:
    """The failing schedule with as few faults and events as still fail, traced."""
    shortest = simulate(protocol, query, schedule, trace=True)
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(shortest.schedule):
            tried = simulate(protocol, query, smaller, trace=True)
            if tried.failure is not None:
                shortest, progress = tried, True
                break
    return shortest


def _smaller(schedule: Schedule) -> Iterator[Schedule]:
    for index in range(len(schedule.faults)):
        yield dataclasses.replace(schedule, faults=schedule.faults[:index] + schedule.faults[index + 1 :])
    if schedule.events > 16:
        yield dataclasses.replace(schedule, events=schedule.events // 2)
        yield dataclasses.replace(schedule, events=schedule.events - 8)


def _chunk(name: str, query: str, start: int, stop: int) -> Tally:
    return run_seeds(load_protocol(name), query, range(start, stop))


def campaign(name: str, query: str, seeds: range, jobs: int) -> Tally:
    """All seeds, on several processes; says how far it is: on a terminal in one live line, else every few seconds."""
    total, began, told = Tally(), time.monotonic(), time.monotonic()
    live = sys.stderr.isatty()
    starts = range(seeds.start, seeds.stop, CHUNK)
    # Virtual time does not mind waiting; whoever shares the machine and lives by the real clock goes first.
    with ProcessPoolExecutor(jobs, initializer=os.nice, initargs=(19,)) as pool:
        chunks = [pool.submit(_chunk, name, query, start, min(start + CHUNK, seeds.stop)) for start in starts]
        for chunk in chunks:
            total.merge(chunk.result())
            if live or time.monotonic() - told > 5:
                told = time.monotonic()
                print("\r\x1b[K" if live else "", _progress(total, len(seeds), told - began), sep="",
                      end="" if live else "\n", file=sys.stderr, flush=True)  # fmt: skip
    if live:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return total


def _progress(total: Tally, wanted: int, seconds: float) -> str:
    rate = total.schedules / seconds
    left_s = (wanted - total.schedules) / rate
    return f"  {total.schedules} of {wanted} schedules, {rate:.0f}/s, {len(total.failures)} failed, {left_s:.0f} s left"


def _print_trace(outcome: Outcome) -> None:
    for at_us, who, what, detail in outcome.world.trace or []:
        print(f"  {(at_us - 1_000_000) / 1000:9.3f} ms  {who:<16} {what:<14} {detail}")


def _report(name: str, query: str, tally: Tally, seconds: float) -> None:
    rate = tally.schedules / seconds
    print(
        f"{name} × {query}: {tally.schedules} schedules in {seconds:.1f} s ({rate:.0f}/s), {len(tally.failures)} failed"
    )
    struck = ", ".join(f"{count} faults: {tally.faults[count]}" for count in sorted(tally.faults))
    print(f"  struck by {struck}; answers not exactly right: {tally.inexact}")
    print(f"  log trimmed in {tally.trimmed}; done at most {tally.slowest_ms:.0f} virtual ms after the last fault")
    print("  crashes by role, operation, before/after:")
    for kind, operation in sorted(tally.operations):
        before, after = (tally.coverage[kind, operation, when] for when in ("before", "after"))
        print(f"    {kind:<12} {operation:<16} {before:>7} {after:>7}   of {tally.operations[kind, operation]}")
    if uncovered := tally.uncovered():
        print(f"  not hit: {', '.join(uncovered)}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", required=True, choices=protocol_names())
    parser.add_argument("--query", choices=[*QUERIES, "all"], default="all")
    parser.add_argument("--seeds", default="0:1000", help="from:to, the end excluded")
    parser.add_argument("--seed", type=int, help="one seed, replayed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happened")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one per core")
    options = parser.parse_args(arguments)
    queries = list(QUERIES) if options.query == "all" else [options.query]
    protocol = load_protocol(options.protocol)
    failed = False
    for query in queries:
        if options.seed is not None:
            outcome = run_seed(protocol, query, options.seed, trace=options.trace)
            _print_trace(outcome)
            for fault in outcome.schedule.faults:
                print(f"  {fault}")
            print(f"{options.protocol} × {query}, seed {options.seed}: {outcome.failure or 'held'}")
            failed = failed or outcome.failure is not None
            continue
        start, stop = map(int, options.seeds.split(":"))
        began = time.monotonic()
        tally = campaign(options.protocol, query, range(start, stop), options.jobs)
        _report(options.protocol, query, tally, time.monotonic() - began)
        for seed, failure in tally.failures[:10]:
            print(f"  seed {seed}: {failure}")
        if tally.failures:
            failed = True
            seed = tally.failures[0][0]
            shortest = shorten(protocol, query, run_seed(protocol, query, seed).schedule)
            print(f"  seed {seed}, shortened: {shortest.failure}")
            for fault in shortest.schedule.faults:
                print(f"    {fault}")
            _print_trace(shortest)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
