"""An archived sweep says the same as the sweep."""

from pathlib import Path

import pandas as pd
import pytest

from analysis import claims
from analysis.archive import archive, main
from analysis.load import load
from analysis.report import write
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
    target = tmp_path / "kept" / "sweep"
    assert archive(sweep, target) == len(list(target.glob("*/run.json"))) > 60
    before, after = load(sweep), load(target)
    assert not [one for one in after.unreadable if "pending" not in one.reason]
    columns = [name for name in before.frame.columns if name not in ("directory", "sweep")]
    pd.testing.assert_frame_equal(before.frame[columns], after.frame[columns])
    for one, other in zip(before.frame["directory"], after.frame["directory"], strict=True):
        assert Path(one).name == Path(other).name
        kept = after.histogram(other, "visible")[["value_us", "count"]].reset_index(drop=True)
        pd.testing.assert_frame_equal(
            before.histogram(one, "visible")[["value_us", "count"]].reset_index(drop=True), kept
        )
    told = [(judged.claim.name, judged.verdict, judged.summary) for judged in claims.evaluate(before)]
    assert told == [(judged.claim.name, judged.verdict, judged.summary) for judged in claims.evaluate(after)]


def test_the_time_line_around_a_fault_is_kept(sweep: Path, tmp_path: Path) -> None:
    archive(sweep, tmp_path / "kept")
    name = "q8-unsafe-kill-None-0"
    for table in ("latency", "lag"):
        before, after = (getattr(RunDirectory(root / name), table)() for root in (sweep, tmp_path / "kept"))
        pd.testing.assert_frame_equal(before[list(after.columns)], after)
    assert (write(tmp_path / "kept")).is_file()


def test_it_is_much_smaller_and_the_manifest_goes_along(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    run = write_run(whole / "cells" / "a", samples_ms=[i / 7 for i in range(1, 3_000)])
    write_manifest(whole, [{"id": "a", "overrides": [], "repetition": 0, "state": "done", "directory": "cells/a",
                            "key": "k"}])  # fmt: skip
    archive(whole, tmp_path / "kept")
    assert [entry.state for entry in manifest.load(tmp_path / "kept")] == [manifest.DONE]
    sizes = [sum(file.stat().st_size for file in root.iterdir()) for root in (run, tmp_path / "kept" / "cells" / "a")]
    assert sizes[1] < sizes[0] / 3


def test_no_sweep_and_a_place_that_is_taken_are_refused(sweep: Path, tmp_path: Path,
                                                        capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    with pytest.raises(RunDirectoryError, match=r"no manifest\.json"):
        archive(tmp_path, tmp_path / "kept")
    assert main([str(sweep), str(sweep)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()
