"""Sweeps: the grid and the engine without Spark, then real sweeps that are killed, interrupted and taken up again."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.experiments import run_result, search_rate, search_table
from runners.grid import expand, in_order, keys
from runners.manifest import DONE, FAILED, NAME, PENDING, RUNNING, Entry, key_of, load, locked
from runners.rundir import code_version, environment
from runners.settings import ConfigError
from runners.sustained import Search
from runners.sweep import BROKEN, WELL, Result, Sweep, _duration
from tests.bench.harness import composed, protocols

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))


# --- the grid ---


def test_every_combination_in_the_order_of_the_axes() -> None:
    assert expand({"query": ["q1", "q5"], "rate": [10, 20]}, {}, CONFIGS) == [
        ("query=q1", "rate=10"), ("query=q1", "rate=20"), ("query=q5", "rate=10"), ("query=q5", "rate=20"),
    ]  # fmt: skip


def test_a_pattern_finds_the_files_of_its_group(tmp_path: Path) -> None:
    (tmp_path / "protocol").mkdir()
    for name in ("b", "a", "other"):
        (tmp_path / "protocol" / f"{name}.yaml").touch()
    assert expand({"protocol": "*"}, {}, tmp_path) == [("protocol=a",), ("protocol=b",), ("protocol=other",)]
    assert expand({"protocol": "?"}, {}, tmp_path) == [("protocol=a",), ("protocol=b",)]
    with pytest.raises(ConfigError, match="fits none of a, b, other"):
        expand({"protocol": "c*"}, {}, tmp_path)


def test_a_mapping_gives_each_value_of_an_earlier_axis_its_own_values() -> None:
    axes = {"query": ["q1", "q5"], "rate": {"q1": [10, 20], "q5": [5], "q8": [1]}}
    assert expand(axes, {}, CONFIGS) == [("query=q1", "rate=10"), ("query=q1", "rate=20"), ("query=q5", "rate=5")]
    with pytest.raises(ConfigError, match=r"axes\.rate has values for q1, q5, q8 only"):
        expand({"query": ["q3"], "rate": axes["rate"]}, {}, CONFIGS)


def test_a_value_may_be_an_override_of_its_own_and_a_null_axis_is_none() -> None:
    axes = {"snapshots": ["protocol.snapshot_interval_ms=0", "protocol.snapshot_interval_ms=9"], "flush": None}
    assert expand(axes, {}, CONFIGS) == [("protocol.snapshot_interval_ms=0",), ("protocol.snapshot_interval_ms=9",)]


def test_the_command_line_takes_the_place_of_an_axis() -> None:
    axes = {"query": ["q1", "q5"], "rate": {"q1": [10], "q5": [5]}, "snapshots": ["protocol.snapshot_interval_ms=0"]}
    given = keys(["query=q5", "protocol.snapshot_interval_ms=7", "+new=1"])
    assert given == {"query": "q5", "protocol.snapshot_interval_ms": "7", "new": "1"}
    assert expand(axes, given, CONFIGS) == [("rate=5",)]


@pytest.mark.parametrize("axis", [[], 5, ["a", "a"], {"q1": 3}])
def test_axes_that_make_no_sense_are_refused(axis: Any) -> None:
    with pytest.raises(ConfigError, match=r"experiment\.axes\.rate"):
        expand({"query": ["q1"], "rate": axis}, {}, CONFIGS)


def test_the_order_is_random_by_seed_and_repetition_major() -> None:
    combinations = [(f"rate={rate}",) for rate in range(20)]
    cells = in_order(combinations, 3, 7)
    assert [cell.repetition for cell in cells] == [0] * 20 + [1] * 20 + [2] * 20
    parts = [[cell.overrides for cell in cells if cell.repetition == number] for number in range(3)]
    assert all(sorted(part) == sorted(combinations) for part in parts)
    assert combinations not in parts
    assert parts[0] != parts[1]
    assert cells == in_order(combinations, 3, 7)
    assert cells != in_order(combinations, 3, 8)
    assert len({cell.id for cell in cells}) == 60


@pytest.mark.parametrize("repetitions", [0, -1, "three", True, 1.5])
def test_repetitions_must_be_a_positive_number(repetitions: Any) -> None:
    with pytest.raises(ConfigError, match="repetitions"):
        in_order([("a=1",)], repetitions, 7)


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "single"])
def test_every_experiment_has_a_grid_at_every_scale(name: str, scale: str) -> None:
    config, _ = composed(f"experiment={name}", f"scale={scale}")
    if "at" not in config.experiment:
        return  # an experiment without a grid: one long run
    from run import plain

    found = expand(plain(config.experiment.axes), {}, CONFIGS)
    assert found
    assert int(config.experiment.repetitions) >= 1
    assert config.experiment.name == name
    used = {part.partition("=")[2] for part in found[0]} | {part for cell in found for part in cell}
    if config.experiment.axes.get("protocol") == "*":
        assert {f"protocol={protocol}" for protocol in protocols()} <= used


def test_the_small_figure_seven_is_the_one_that_was_promised() -> None:
    config, _ = composed("experiment=latency_throughput")
    from run import plain

    found = expand(plain(config.experiment.axes), {}, CONFIGS)
    assert len(found) == 4 * len(protocols()) * 4
    assert (config.experiment.repetitions, config.duration_s, config.warmup_s) == (3, 25, 5)


# --- keys ---


def test_a_key_follows_the_configuration_and_the_code() -> None:
    assert key_of({"a": 1, "b": {"c": 2}}, "x") == key_of({"b": {"c": 2}, "a": 1}, "x")
    assert len({key_of({"a": 1}, "x"), key_of({"a": 2}, "x"), key_of({"a": 1}, "y")}) == 3


def test_what_does_not_change_a_measurement_does_not_change_its_identity() -> None:
    from run import identity

    first, _ = composed("experiment=smoke", "protocol=unsafe")
    for same in (["quiet=true"], ["force=true"], ["repetition=2"], ["experiment.repetitions=4"],
                 ["experiment.axes.protocol=[unsafe]"]):  # fmt: skip
        other, _ = composed("experiment=smoke", "protocol=unsafe", *same)
        assert identity(other) == identity(first), same
    for different in (["rate=1"], ["scale=paper"], ["query.states=[OR]"], ["seed=8"], ["failure=kill"]):
        other, _ = composed("experiment=smoke", "protocol=unsafe", *different)
        assert identity(other) != identity(first), different


def test_a_run_says_the_code_version_that_its_sweep_goes_by() -> None:
    assert environment(7, "")["code"] == code_version()


def test_the_code_version_follows_the_runtime_and_not_the_documents(tmp_path: Path) -> None:
    (tmp_path / "runners").mkdir()
    (tmp_path / "requirements.lock").write_text("a==1\n")
    (tmp_path / "runners" / "task.py").write_text("pass\n")
    before = code_version(tmp_path)
    (tmp_path / "README.md").write_text("words\n")
    assert code_version(tmp_path) == before
    (tmp_path / "runners" / "task.py").write_text("pass  # changed\n")
    assert code_version(tmp_path) != before


# --- the engine ---


class Lab:
    """A sweep whose cells are functions; remembers what was run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ran: list[str] = []
        self.said = ""
        self.keys: dict[tuple[str, ...], str] = {}
        self.behaviour: dict[str, Callable[[], Result]] = {}

    def start(self, values: list[str], repetitions: int = 1, *, force: bool = False) -> int:
        self.ran = []
        stream = io.StringIO()
        sweep = Sweep(
            directory=self.directory, experiment="lab", scale="small", command="lab", seed=7, check=self.check,
            measure=self.measure, force=force, stream=stream,
        )  # fmt: skip
        try:
            return sweep.run(in_order([(f"a={value}",) for value in values], repetitions, 7))
        finally:
            self.said = stream.getvalue()

    def check(self, overrides: tuple[str, ...]) -> str:
        if overrides == ("a=impossible",):
            raise ConfigError("a cannot be that")
        return self.keys.get(overrides, "key")

    def measure(self, entry: Entry, directory: Path, label: str) -> Result:
        assert list(directory.iterdir()) == [], "a cell begins with an empty directory"
        assert states(self.directory)[entry.id] == RUNNING
        (directory / "made").touch()
        self.ran.append(entry.id)
        behave = self.behaviour.get(entry.overrides[0])
        return behave() if behave else Result(text="fine")


