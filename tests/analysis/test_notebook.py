"""The notebook runs from top to bottom over a sweep, and shows what the report shows."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from runners.rundir import ROOT
from tests.analysis.sample_sweep import write_sweep


def test_the_notebook_runs_and_shows_frame_claims_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sweep(tmp_path / "sweep", queries=("q5",), repetitions=1)
    monkeypatch.setenv("TIDEMARK_RESULTS", str(tmp_path / "sweep"))
    notebook = nbformat.read(ROOT / "analysis" / "report.ipynb", as_version=4)
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "\n".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)
    assert "1 unreadable" in text
    assert "visible_p99_ms" in text
    assert "not enough data" in text
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 4


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = nbformat.read(ROOT / "analysis" / "report.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
