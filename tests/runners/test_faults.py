"""Which faults are planned, what counts as proof, and when a job has caught up. No Spark; processes are real."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from protocols.base import Job, Phase, Plan
from runners import injector
from runners.faults import CONDITIONS, KINDS, Failure, Fault, FaultError, mixed, one
from runners.injector import Injector, Lasting
from runners.recovery import band_ms, caught_up_us
from runners.resources import Resources, growth
from runners.simulated import load_protocol
from runners.strike import Strike, await_stopped, born_s, is_stopped, signalled
from runners.vitals import SharedVitals, Ward
from runners.worker import RunSpec, wall_us
from sharedlog.memory import MemoryLogSpec

JOB = Job(
    sources=("source/0",),
    source_tags=("d/in/0",),
    tasks={name: Plan(name, {"d/in/0": ("source/0",)}, ()) for name in ("a/0", "a/1", "b/0")},
    sink_inputs={},
)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "explode", "at_s": 1}, "explode"),
        ({"kind": "kill", "at_s": -1}, "at_s"),
        ({"kind": "kill", "at_s": float("nan")}, "at_s"),
        ({"kind": "kill", "at_s": "soon"}, "at_s"),
        ({"kind": "kill", "at_s": True}, "at_s"),
        ({"kind": "kill", "at_s": 1, "for_s": 2}, "for_s"),
        ({"kind": "pause", "at_s": 1}, "for_s"),
        ({"kind": "pause", "at_s": 1, "for_s": 1e9}, "for_s"),
        ({"kind": "slow_log", "at_s": 1, "for_s": 1}, "delay_ms"),
        ({"kind": "kill", "at_s": 1, "role": ""}, "role"),
        ({"kind": "kill", "at_s": 1, "targets": 1.5}, "targets"),
        ({"kind": "kill", "at_s": 1, "when": "later"}, "later"),
        ({"kind": "kill", "at_s": 1, "when": "commit", "targets": 2}, "commit"),
        ({"kind": "pause", "at_s": 1, "for_s": 1, "when": "recovery"}, "recovery"),
        ({"kind": "kill", "at_s": 1, "colour": "red"}, "colour"),
        ({"kind": "kill", "at_s": 1, "every_s": 0.01}, "every_s"),
    ],
)
def test_faults_that_make_no_sense_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(FaultError, match=said):
        one(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("faults", [None, "kill", [1], {"kind": "kill"}])
def test_only_a_list_of_faults_can_be_injected(faults: object) -> None:
    """`failure=none failure.faults=null` went through, and ended in a traceback."""
    with pytest.raises(FaultError, match="must be a list of faults"):
        Failure(faults=faults)  # type: ignore[arg-type]


def test_targets_are_found_by_name_pattern_and_group() -> None:
    def found(role: str) -> list[str]:
        return Fault(kind="kill", at_s=1, role=role).candidates(JOB, ("coordinator/0",))

    assert found("a/1") == ["a/1"]
    assert found("a/*") == ["a/0", "a/1"]
    assert found("tasks") == ["a/0", "a/1", "b/0"]
    assert found("coordinators") == ["coordinator/0"]
    assert found("*") == ["source/0", "a/0", "a/1", "b/0", "coordinator/0"], "never the sink"


@pytest.mark.parametrize(
    ("fault", "executors", "said"),
    [
        (Fault(kind="kill", at_s=1, role="c/*"), 0, "c/\\*"),
        (Fault(kind="kill", at_s=1, role="a/*", targets=3), 0, "only 2"),
        (Fault(kind="kill", at_s=11), 0, "after the end"),
        (Fault(kind="kill_executor", at_s=1), 0, "local_cluster"),
    ],
)
def test_faults_without_a_target_are_refused_before_the_run(fault: Fault, executors: int, said: str) -> None:
    with pytest.raises(FaultError, match=said):
        Failure(faults=(fault,)).check(JOB, (), 10, executors=executors)


def test_repetitions_follow_the_seed() -> None:
    def plan(seed: int) -> list[Fault]:
        kinds = [{"kind": "kill"}, {"kind": "pause", "for_s": 0.5}]
        return mixed(faults=kinds, at_s=2, every_s=3, seed=seed).schedule(20)

    assert plan(1) == plan(1)
    assert plan(1) != plan(2)
    times = [fault.at_s for fault in plan(1)]
    assert times == sorted(times)
    assert len(times) == 6
    assert all(2 <= at_s < 19 for at_s in times)
    assert {fault.kind for seed in range(5) for fault in plan(seed)} == {"kill", "pause"}


def test_every_kind_and_condition_can_be_built() -> None:
    for kind in KINDS:
        needs = {"pause": {"for_s": 1.0}, "full_log": {"for_s": 1.0}, "log_stall": {"for_s": 1.0}}
        needs["slow_log"] = {"for_s": 1.0, "delay_ms": 5.0}
        Fault(kind=kind, at_s=1, when="time", **needs.get(kind, {}))  # type: ignore[arg-type]
    for when in CONDITIONS:
        Fault(kind="kill", at_s=1, when=when)


# Proof.


def killed(**known: object) -> Strike:
    whole = {"gone": True, "successor": 2, "entries": 3, "must_work": True, "time_us": 1}
    return Strike(fault=Fault(kind="kill", at_s=1), role="a/0", pid=1, instance=1, **{**whole, **known})  # type: ignore[arg-type]


def test_a_kill_is_proven_by_death_succession_and_lost_work() -> None:
    assert killed().unproven() == []
    assert killed(gone=False).unproven() == ["the process is still there"]
    assert killed(successor=0).unproven() == ["no new instance took over"]
    assert killed(entries=0).unproven() == ["nothing was uncommitted"]
    assert killed(must_lag=True).unproven() == ["it had read all its input"]
    assert killed(must_lag=True, lag_entries=1).unproven() == []
    assert killed(must_lag=True, shared_lag_entries=1).unproven() == []
    assert killed(entries=0, must_work=False).unproven() == []


def test_a_pause_is_proven_by_both_of_its_ends() -> None:
    pause = Strike(fault=Fault(kind="pause", at_s=1, for_s=1), role="a/0", pid=1, instance=1)
    assert pause.unproven() == ["it was not seen stopped and continued"]
    pause.stopped, pause.resumed_us = True, 5
    assert pause.unproven() == []


def test_the_split_adds_up_to_the_total() -> None:
    strike = killed(time_us=1000, detected_us=3000, begun_us=7000, restored_us=15_000, caught_up_us=31_000)
    assert strike.split_ms() == {"detect": 2.0, "restart": 4.0, "restore": 8.0, "catch_up": 16.0, "total": 30.0}
    strike.caught_up_us = 0
    assert strike.split_ms() == {"detect": 2.0, "restart": 4.0, "restore": 8.0, "catch_up": None, "total": None}


def test_a_fault_ends_in_time_while_the_next_one_waits_for_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that should be full for half a second was full for twenty, because a commit did not come."""
    monkeypatch.setattr(injector, "CONDITION_S", 0.5)
    spec = SimpleNamespace(job=JOB, protocol=load_protocol("progress_marking"), roles=lambda: list(JOB.tasks))
    busy = Injector(cast(RunSpec, spec), Failure(), Ward(tmp_path), MemoryLogSpec().open(), lambda *_, **__: None)
    ended: list[bool] = []
    busy._lasting.append(Lasting(wall_us() + 50_000, lambda: ended.append(True)))
    strike = Strike(fault=Fault(kind="kill", at_s=0, role="a/0", when="commit"), role="a/0")
    assert not busy._stop_in_phase(strike, Phase.COMMIT), "nobody plays this role"
    assert ended == [True], "nobody but those who wait could have ended it"


