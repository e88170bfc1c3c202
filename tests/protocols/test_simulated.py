"""Every protocol under seeded faults: what it promises holds, and what it does not promise is seen to break.

Protocols are found by their configuration files. `unsafe` and `at_least_once` are not named here either: what is asked
of a protocol follows from its guarantee.
"""

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from protocols.base import Guarantee
from runners.simcheck import QUERIES
from runners.simjob import simulate
from runners.simulated import Tally, campaign, load_protocol, protocol_names, run_seed, schedule_of, shorten

ROOT = Path(__file__).parents[2]
SEEDS = range(300)
FEWER_SEEDS = range(100)  # enough to see what a weaker promise allows
MANY_SEEDS = range(10_000)
SHAPES = ("stateless", "windowed", "joined", "chained")  # the others are about event time
JOBS = os.cpu_count() or 1

# Seeds that once failed: (protocol, query, seed).
REGRESSIONS = [
    ("unsafe", "stateless", 106),  # the log was trimmed under a task that commits nothing; later: its ENDs with it
    ("unsafe", "windowed", 108),  # a zombie's reports had the log trimmed under its successor, which commits nothing
]


def check(name: str, query: str, tally: Tally) -> None:
    """What a protocol promises, it keeps; what it does not, it is seen to break."""
    if tally.failures:
        protocol = load_protocol(name)
        seed = tally.failures[0][0]
        shortest = shorten(protocol, query, run_seed(protocol, query, seed).schedule)
        faults = "\n".join(map(str, shortest.schedule.faults))
        pytest.fail(
            f"{len(tally.failures)} of {tally.schedules} seeds failed: {tally.failures[:5]}\n"
            f"shortened: {shortest.failure}\n{faults}\n"
            f"python -m runners.simulated --protocol {name} --query {query} --seed {seed} --trace"
        )
    if load_protocol(name).guarantee is Guarantee.EXACTLY_ONCE:
        assert tally.inexact == 0
    else:
        assert tally.inexact > 0


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("name", protocol_names())
def test_seeds(name: str, query: str) -> None:
    exactly_once = load_protocol(name).guarantee is Guarantee.EXACTLY_ONCE
    tally = campaign(name, query, SEEDS if exactly_once and query in SHAPES else FEWER_SEEDS, JOBS)
    check(name, query, tally)
    assert tally.faults[0] == 0, "a schedule has at least one fault"
    several = sum(count for faults, count in tally.faults.items() if faults >= 2)
    assert several >= tally.schedules / 3
    if exactly_once:
        assert tally.trimmed > 0.7 * tally.schedules


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("name", protocol_names())
def test_many_seeds(name: str, query: str) -> None:
    exactly_once = load_protocol(name).guarantee is Guarantee.EXACTLY_ONCE
    many = exactly_once and query in SHAPES
    tally = campaign(name, query, MANY_SEEDS if many else MANY_SEEDS[:1_000], JOBS)
    check(name, query, tally)
    if many:
        assert tally.uncovered() == [], "an operation was never hit by a crash"


@pytest.mark.parametrize(("name", "query", "seed"), REGRESSIONS)
def test_seeds_that_once_failed(name: str, query: str, seed: int) -> None:
    assert run_seed(load_protocol(name), query, seed).failure is None


@pytest.mark.parametrize("name", protocol_names())
def test_a_seed_is_replayed_exactly(name: str) -> None:
    """Also in another process, where strings have other hashes."""
    command = [
        sys.executable,
        "-m",
        "runners.simulated",
        "--protocol",
        name,
        "--query",
        "joined",
        "--seed",
        "7",
        "--trace",
    ]
    runs = [
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout
        for seed in ("1", "2")
    ]
    assert len(runs[0].splitlines()) > 200
    assert runs[0] == runs[1]


def test_without_faults_everybody_is_right() -> None:
    """What fails under faults fails because of them."""
    for name in protocol_names():
        for query in QUERIES:
            protocol = load_protocol(name)
            schedule = dataclasses.replace(schedule_of(3, protocol, query), faults=())
            outcome = simulate(protocol, query, schedule)
            assert outcome.failure is None, (name, query)
            assert outcome.exact, (name, query)
            assert outcome.world.struck == 0


def test_coverage_names_what_was_not_hit() -> None:
    tally = Tally(operations=Counter({("task", "append"): 5}), coverage=Counter({("task", "append", "before"): 1}))
    assert tally.uncovered() == ["task append after"]
