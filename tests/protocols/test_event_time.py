"""Event time after a crash: what was late stays late, and what is repeated behind a closed window is dropped.

Which windows are closed is part of the state (`Table.horizon`): it is written with the changes, in the same append as
the output under the watermark that closed them. So whoever replays changes has also closed what they closed, before the
first row comes. Under at-least-once that is ahead of the recovered position. All rows before a flushed watermark were
processed before the flush, hence rows of such windows are repeats, and to count them again in an empty window
would write a part of the sum over the whole.
"""

import pyarrow as pa
import pytest

from dataflow.table import NEVER, Table
from protocols.base import Guarantee
from runners.simcheck import QUERIES
from runners.simjob import Simulation
from runners.simulated import load_protocol, protocol_names, run_seed, schedule_of

SEEDS = range(300)
STATEFUL = [name for name in protocol_names() if load_protocol(name).guarantee is not Guarantee.NONE]


def forget_closed_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows leave as they should, but a recovered task begins at the beginning of time."""
    apply = Table.apply

    def forgetful(self: Table, changes: pa.RecordBatch) -> None:
        apply(self, changes)
        self.horizon = -NEVER

    monkeypatch.setattr(Table, "apply", forgetful)


def first_failure(name: str, query: str) -> str | None:
    protocol = load_protocol(name)
    for seed in SEEDS:
        if failure := run_seed(protocol, query, seed).failure:
            print(f"seed {seed}: {failure}")
            return failure
    return None


@pytest.mark.parametrize("name", STATEFUL)
def test_forgotten_event_time_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed window that opens again is a loss under at-least-once, where rows repeat; and everywhere where rows
    are late."""
    repeats = load_protocol(name).guarantee is Guarantee.AT_LEAST_ONCE
    forget_closed_windows(monkeypatch)
    failure = first_failure(name, "windowed" if repeats else "late")
    assert failure is not None
    assert ("lost" if repeats else "wrong answer") in failure


@pytest.mark.parametrize("name", STATEFUL)
def test_rows_are_late_only_where_they_repeat(name: str) -> None:
    """With exact watermarks nothing is ever late, unless the protocol lets rows come twice."""
    protocol = load_protocol(name)
    late = []
    for seed in SEEDS[:60]:
        simulation = Simulation(protocol, QUERIES["windowed"], schedule_of(seed, protocol, "windowed"))
        simulation.run()
        late.append(simulation.late_rows)
    print(late)
    assert (sum(late) > 0) == (protocol.guarantee is Guarantee.AT_LEAST_ONCE)
