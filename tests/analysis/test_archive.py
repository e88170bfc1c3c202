"""An archived sweep says the same as the sweep."""

from pathlib import Path
from zipfile import ZipFile

import pandas as pd
import pytest

from analysis import claims
from analysis.archive import _coarse, archive, main
from analysis.load import METRICS, load
from analysis.metrics import percentile_ms
from analysis.report import write
from analysis.timeline import percentile_by_second
from runners import manifest
from runners.rundir import RunDirectory, RunDirectoryError
from tests.analysis.sample_sweep import write_sweep
from tests.analysis.synthetic import write_manifest, write_run


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """With faults and lag, and without; every run is a cell."""
    whole = write_sweep(tmp_path / "whole", queries=("q5",))
    runs = sorted(path.parent for path in whole.glob("*/run.json") if "cut-off" not in str(path))
    cells = [
        {"id": run.name, "overrides": [], "repetition": 0, "state": "done", "directory": run.name, "key": "k"}
        for run in runs
    ]
    write_manifest(whole, [*cells, {"id": "x", "state": "pending", "directory": "cells/x"}])
    return whole


def test_frame_histograms_and_claims_are_those_of_the_sweep(sweep: Path, tmp_path: Path) -> None:
    target = tmp_path / "reference" / "sweep.zip"
    runs = archive(sweep, target)
    assert runs == len(list(sweep.glob("*/run.json"))) - 1 > 60  # one was cut off
    before, after = load(sweep), load(target.parent)
    assert len(after.frame) == runs
    assert len(set(after.frame["sweep"])) == 1
    assert not [one for one in after.unreadable if "pending" not in one.reason]
    columns = [name for name in before.frame.columns if name not in ("directory", "sweep")]
    pd.testing.assert_frame_equal(before.frame[columns], after.frame[columns])
    for one, other in zip(before.frame["directory"], after.frame["directory"], strict=True):
        assert Path(one).name == Path(other).name
        for metric in METRICS:
            was, kept = (
                results.histogram(path, metric)[["value_us", "count"]].reset_index(drop=True)
                for results, path in ((before, one), (after, other))
            )
            assert kept["count"].sum() == was["count"].sum()
            for percent in (50, 99):
                assert 0.992 < percentile_ms(kept, percent) / percentile_ms(was, percent) <= 1
    told = [(judged.claim.name, judged.verdict, judged.summary) for judged in claims.evaluate(before)]
    assert told == [(judged.claim.name, judged.verdict, judged.summary) for judged in claims.evaluate(after)]


def test_the_time_line_around_a_fault_is_kept(sweep: Path, tmp_path: Path) -> None:
    kept = _unpacked(sweep, tmp_path)
    name = "q8-unsafe-kill-None-0"
    before, after = (RunDirectory(root / name) for root in (sweep, kept))
    pd.testing.assert_frame_equal(before.lag().round({"elapsed_s": 2, "behind_ms": 0}), after.lag())
    was, left = (percentile_by_second(run.latency(), "visible", 99) for run in (before, after))
    assert list(was.index) == list(left.index)
    assert ((left <= was) & (left > 0.992 * was)).all()
    assert (write(kept)).is_file()


def _unpacked(sweep: Path, tmp_path: Path) -> Path:
    archive(sweep, tmp_path / "kept.zip")
    with ZipFile(tmp_path / "kept.zip") as file:
        file.extractall(tmp_path / "kept")
    return tmp_path / "kept"


def test_it_is_much_smaller_and_the_manifest_goes_along(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    run = write_run(whole / "cells" / "a", samples_ms=[i / 7 for i in range(1, 3_000)])
    write_manifest(whole, [{"id": "a", "overrides": [], "repetition": 0, "state": "done", "directory": "cells/a",
                            "key": "k"}])  # fmt: skip
    kept = _unpacked(whole, tmp_path)
    assert [entry.state for entry in manifest.load(kept)] == [manifest.DONE]
    size = sum(file.stat().st_size for file in run.iterdir())
    assert (tmp_path / "kept.zip").stat().st_size < size / 3


def test_wider_buckets_keep_the_sign_and_small_values() -> None:
    values = [-100_001, -1, 0, 1, 511, 512, 513, 100_001]
    wider = _coarse(pd.DataFrame({"second": 1, "metric": "emit", "value_us": values, "count": 2}), 9)
    assert wider["value_us"].tolist() == [-99_840, -1, 0, 1, 511, 512, 99_840]
    assert wider["count"].tolist() == [2, 2, 2, 2, 2, 4, 2]


def test_equal_sweeps_make_equal_bytes(sweep: Path, tmp_path: Path) -> None:
    for name in ("one.zip", "other.zip"):
        archive(sweep, tmp_path / name)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "other.zip").read_bytes()


def test_an_archive_beside_its_sweep_counts_once_and_can_be_loaded_alone(sweep: Path, tmp_path: Path) -> None:
    runs = archive(sweep, tmp_path / "kept.zip")
    assert len(load(tmp_path).frame) == runs
    frame = load(tmp_path / "kept.zip").frame  # the directories outlast what `load` returned
    assert len(frame) == runs
    assert RunDirectory(Path(frame["directory"].iloc[0])).run()["valid"]


def test_a_damaged_archive_is_named_and_the_rest_is_read(sweep: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "only" / "mine")
    (tmp_path / "only" / "cut.zip").write_bytes(b"PK cut off")
    archive(sweep, tmp_path / "only" / "rubbish.zip")
    content = bytearray((tmp_path / "only" / "rubbish.zip").read_bytes())
    content[2_000:2_040] = b"\xff\x00" * 20
    (tmp_path / "only" / "rubbish.zip").write_bytes(content)
    results = load(tmp_path / "only")
    assert len(results.frame) == 1
    assert [one.path.name for one in results.unreadable] == ["cut.zip", "rubbish.zip"]


def test_no_sweep_no_zip_and_a_place_that_is_taken_are_refused(sweep: Path, tmp_path: Path,
                                                               capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    target = tmp_path / "kept.zip"
    with pytest.raises(RunDirectoryError, match=r"no manifest\.json"):
        archive(tmp_path, target)
    with pytest.raises(RunDirectoryError, match=r"does not end in \.zip"):
        archive(sweep, tmp_path / "kept")
    assert not target.exists()
    target.touch()
    assert main([str(sweep), str(target)]) == 2
    assert "exists already" in capsys.readouterr().err
