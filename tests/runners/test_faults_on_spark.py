"""Every kind of fault on Spark, proven, and the answer right all the same. Nothing here looks at how long it took.

`make test` strikes with the worst of them, the protocols taking turns; `make test-all` runs the whole matrix.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runners.rundir import ROOT
from tests.bench.harness import composed, run
from tests.runners.test_on_spark import COORDINATED, EXACTLY_ONCE, assert_right

FAULTS: dict[str, tuple[str, ...]] = {
    "kill mid-interval": ("failure=kill", "failure.role=count/0"),
    "kill during a commit": ("failure=kill", "failure.role=count/1", "failure.when=commit"),
    "kill during a snapshot": ("failure=kill", "failure.role=count/0", "failure.when=snapshot"),
    "kill during recovery": ("failure=kill", "failure.role=count/1", "failure.when=recovery"),
    "kill two at once": ("failure=kill", "failure.role=tasks", "failure.targets=2"),
    "kill a stage": ("failure=kill", "failure.role=count/*", "failure.targets=0"),
    "kill all tasks": ("failure=kill", "failure.role=tasks", "failure.targets=0"),
    "kill a source": ("failure=kill", "failure.role=sources"),
    "kill again and again": ("failure=kill", "failure.role=tasks", "failure.every_s=1.2", "duration_s=6"),
    "pause a zombie": ("failure=pause", "failure.role=count/0", "failure.for_s=3.5", "heartbeat_timeout_ms=1500",
                       "duration_s=7"),
    "pause during a commit": ("failure=pause", "failure.role=count/0", "failure.for_s=3.5", "failure.when=commit",
                              "heartbeat_timeout_ms=1500", "duration_s=7"),
    "slow log": ("failure=slow_log", "failure.delay_ms=15"),
    "full log": ("failure=full_log", "failure.for_s=1"),
    "stalled log": ("failure=log_stall",),
    "stalled log, broken up": ("failure=log_stall", "failure.for_s=4", "log_lock_timeout_ms=500", "duration_s=7"),
}  # fmt: skip

FIRST = (
    "kill during a commit", "kill during a snapshot", "kill during recovery", "kill all tasks", "kill a source",
    "pause a zombie", "full log", "stalled log, broken up",
)  # fmt: skip


def struck(protocol: str, *overrides: str) -> dict[str, Any]:
    """A Q5 run with a fault; snapshots are frequent where a protocol lets one say so."""
    config, _ = composed(f"protocol={protocol}")
    often = ["protocol.snapshot_interval_ms=400"] if "snapshot_interval_ms" in config.protocol else []
    chosen, *others = overrides
    return run(
        chosen, "failure.at_s=2.03", *often, "rate=5000", "duration_s=4", "warmup_s=0.5", *others, query="q5",
        protocol=protocol,
    )  # fmt: skip


def assert_proven(summary: dict[str, Any]) -> None:
    assert summary["faults"], summary["invalid_reasons"]
    for fault in summary["faults"]:
        assert fault["proven"], fault
    # A slow machine may disturb the measurement; whatever else is wrong with a run is wrong with the fault.
    others = [reason for reason in summary["invalid_reasons"] if "_delay_ms" not in reason]
    assert others == []


def assert_survived(summary: dict[str, Any]) -> None:
    assert_right(summary)
    assert_proven(summary)
    assert summary["guarantee_held"] is True


@pytest.mark.parametrize(("place", "fault"), list(enumerate(FIRST)), ids=FIRST)
def test_the_worst_faults_once(place: int, fault: str) -> None:
    assert_survived(struck(EXACTLY_ONCE[place % len(EXACTLY_ONCE)], *FAULTS[fault]))


@pytest.mark.parametrize("protocol", COORDINATED)
def test_a_coordinator_killed(protocol: str) -> None:
    summary = struck(protocol, "failure=kill", "failure.role=coordinators")
    assert_survived(summary)
    (fault,) = summary["faults"]
    assert fault["job_uncommitted_entries"] > 0


@pytest.mark.parametrize("protocol", COORDINATED)
def test_a_coordinator_paused_beside_its_successor(protocol: str) -> None:
    """Tasks once went on sending to the paused one for as long as it slept."""
    summary = struck(
        protocol, "failure=pause", "failure.role=coordinators", "failure.when=time", "failure.for_s=6",
        "heartbeat_timeout_ms=1500", "duration_s=6",
    )  # fmt: skip
    assert_survived(summary)
    (fault,) = summary["faults"]
    assert fault["detected_by"] == "heartbeat"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", EXACTLY_ONCE)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_under_every_protocol(fault: str, protocol: str) -> None:
    assert_survived(struck(protocol, *FAULTS[fault]))


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_unsafe_fails_verification_when_it_is_killed(turn: int) -> None:
    """If it passed, the checker would be void. It is killed with unread input, and that is proven."""
    summary = struck("unsafe", "failure=kill", "failure.role=count/0", f"seed={7 + turn}")
    (fault,) = summary["faults"]
    assert fault["proven"], fault
    assert fault["lag_entries"] > 0
    assert summary["guarantee_held"] is None
    checked = summary["verification"]
    assert checked["lost"] or checked["duplicated"] or checked["wrong"] or not checked["edges_ok"]
    assert checked["examples"], "the report says by how much"


def test_a_killed_task_shows_its_way_back() -> None:
    summary = struck(EXACTLY_ONCE[0], "failure=kill", "failure.role=count/0", "duration_s=7", "failure.at_s=3")
    (fault,) = summary["faults"]
    split = fault["recovery_ms"]
    assert all(split[name] is not None for name in ("detect", "restart", "restore")), split
    if split["total"] is not None:  # a very slow machine may not catch up before the end
        parts = [split[name] for name in ("detect", "restart", "restore", "catch_up")]
        assert sum(parts) == pytest.approx(split["total"])
    assert fault["detected_by"] == "spark"
    assert fault["uncommitted_entries"] > 0
    assert fault["uncommitted_bytes"] > 0


def executor_killed(protocol: str, directory: Path) -> dict[str, Any]:
    """`local_cluster` needs another Spark master, so it runs as a command of its own."""
    arguments = [
        "query=q5", f"protocol={protocol}", "cluster=local_cluster", "rate=5000", "duration_s=10", "warmup_s=1",
        "failure=kill_executor", "failure.at_s=4", "quiet=true", f"hydra.run.dir={directory}",
    ]  # fmt: skip
    subprocess.run([sys.executable, "run.py", *arguments], cwd=ROOT, timeout=240, check=False, capture_output=True)
    summary: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return summary


@pytest.mark.parametrize(
    "protocol",
    [name if place == 0 else pytest.param(name, marks=pytest.mark.slow) for place, name in enumerate(EXACTLY_ONCE)],
)
def test_an_executor_killed(protocol: str, tmp_path: Path) -> None:
    summary = executor_killed(protocol, tmp_path / "run")
    assert_survived(summary)
    assert len(summary["faults"]) > 1, "all roles on that executor died with it"
