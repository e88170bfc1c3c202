"""Whole runs on Spark, each verified against the oracle and on every edge; with faults that are real.

Nothing here looks at latencies: a slow machine may make a run invalid as a measurement, but never wrong.
"""

from typing import Any

import pytest
from hydra.utils import get_class

from protocols.base import Guarantee, Protocol
from tests.bench.harness import composed, protocols, run

QUERIES = [f"q{n}" for n in range(1, 9)]
PROTOCOLS = protocols()
DISORDER = ("source.out_of_order_group=50", "source.late_fraction=0.02", "source.late_max_us=300000")


def guarantee(protocol: str) -> Guarantee:
    config, _ = composed(f"protocol={protocol}")
    kind = get_class(config.protocol["_target_"])
    assert issubclass(kind, Protocol)
    return kind.guarantee


EXACTLY_ONCE = [name for name in PROTOCOLS if guarantee(name) is Guarantee.EXACTLY_ONCE]
COORDINATED = [name for name in EXACTLY_ONCE if "timeout" in " ".join(composed(f"protocol={name}")[0].protocol)]


def assert_right(summary: dict[str, Any]) -> None:
    """Complete, every answer right, both ends of every edge equal."""
    assert summary["complete"], summary["invalid_reasons"]
    checked = summary["verification"]
    assert (checked["lost"], checked["duplicated"], checked["wrong"]) == (0, 0, 0), checked
    assert checked["edges_ok"], checked
    assert checked["checked"] > 0


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_without_faults(query: str) -> None:
    assert_right(run(query=query, protocol="unsafe", rate=6000, duration_s=2, warmup_s=0.5))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_without_faults(protocol: str) -> None:
    assert_right(run(query="q5", protocol=protocol, rate=6000, duration_s=2.5, warmup_s=0.5))


@pytest.mark.parametrize("query", ["q3", "q8"])
def test_many_sources_and_tasks(query: str) -> None:
    assert_right(run(query=query, protocol="unsafe", rate=6000, duration_s=2, warmup_s=0.5, sources=3, parallelism=4))


def test_executors_of_their_own(tmp_path: Any) -> None:
    """`local_cluster` needs another Spark master, so it runs as a command of its own."""
    import json
    import subprocess
    import sys

    from runners.rundir import ROOT

    arguments = ["query=q5", "cluster=local_cluster", "rate=6000", "duration_s=3", "warmup_s=1", "quiet=true"]
    subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *arguments, f"hydra.run.dir={tmp_path}/run"],
        cwd=ROOT,
        timeout=240,
        check=False,
        capture_output=True,
    )
    assert_right(json.loads((tmp_path / "run" / "run.json").read_text()))


def killed(query: str, protocol: str, role: str, **settings: Any) -> dict[str, Any]:
    summary = run(
        "failure=kill", f"failure.role={role}", "failure.at_s=2.03", query=query, protocol=protocol, rate=6000,
        duration_s=4, warmup_s=0.5, **settings,
    )  # fmt: skip
    (fault,) = summary["faults"]
    assert fault["proven"], (fault, summary["invalid_reasons"])
    assert fault["instance_after"] > fault["instance_before"]
    return summary


@pytest.mark.parametrize("protocol", EXACTLY_ONCE)
def test_a_task_killed_in_the_middle(protocol: str) -> None:
    assert_right(killed("q8", protocol, "join/0"))


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_query_under_every_protocol(query: str, protocol: str) -> None:
    assert_right(run(query=query, protocol=protocol, rate=10_000, duration_s=5))


@pytest.mark.slow
@pytest.mark.parametrize(("sources", "parallelism"), [(1, 2), (1, 4), (3, 2), (3, 4)])
@pytest.mark.parametrize("query", QUERIES)
def test_every_query_out_of_order_and_late(query: str, sources: int, parallelism: int) -> None:
    summary = run(
        *DISORDER, query=query, protocol="unsafe", rate=10_000, duration_s=8, sources=sources, parallelism=parallelism
    )
    assert_right(summary)
    assert summary["late_rows"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "role"), [("q1", "convert/0"), ("q3", "join/1"), ("q5", "count/1"), ("q8", "join/0")]
)
@pytest.mark.parametrize("protocol", EXACTLY_ONCE)
def test_killed_tasks_of_every_shape(query: str, role: str, protocol: str) -> None:
    assert_right(killed(query, protocol, role))