def states(directory: Path) -> dict[str, str]:
    return {entry.id: entry.state for entry in load(directory)}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "sweep")


def test_all_cells_run_once_and_the_manifest_says_so(lab: Lab) -> None:
    assert lab.start(["x", "y"], repetitions=2) == WELL
    assert sorted(lab.ran) == ["a=x,r0", "a=x,r1", "a=y,r0", "a=y,r1"]
    content = json.loads((lab.directory / NAME).read_text())
    assert {name: content[name] for name in ("experiment", "scale", "command", "seed")} == {
        "experiment": "lab", "scale": "small", "command": "lab", "seed": 7,
    }  # fmt: skip
    for cell in content["cells"]:
        assert {"id", "overrides", "repetition", "state", "exit_code", "directory", "key"} <= set(cell)
        assert (cell["state"], cell["exit_code"]) == (DONE, 0)
        assert (lab.directory / cell["directory"] / "made").exists()
    assert "4/4" in lab.said


def test_finished_cells_are_skipped_and_force_repeats_them(lab: Lab) -> None:
    lab.start(["x", "y"])
    assert lab.start(["x", "y"]) == WELL
    assert lab.ran == []
    assert "2 are finished already" in lab.said
    lab.start(["x", "y", "z"])
    assert lab.ran == ["a=z,r0"]
    lab.start(["x", "y"], force=True)
    assert len(lab.ran) == 2


