"""Snapshots make recovery cheap: what a crash costs follows the snapshot interval, not the length of the run."""

import dataclasses
from typing import Any

import pytest

from protocols.base import Context
from runners.role import Role
from runners.simcheck import QUERIES, judge
from runners.simfaults import Action, Fault
from runners.simjob import Simulation
from runners.simplan import Schedule
from runners.simulated import load_protocol
from runners.simworld import Network, Process
from runners.task import Task

VICTIM = "sum/0"
EVENTS = 2_000  # one in each virtual millisecond
SNAPSHOT_INTERVAL_MS = 60
KILL_MS = 0.97 * EVENTS


class Recorded(Simulation):
    """Keeps every instance of the victim."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.instances: list[Task] = []

    def _build(self, process: Process, parts: dict[str, Any]) -> tuple[Role, Context]:
        role, ctx = super()._build(process, parts)
        if process.name == VICTIM:
            assert isinstance(role, Task)
            self.instances.append(role)
        return role, ctx


def recovery_of(name: str, snapshot_interval_ms: float) -> dict[str, float]:
    """What the victim's second instance read, in a run that was right in the end."""
    protocol = dataclasses.replace(load_protocol(name), snapshot_interval_ms=snapshot_interval_ms)
    kill = Fault(action=Action.CRASH_BEFORE, role=VICTIM, at_ms=KILL_MS, operation="append")
    schedule = Schedule(seed=5, events=EVENTS, faults=(kill,), network=Network())
    simulation = Recorded(protocol, QUERIES["windowed"], schedule)
    sink = simulation.run()
    assert judge(protocol.guarantee, QUERIES["windowed"], simulation.workload, sink) == (True, None)
    assert len(simulation.instances) == 2
    return simulation.instances[1].recovery


@pytest.mark.parametrize("name", ["progress_marking", "transactions"])
def test_snapshots_save_an_order_of_magnitude(name: str) -> None:
    assert KILL_MS >= 20 * SNAPSHOT_INTERVAL_MS
    with_snapshots, without = recovery_of(name, SNAPSHOT_INTERVAL_MS), recovery_of(name, 0)
    print(f"{name}: {with_snapshots} with snapshots, {without} without")
    assert 0 < 10 * with_snapshots["entries_read"] <= without["entries_read"]
    assert 0 < 10 * with_snapshots["changes_applied"] <= without["changes_applied"]