# Catching up.


def lag(*parts: tuple[float, float, float]) -> list[tuple[int, float]]:
    """(from s, to s, ms behind) pieces as samples, twenty a second."""
    return [
        (int((start + step * 0.05) * 1e6), behind)
        for start, stop, behind in parts
        for step in range(round((stop - start) / 0.05))
    ]


def test_caught_up_is_when_the_reader_is_as_close_as_before() -> None:
    samples = lag((0, 5, 100), (5, 7, 1500), (7, 10, 110))
    assert band_ms(samples, 5_000_000) == pytest.approx(130)
    assert caught_up_us(samples, 5_000_000, 5_400_000, 10_000_000) == 7_000_000


def test_a_short_dip_is_not_caught_up() -> None:
    samples = lag((0, 5, 100), (5, 6, 1500), (6, 6.2, 50), (6.2, 8, 900), (8, 10, 100))
    assert caught_up_us(samples, 5_000_000, 5_400_000, 10_000_000) == 8_000_000


def test_nobody_has_caught_up_before_the_state_was_restored_or_after_the_next_fault() -> None:
    samples = lag((0, 10, 100))
    assert caught_up_us(samples, 5_000_000, 6_000_000, 10_000_000) == 6_000_000
    assert caught_up_us(samples, 5_000_000, 0, 10_000_000) is None
    late = lag((0, 5, 100), (5, 9, 1500), (9, 10, 100))
    assert caught_up_us(late, 5_000_000, 6_000_000, 8_000_000) is None
    assert caught_up_us(lag((4.9, 10, 100)), 5_000_000, 6_000_000, 10_000_000) is None, "no band is known"