def test_another_configuration_or_code_runs_again(lab: Lab) -> None:
    lab.start(["x", "y"])
    lab.keys["a=x",] = "another"
    lab.start(["x", "y"])
    assert lab.ran == ["a=x,r0"]
    assert "1 were finished under another configuration" in lab.said


def test_a_finished_cell_whose_directory_was_removed_runs_again(lab: Lab) -> None:
    lab.start(["x", "y"])
    shutil.rmtree(lab.directory / "cells" / "a=y,r0")
    lab.start(["x", "y"])
    assert lab.ran == ["a=y,r0"]


def test_cells_that_are_not_part_of_this_start_are_kept(lab: Lab) -> None:
    lab.start(["x", "y"])
    lab.start(["z"])
    assert states(lab.directory) == {"a=x,r0": DONE, "a=y,r0": DONE, "a=z,r0": DONE}
    assert "2 cells of earlier starts" in lab.said


def raising(error: BaseException) -> Callable[[], Result]:
    def behave() -> Result:
        raise error

    return behave


def test_one_failing_cell_stops_no_other_and_is_tried_again(lab: Lab) -> None:
    lab.behaviour["a=bad"] = raising(RuntimeError("the roof\nfell in"))
    assert lab.start(["x", "bad", "y"], repetitions=2) == BROKEN
    assert len(lab.ran) == 6
    (bad, _) = [entry for entry in load(lab.directory) if entry.overrides == ["a=bad"]]
    assert (bad.state, bad.exit_code, bad.message) == (FAILED, 1, "failed: RuntimeError: the roof")
    assert "2 failed" in lab.said
    del lab.behaviour["a=bad"]
    assert lab.start(["x", "bad", "y"], repetitions=2) == WELL
    assert sorted(lab.ran) == ["a=bad,r0", "a=bad,r1"]


def test_an_impossible_cell_is_reported_and_the_others_run(lab: Lab) -> None:
    assert lab.start(["x", "impossible"]) == BROKEN
    assert lab.ran == ["a=x,r0"]
    (entry,) = [entry for entry in load(lab.directory) if entry.state == FAILED]
    assert (entry.exit_code, entry.message) == (2, "a cannot be that")
    assert "impossible: a cannot be that" in lab.said


def test_when_every_cell_is_impossible_nothing_starts(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"no cell of lab can run.*a cannot be that"):
        lab.start(["impossible"], repetitions=2)
    assert not lab.directory.exists()


def test_a_broken_guarantee_is_a_finding_and_not_repeated(lab: Lab) -> None:
    lab.behaviour["a=x"] = lambda: Result(text="lost", broken=True)
    assert lab.start(["x", "y"]) == BROKEN
    assert lab.start(["x", "y"]) == BROKEN
    assert lab.ran == []


def test_an_invalid_measurement_is_done_and_reported(lab: Lab) -> None:
    lab.behaviour["a=x"] = lambda: Result(text="slow", remarks=("invalid: a slow instrument",))
    assert lab.start(["x"]) == WELL
    assert load(lab.directory)[0].message == "invalid: a slow instrument"
    assert "invalid: a slow instrument" in lab.said


