"""The report is one file that says what was found, what does not count, what was unfair, and how to repeat it."""

import re
from pathlib import Path

import pytest

from analysis.differences import protocol_settings, unexpected
from analysis.load import load
from analysis.report import main, write
from tests.analysis.sample_sweep import write_sweep
from tests.analysis.synthetic import write_manifest, write_run


def test_a_report_of_a_whole_sweep_stands_alone(tmp_path: Path) -> None:
    path = write(write_sweep(tmp_path / "sweep", queries=("q5",), repetitions=1))
    text = path.read_text()
    assert path == tmp_path / "sweep" / "report.html"
    assert not re.search(r"(src|href)=\"(?!data:|#)|@import|url\(|<script|<link", text)
    assert text.count("data:image/png;base64,") == len(list((tmp_path / "sweep" / "figures").glob("*.png"))) >= 5
    for expected in ("Summary", "Claims", "python run.py experiment=latency_throughput", "c0ffee", "impossible",
                     "q5-unsafe-cut-off", "not enough data", "27–30× fewer"):  # fmt: skip
        assert expected in text
    assert str(tmp_path) not in text


def test_writing_it_again_changes_nothing(tmp_path: Path) -> None:
    """Its own figures and page are no runs."""
    write_run(tmp_path / "a", fault_at_s=3.0)
    assert write(tmp_path).read_text() == write(tmp_path).read_text()


def test_names_from_outside_are_escaped(tmp_path: Path) -> None:
    write_run(tmp_path / "a", valid=False, invalid_reasons=["<script>alert(1)</script>"])
    assert "<script>" not in write(tmp_path).read_text()


def test_a_report_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert "No complete run" in (tmp_path / "report.html").read_text()
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([]) == 2
    said = capsys.readouterr()
    assert "not a directory" in said.err
    assert "Traceback" not in said.err


def test_without_a_manifest_the_commands_are_rebuilt(tmp_path: Path) -> None:
    write_run(tmp_path / "a", fault_at_s=3.0)
    text = write(tmp_path).read_text()
    assert "python run.py query=q5 protocol=unsafe rate=10000 duration_s=10" in text
    assert "failure=kill failure.at_s=3.0" in text


def test_what_differs_besides_the_protocol_is_flagged(tmp_path: Path) -> None:
    write_run(tmp_path / "a", protocol="unsafe", config={"flush_bytes": 10})
    write_run(tmp_path / "b", protocol="transactions", config={"flush_bytes": 5}, repetition=0)
    write_run(tmp_path / "c", protocol="transactions", config={"flush_bytes": 7}, rate=99)
    (found,) = unexpected(load(tmp_path))
    assert found.setting == "flush_bytes"
    assert dict(found.values) == {"unsafe": "10", "transactions": "5"}
    assert "not fair" in write(tmp_path).read_text()


def test_equal_settings_and_swept_ones_are_not_flagged(tmp_path: Path) -> None:
    cells = []
    for name in ("unsafe", "transactions"):
        for parallelism in (1, 2):
            write_run(tmp_path / f"{name}{parallelism}", protocol=name, config={"parallelism": parallelism})
            cells.append({"id": f"{name}{parallelism}", "overrides": [f"protocol={name}", f"parallelism={parallelism}"],
                          "repetition": 0, "state": "done", "exit_code": 0,
                          "directory": f"{name}{parallelism}"})  # fmt: skip
    assert [one.setting for one in unexpected(load(tmp_path))] == ["parallelism"]
    write_manifest(tmp_path, cells)
    assert unexpected(load(tmp_path)) == []


def test_another_input_is_flagged(tmp_path: Path) -> None:
    write_run(tmp_path / "a", protocol="unsafe")
    other = write_run(tmp_path / "b", protocol="transactions")
    environment = other / "environment.json"
    environment.write_text(environment.read_text().replace("q5-10000", "other"))
    assert [one.setting for one in unexpected(load(tmp_path))] == ["(hash of the input)"]


def test_protocols_settings_are_listed(tmp_path: Path) -> None:
    write_run(tmp_path / "a", protocol="unsafe", commit_interval_ms=None)
    write_run(tmp_path / "b", protocol="transactions", commit_interval_ms=10, snapshot_interval_ms=0)
    write_run(tmp_path / "c", protocol="transactions", commit_interval_ms=100, snapshot_interval_ms=0)
    protocols, settings = protocol_settings(load(tmp_path))
    assert protocols == ["transactions", "unsafe"]
    assert settings["protocol.commit_interval_ms"] == {"transactions": "10, 100", "unsafe": "None"}
    assert settings["protocol.snapshot_interval_ms"]["unsafe"] == "–"


def test_unequal_amounts_of_results_are_flagged(tmp_path: Path) -> None:
    write_run(tmp_path / "a", protocol="unsafe")
    write_run(tmp_path / "b", protocol="transactions", revisions_per_event=5.0)
    assert "most against fewest, differ by 900% at q5" in write(tmp_path).read_text()