# Vitals.


@pytest.fixture
def child(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that keeps its vitals and enters its commit phase again and again."""
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom protocols.base import Phase\n"
        "from runners.vitals import SharedVitals\n"
        f"vitals = SharedVitals(Path({str(tmp_path)!r}), 'a/0', 1)\nvitals.restored(5, 6, 7)\n"
        "for turn in range(20000):\n    vitals.took(1, 100)\n    vitals.enter(Phase.COMMIT)\n"
        "    time.sleep(0.002)\n    vitals.committed()\n    vitals.beat(turn, turn, (turn, 9))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    yield process
    process.kill()
    process.wait()


def await_vitals(ward: Ward) -> None:
    deadline = time.monotonic() + 30
    while (seen := ward.newest("a/0")) is None or not seen.commits:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_armed_role_stops_in_the_phase_and_can_be_killed_there(
    tmp_path: Path, child: "subprocess.Popen[bytes]"
) -> None:
    ward = Ward(tmp_path)
    await_vitals(ward)
    assert not is_stopped(child.pid)
    ward.arm("a/0", Phase.COMMIT)
    assert await_stopped(child.pid, 10)
    seen = ward.newest("a/0")
    assert seen is not None
    assert (seen.pid, seen.phase, seen.entries, seen.bytes) == (child.pid, Phase.COMMIT, 1, 100)
    assert (seen.restored_us, seen.entries_read, seen.changes_applied) == (5, 6, 7)
    born = born_s(child.pid)
    assert signalled(child.pid, signal.SIGKILL)
    child.wait(10)
    assert born_s(child.pid) != born
    assert not signalled(child.pid, signal.SIGKILL)
    after = ward.newest("a/0")
    assert after == seen, "the dead leave their vitals behind"


def test_a_role_that_was_let_go_is_not_stopped_again(tmp_path: Path, child: "subprocess.Popen[bytes]") -> None:
    ward = Ward(tmp_path)
    await_vitals(ward)
    ward.arm("a/0", Phase.COMMIT)
    assert await_stopped(child.pid, 10)
    signalled(child.pid, signal.SIGCONT)
    before = ward.look("a/0", 1).commits
    deadline = time.monotonic() + 10
    while ward.look("a/0", 1).commits < before + 5:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_newest_instance_counts(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    assert ward.newest("a/0") is None
    for instance in (1, 2, 10):
        SharedVitals(tmp_path, "a/0", instance)
    SharedVitals(tmp_path, "a/01", 99)
    assert ward.instances("a/0") == [1, 2, 10]
    newest = ward.newest("a/0")
    assert newest is not None
    assert (newest.instance, newest.pid) == (10, os.getpid())


# Resources.


def test_growth_is_seen_and_warming_up_is_not() -> None:
    assert growth([100] * 30) == 0
    assert growth([10, 20, 50, 90] + [100] * 26) == 0
    assert growth(range(100, 400, 10)) > 0.3
    assert growth([1, 2, 3]) == 0


def test_usage_counts_what_is_there() -> None:
    usage = Resources().sample(1.5, [os.getpid(), 2**22 + 1], 7)
    assert (usage.roles, usage.log_bytes) == (1, 7)
    assert usage.role_bytes == pytest.approx(usage.driver_bytes, rel=0.2)
    assert usage.driver_files > 2


def test_looking_at_many_instances_keeps_one_file_open(tmp_path: Path) -> None:
    """A soak restarts roles again and again; the driver's open files grew by one each time."""
    ward = Ward(tmp_path)
    for instance in range(1, 40):
        SharedVitals(tmp_path, "a/0", instance)
        seen = ward.newest("a/0")
        assert seen is not None
        assert seen.instance == instance
    mapped = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
    assert sum(name.startswith(f"{tmp_path}/a.0@") for name in mapped) <= 2


def _is_open(descriptor: str) -> bool:
    """The listing's own descriptor is closed by now."""
    return os.path.islink(f"/proc/self/fd/{descriptor}")