def test_an_interrupt_keeps_what_is_done(lab: Lab) -> None:
    lab.behaviour["a=y"] = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        lab.start(["x", "y", "z"])
    before = list(lab.ran)
    assert states(lab.directory)["a=y,r0"] == PENDING
    del lab.behaviour["a=y"]
    assert lab.start(["x", "y", "z"]) == WELL
    assert sorted([*before[:-1], *lab.ran]) == ["a=x,r0", "a=y,r0", "a=z,r0"]


def test_a_cell_that_was_running_when_the_process_died_begins_anew(lab: Lab) -> None:
    lab.start(["x", "y"])
    path = lab.directory / NAME
    content = json.loads(path.read_text())
    content["cells"][0]["state"] = RUNNING
    path.write_text(json.dumps(content))
    assert lab.start(["x", "y"]) == WELL
    assert lab.ran == [content["cells"][0]["id"]]  # into an empty directory, as `measure` asserts


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"cells": [{"id": 1}]}', '{"cells": [{"colour": "red"}]}', "null"])
def test_a_damaged_manifest_is_named_and_nothing_is_overwritten(lab: Lab, damage: str) -> None:
    lab.start(["x"])
    (lab.directory / NAME).write_text(damage)
    with pytest.raises(ConfigError, match=r"manifest\.json is damaged"):
        lab.start(["x"])
    assert (lab.directory / NAME).read_text() == damage
    assert (lab.directory / "cells" / "a=x,r0" / "made").exists()


def test_one_sweep_at_a_time_in_a_directory(lab: Lab) -> None:
    with locked(lab.directory), pytest.raises(ConfigError, match="another sweep is running"):
        lab.start(["x"])
    assert lab.start(["x"]) == WELL


def test_time_left_is_told_in_fitting_units() -> None:
    assert [_duration(seconds) for seconds in (5, 89, 600, 9000)] == ["5 s", "89 s", "10 min", "2.5 h"]


# --- what a cell comes to ---


def summary(rate: int = 1000, **more: Any) -> dict[str, Any]:
    return {
        "valid": True, "invalid_reasons": [], "guarantee": "exactly_once", "guarantee_held": True, "complete": True,
        "latency_ms": {"visible": {"p50": 4.0, "p99": 9.0}}, "sustainable": rate <= 5000, "rate_sustained": float(rate),
        "query": "q1", "protocol": "p", "repetition": 0, **more,
    }  # fmt: skip


def test_a_run_becomes_a_cells_result() -> None:
    assert run_result(summary()) == Result(text="visible 4 / 9 ms")
    assert run_result(summary(guarantee_held=False)).broken
    assert not run_result(summary(guarantee_held=None)).broken
    assert not run_result(summary(complete=False, invalid_reasons=["a role failed"])).finished
    slow = run_result(summary(valid=False, invalid_reasons=["slow sink"]))
    assert (slow.finished, slow.remarks) == (True, ("invalid: slow sink",))
    with pytest.raises(KeyboardInterrupt):
        run_result(summary(complete=False, invalid_reasons=["interrupted"]))


def test_a_search_keeps_the_evidence_of_every_probe(tmp_path: Path) -> None:
    def measure(rate: int, place: Path) -> dict[str, Any]:
        place.mkdir(parents=True)
        return summary(rate)

    result = search_rate(Search(start_rate=2000), measure, tmp_path)
    content = json.loads((tmp_path / "search.json").read_text())
    assert (content["query"], content["protocol"]) == ("q1", "p")
    assert content["rate"] <= 5000 <= content["rate"] * 1.11
    assert f"{content['rate']:,} events/s" in result.text
    assert all((tmp_path / probe["directory"]).is_dir() for probe in content["probes"])
    assert {probe["sustained"] for probe in content["probes"]} == {True, False}
    assert f"{content['rate']:,}" in search_table([tmp_path])


def test_a_search_that_broke_a_guarantee_says_so(tmp_path: Path) -> None:
    result = search_rate(Search(start_rate=2000), lambda rate, _: summary(rate, guarantee_held=rate < 4000), tmp_path)
    assert result.broken
    assert "guarantee broken at 4000/s" in result.remarks


# --- real sweeps ---

PATIENCE_S = 900  # a loaded machine is slow, not wrong
TINY = ("experiment=smoke", "experiment.axes.protocol=[unsafe,progress_marking,nowhere]", "experiment.repetitions=2")


