"""Run directories become one frame; damaged ones are named with their reason and never stop the others."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.finding import FILES
from analysis.load import load, merged, merged_by_spark
from runners.rundir import RunDirectoryError
from tests.analysis.synthetic import START_US, write_manifest, write_run


def test_a_row_for_each_run_at_any_depth_with_flat_names(tmp_path: Path) -> None:
    write_run(tmp_path / "a", protocol="progress_marking", snapshot_interval_ms=10_000, samples_ms=(10, 20, 30))
    write_run(tmp_path / "sweep" / "deep" / "b", protocol="unsafe", commit_interval_ms=None, fault_at_s=5.0,
              recovery_ms={"restart": 250.0}, entries_read=12)  # fmt: skip
    frame = load(tmp_path).frame.set_index("protocol")
    assert len(frame) == 2
    assert frame.loc["progress_marking", "visible_p50_ms"] == 20
    assert frame.loc["progress_marking", "emit_p99_ms"] == 15
    assert frame.loc["progress_marking", "snapshot_interval_ms"] == 10_000
    assert frame.loc["progress_marking", "generator_delay_p99_ms"] == 2
    assert frame.loc["unsafe", "recovery_restart_ms"] == 250
    assert math.isnan(frame.loc["unsafe", "recovery_total_ms"])
    assert math.isnan(frame.loc["unsafe", "commit_interval_ms"])
    assert frame.loc["unsafe", "recovery_entries_read"] == 12
    assert frame.loc["unsafe", "log_bytes_changelog"] == 150
    assert frame.loc["unsafe", "fault_s"] == pytest.approx(5.0)


def test_directories_of_before_repetitions_and_splits_load(tmp_path: Path) -> None:
    path = write_run(tmp_path / "old", fault_at_s=5.0)
    run = json.loads((path / "run.json").read_text())
    del run["repetition"], run["recovery_ms"], run["recovery"]
    (path / "run.json").write_text(json.dumps(run | {"verification": None}))
    row = load(tmp_path).frame.iloc[0]
    assert row["repetition"] == 0
    assert math.isnan(row["recovery_total_ms"])
    assert math.isnan(row["verification_lost"])


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "good")
    bad = write_run(tmp_path / "bad")
    (bad / name).unlink()
    results = load(tmp_path)
    assert len(results.frame) == 1
    assert [one.path for one in results.unreadable] == [bad]
    assert name in results.unreadable[0].reason


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_cut_off_is_named(tmp_path: Path, name: str) -> None:
    bad = write_run(tmp_path / "bad")
    content = (bad / name).read_bytes()
    (bad / name).write_bytes(b"{" if name == "config.yaml" else content[: len(content) // 2])
    results = load(tmp_path)
    assert results.frame.empty
    assert name in results.unreadable[0].reason


def test_a_summary_without_its_fields_is_named(tmp_path: Path) -> None:
    (write_run(tmp_path / "bad") / "run.json").write_text('{"query": "q5"}')
    assert "lacks" in load(tmp_path).unreadable[0].reason


def test_what_a_manifest_promises_is_missed(tmp_path: Path) -> None:
    cell = {"id": "1", "overrides": [], "repetition": 0, "state": "done", "exit_code": 0, "directory": "gone"}
    write_manifest(tmp_path, [cell, cell | {"state": "pending", "directory": "not-yet"}])
    results = load(tmp_path)
    assert [one.path.name for one in results.unreadable] == ["gone"]
    assert len(results.manifests) == 1


def test_a_manifest_of_nonsense_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('["no"')
    assert "manifest.json" in load(tmp_path).unreadable[0].reason


def test_a_root_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="not a directory"):
        load(tmp_path / "nowhere")


def test_log_latencies_are_rows(tmp_path: Path) -> None:
    (tmp_path / "log_latency.json").write_text('[{"rate": 10, "p50_us": 100, "p99_us": 200, "count": 50}]')
    results = load(tmp_path)
    assert results.log_latency.iloc[0]["p99_us"] == 200
    assert not results.unreadable


def test_repetitions_share_a_cell_and_other_settings_do_not(tmp_path: Path) -> None:
    write_run(tmp_path / "a", repetition=0)
    write_run(tmp_path / "b", repetition=1)
    write_run(tmp_path / "c", config={"flush_interval_ms": 5})
    cells = load(tmp_path).frame.set_index("directory")["cell"]
    first, second, other = (cells[str(tmp_path / name)] for name in "abc")
    assert first == second != other


def test_a_query_with_several_flush_intervals_is_several_series(tmp_path: Path) -> None:
    for query, flush in (("q5", 10), ("q5", 100), ("q8", 10)):
        write_run(tmp_path / f"{query}-{flush}", query=query, config={"flush_interval_ms": flush})
    frame = load(tmp_path).frame.set_index("directory")
    assert {Path(str(path)).name: series for path, series in frame["series"].items()} == {
        "q5-10": "q5, 10 ms flushes", "q5-100": "q5, 100 ms flushes", "q8-10": "q8"}  # fmt: skip


def test_sweeps_that_share_a_cell_add_to_its_repetitions_and_are_told_apart(tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two")):
        config = {"experiment": {"name": name}, "log": {"path": f"/{name}"}, "scale": name, "force": name == "two"}
        write_run(tmp_path / name / "cells" / "a", config=config, start_us=START_US + number)
        write_manifest(tmp_path / name, [])
    write_run(tmp_path / "alone", start_us=START_US + 2)
    frame = load(tmp_path).frame.set_index("directory")
    assert frame["cell"].nunique() == 1
    assert frame["sweep"].to_dict() == {
        str(tmp_path / "alone"): "",
        **{str(tmp_path / name / "cells" / "a"): str(tmp_path / name) for name in ("one", "two")},
    }


def test_what_a_sweep_sweeps_is_not_compared_across(tmp_path: Path) -> None:
    cells = []
    for query, parallelism in (("q5", 1), ("q5", 2), ("q8", 2)):
        name = f"{query}-{parallelism}"
        write_run(tmp_path / name, query=query, parallelism=parallelism)
        overrides = [f"query={query}", f"parallelism={parallelism}"]
        cells.append({"id": name, "overrides": overrides, "repetition": 0, "state": "done", "directory": name})
    write_manifest(tmp_path, cells)
    frame = load(tmp_path).frame.set_index("directory")
    assert {Path(str(path)).name: series for path, series in frame["series"].items()} == {
        "q5-1": "q5, parallelism=1", "q5-2": "q5, parallelism=2", "q8-2": "q8"}  # fmt: skip


def test_a_copy_of_a_run_is_no_repetition(tmp_path: Path) -> None:
    write_run(tmp_path / "mine")
    shutil.copytree(tmp_path / "mine", tmp_path / "saved")
    results = load(tmp_path)
    assert [Path(path).name for path in results.frame["directory"]] == ["mine"]
    assert [(one.path.name, one.reason) for one in results.unreadable] == [
        ("saved", f"a copy of {tmp_path / 'mine'}, which counts once")
    ]


def test_faults_that_were_asked_for_differently_are_told_apart(tmp_path: Path) -> None:
    for name, at_s, seed in (("a", 5, 7), ("b", 5, 8), ("c", 6, 7)):
        write_run(tmp_path / name, fault_at_s=5.0, start_us=START_US + seed,
                  config={"failure": {"at_s": at_s, "seed": seed}})  # fmt: skip
    faults = load(tmp_path).frame["fault"].tolist()
    assert faults == ["kill, at_s=5", "kill, at_s=5", "kill, at_s=6"]


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "latency.parquet", "environment.json"])
def test_a_file_with_rubbish_inside_is_named(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "good", repetition=1)
    damaged = write_run(tmp_path / "bad") / name
    content = damaged.read_bytes()
    middle = len(content) // 4
    damaged.write_bytes(content[:middle] + b"\xff\x00" * 20 + content[middle + 40 :])
    results = load(tmp_path)
    assert [Path(path).name for path in results.frame["directory"]] == ["good"]
    assert [one.path.name for one in results.unreadable] == ["bad"]


def test_the_measured_part_leaves_out_the_warm_up(tmp_path: Path) -> None:
    write_run(tmp_path / "a", samples_ms=(10.0,), slow_second=1)
    histogram = load(tmp_path).histogram(str(tmp_path / "a"), "visible")
    assert histogram["value_us"].tolist() == [10_000]
    assert histogram["count"].sum() == 8


def test_spark_merges_as_pandas_does(tmp_path: Path, spark: Any) -> None:
    for repetition in range(3):
        for protocol, interval in (("unsafe", None), ("transactions", 100)):
            write_run(tmp_path / f"protocol={protocol},n={repetition}" / "a b%", protocol=protocol,
                      repetition=repetition, commit_interval_ms=interval, slow_second=4,
                      samples_ms=(10.0 + repetition, 20.0, 30.0))  # fmt: skip
    results = load(tmp_path)
    by = ["protocol", "commit_interval_ms"]
    expected = merged(results, "visible", by)
    assert expected["count"].sum() == 2 * 3 * 3 * 8
    pd.testing.assert_frame_equal(merged_by_spark(spark, results.frame, "visible", by), expected)


def test_published_results_are_loaded_by_name_only(tmp_path: Path) -> None:
    """Else they would count as repetitions of one's own."""
    write_run(tmp_path / "mine")
    write_run(tmp_path / "reference" / "theirs")
    assert [Path(path).name for path in load(tmp_path).frame["directory"]] == ["mine"]
    assert [Path(path).name for path in load(tmp_path / "reference").frame["directory"]] == ["theirs"]
