"""Tables fit the terminal and say what was lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.load import load
from analysis.tables import cell_rows, comparison, published_rows, recovery_rows
from tests.analysis.synthetic import write_run

SPLIT = {"detect": 12.0, "restart": 1368.0, "restore": 40.0, "catch_up": 12345.0, "total": 13765.0}


def runs(root: Path) -> list[dict[str, Any]]:
    """A worst case: long names, large numbers, a broken answer, a run without results."""
    broken = {"lost": 12345, "duplicated": 54321, "wrong": 3, "edges_ok": False}
    paths = [
        write_run(root / "a", protocol="aligned_checkpoint", rate=1_000_000, samples_ms=(12345.0, 23456.0),
                  fault_at_s=5.0, recovery_ms=SPLIT, verification=broken),
        write_run(root / "b", protocol="unsafe", samples_ms=(), fault_at_s=5.0),
        write_run(root / "c", protocol="transactions", rate_sustained=6000.0, sustainable=False),
    ]  # fmt: skip
    return [json.loads((path / "run.json").read_text()) for path in paths]


@pytest.mark.parametrize("width", [80, 120])
def test_the_comparison_fits(tmp_path: Path, width: int) -> None:
    text = comparison(runs(tmp_path), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    words = " ".join(text.split())
    for expected in ("12345 lost", "54321 duplicated", "edges differ", "1368", "catch-up", "0.50", "1000000"):
        assert expected in words


def test_a_run_that_did_not_keep_up_shows_both_rates(tmp_path: Path) -> None:
    assert "6000 of" in comparison(runs(tmp_path)[2:], width=120)


def test_old_runs_show_the_restart_of_their_faults(tmp_path: Path) -> None:
    line = comparison(runs(tmp_path)[1:2], width=120).splitlines()[-1]
    assert line.split()[:7] == ["unsafe", "10000", "–", "–", "–", "300", "–"]


def test_without_faults_a_narrow_comparison_has_no_recovery(tmp_path: Path) -> None:
    assert "recovery" not in comparison(runs(tmp_path)[2:], width=80)


def test_an_unfinished_run_says_why(tmp_path: Path) -> None:
    run = runs(tmp_path)[2] | {"verification": None, "invalid_reasons": ["interrupted"]}
    assert "incomplete: interrupted" in comparison([run], width=120)


def test_cells_tell_what_was_left_out_and_lost(tmp_path: Path) -> None:
    write_run(tmp_path / "a", repetition=0, samples_ms=(10.0,))
    write_run(tmp_path / "b", repetition=1, valid=False, invalid_reasons=["x"], verification={"lost": 4})
    header, row = cell_rows(load(tmp_path))
    cell = dict(zip(header, row, strict=True))
    assert cell["visible p99"] == "10.0"
    assert cell["verified"] == "4 lost"
    assert cell["n"] == "1 (+1 invalid)"


def test_recovery_has_the_shape_of_table_4(tmp_path: Path) -> None:
    for repetition in range(3):
        for interval in (0, 10_000):
            write_run(tmp_path / f"{interval}-{repetition}", protocol="progress_marking", query="q8",
                      repetition=repetition, fault_at_s=5.0, snapshot_interval_ms=interval, recovery_ms=SPLIT,
                      entries_read=1000 if not interval else 50)  # fmt: skip
    write_run(tmp_path / "quiet")
    header, *rows = recovery_rows(load(tmp_path))
    found = {row[header.index("snapshots")]: dict(zip(header, row, strict=True)) for row in rows}
    assert set(found) == {"off", "every 10 s"}
    assert found["off"]["entries read"].startswith("1,000 ")
    assert found["every 10 s"]["total ms"].startswith("13,765 ")
    assert found["off"]["n"] == "3"
    assert found["off"]["load"] == "–"


def test_recoveries_from_different_faults_are_different_rows(tmp_path: Path) -> None:
    for kind, at_s in (("kill", 5.0), ("kill", 6.0), ("pause", 5.0)):
        write_run(tmp_path / f"{kind}-{at_s}", protocol="progress_marking", fault_at_s=at_s, failure=kind,
                  recovery_ms=SPLIT)  # fmt: skip
    header, *rows = recovery_rows(load(tmp_path))
    assert sorted(row[header.index("fault")] for row in rows) == [
        "kill of count/0 at 5 s", "kill of count/0 at 6 s", "pause of count/0 at 5 s"]  # fmt: skip
    assert {row[header.index("n")] for row in rows} == {"1"}


def test_the_papers_figures_for_what_was_run(tmp_path: Path) -> None:
    write_run(tmp_path / "a", query="q8")
    _, *rows = published_rows(load(tmp_path))
    assert rows == [("7", "q8", "80,000", "100", "105 / 170", "109 / 229", "118 / 1217")]


def test_the_load_during_recovery_is_a_fraction_of_what_was_sustained(tmp_path: Path) -> None:
    for protocol, rates in (("transactions", (10_000, 40_000, 80_000)), ("unsafe", (40_000,))):
        for rate in rates:
            write_run(tmp_path / f"{protocol}-{rate}", protocol=protocol, rate=rate, sustainable=rate <= 40_000)
        write_run(tmp_path / f"{protocol}-killed", protocol=protocol, fault_at_s=5.0, recovery_ms=SPLIT)
    header, *rows = recovery_rows(load(tmp_path))
    found = {row[header.index("protocol")]: row[header.index("load")] for row in rows}
    assert found == {"transactions": "25%", "unsafe": "≤ 25%"}


def test_nothing_makes_empty_tables(tmp_path: Path) -> None:
    results = load(tmp_path)
    assert len(cell_rows(results)) == len(recovery_rows(results)) == 1