def start(directory: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *arguments, f"hydra.run.dir={directory}"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def strike(directory: Path, number: signal.Signals) -> tuple[int, dict[str, int], str]:
    """Start, let one cell finish, send the signal while the next one runs.

    Returns the exit code, what is done (and when), and what was said.
    """
    before = set(done_cells(directory))
    running = start(directory, *TINY)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (set(done_cells(directory)) - before and _clock_runs(directory)):
            assert running.poll() is None, running.communicate()[0]
            assert time.monotonic() < deadline, "no cell came to its end"
            time.sleep(0.05)
        running.send_signal(number)
        said, _ = running.communicate(timeout=90)
    finally:
        running.kill()
    return running.returncode, done_cells(directory), said


def done_cells(directory: Path) -> dict[str, int]:
    """The finished cells, and when their run.json was written."""
    return {
        entry.id: (directory / entry.directory / "run.json").stat().st_mtime_ns
        for entry in load(directory)
        if entry.state == DONE
    }


def _clock_runs(directory: Path) -> bool:
    return any(
        entry.state == RUNNING and events.exists() and '"clock"' in events.read_text()
        for entry in load(directory)
        for events in [directory / entry.directory / "events.jsonl"]
    )


@pytest.fixture(scope="module")
def survivor(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One sweep, killed with SIGKILL, taken up, interrupted with Ctrl-C, and taken up to its end."""
    directory = tmp_path_factory.mktemp("survivor") / "sweep"
    killed = strike(directory, signal.SIGKILL)
    left = [entry.id for entry in load(directory) if entry.state == RUNNING]
    interrupted = strike(directory, signal.SIGINT)
    last = start(directory, *TINY)
    output, _ = last.communicate(timeout=PATIENCE_S)
    return {
        "directory": directory, "killed": killed, "left": left, "interrupted": interrupted, "output": output,
        "code": last.returncode, "end": done_cells(directory),
    }  # fmt: skip


@pytest.mark.timeout(PATIENCE_S)
def test_a_sweep_survives_sigkill_and_ctrl_c(survivor: dict[str, Any]) -> None:
    code, after_kill, _ = survivor["killed"]
    assert code == -signal.SIGKILL
    assert len(survivor["left"]) == 1, "what was running is known"
    code, after_interrupt, said = survivor["interrupted"]
    assert code == 130
    assert "it goes on with\n  python run.py experiment=smoke" in said
    assert f"hydra.run.dir={os.path.relpath(survivor['directory'], ROOT)}" in said
    assert set(after_kill) < set(after_interrupt) < set(survivor["end"]), "each start finished something"
    assert len(survivor["end"]) == 4, survivor["output"]
    for earlier in (after_kill, after_interrupt):
        assert {name: survivor["end"][name] for name in earlier} == earlier, "no cell ran twice"


@pytest.mark.timeout(PATIENCE_S)
def test_a_sweep_with_an_impossible_cell_runs_the_others(survivor: dict[str, Any]) -> None:
    assert survivor["code"] == 1, survivor["output"]
    entries = load(survivor["directory"])
    assert sorted(entry.state for entry in entries) == [DONE] * 4 + [FAILED] * 2
    for entry in entries:
        if entry.state == FAILED:
            assert entry.exit_code == 2
            assert "nowhere" in entry.message
    assert "Traceback" not in survivor["output"]


@pytest.mark.timeout(PATIENCE_S)
def test_repetitions_have_equal_inputs_and_equal_answers(survivor: dict[str, Any]) -> None:
    done = [entry for entry in load(survivor["directory"]) if entry.state == DONE]
    places = [survivor["directory"] / entry.directory for entry in done]
    runs = [json.loads((place / "run.json").read_text()) for place in places]
    inputs = {json.loads((place / "environment.json").read_text())["input_hash"] for place in places}
    assert sorted((run["protocol"], run["repetition"]) for run in runs) == [
        (protocol, repetition) for protocol in ("progress_marking", "unsafe") for repetition in (0, 1)
    ]
    assert len(inputs) == 1
    assert len({run["answer_hash"] for run in runs}) == 1
    assert all(run["answer_hash"] and run["verification"]["checked"] > 0 for run in runs)


@pytest.mark.timeout(PATIENCE_S)
def test_smoke_is_well(tmp_path: Path) -> None:
    running = start(tmp_path / "smoke", "experiment=smoke")
    output, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, output
    entries = load(tmp_path / "smoke")
    assert [entry.state for entry in entries] == [DONE] * len(protocols())
    for protocol in protocols():
        assert f"\n{protocol} " in output, "each has a line in the table"
    shutil.rmtree(tmp_path / "smoke")
