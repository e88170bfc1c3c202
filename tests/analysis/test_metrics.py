"""Every number of the analysis against one that was computed by hand or from raw samples."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.load import load
from analysis.metrics import (
    Estimate,
    against_baseline,
    cells,
    median_of,
    merge,
    percentile_ms,
    percentile_of_cell,
    ratio_of_cells,
    ratio_of_medians,
    recovery_split,
    revisions_apart,
    short,
    sustained_rates,
    usual,
    write_amplification,
)
from runners.histogram import bucket
from tests.analysis.synthetic import START_US, write_manifest, write_run


def histogram(counts: dict[int, int]) -> pd.DataFrame:
    return pd.DataFrame({"value_us": list(counts), "count": list(counts.values())}, dtype="int64")


def test_percentiles_by_hand() -> None:
    table = histogram({30_000: 1, 10_000: 50, 20_000: 49})
    assert percentile_ms(table, 50) == 10
    assert percentile_ms(table, 51) == 20
    assert percentile_ms(table, 99) == 20
    assert percentile_ms(table, 99.9) == 30
    assert math.isnan(percentile_ms(histogram({}), 50))
    assert percentile_ms(histogram({1000 * i: 1 for i in range(1, 101)}), 7) == 7  # 0.07 * 100 is more than 7


@pytest.mark.parametrize("seed", range(5))
def test_merged_histograms_against_exact_percentiles_of_raw_samples(seed: int) -> None:
    print("seed", seed)
    random = np.random.default_rng(seed)
    parts = [np.rint(random.lognormal(9 + run, 1.0, 3_000 + 500 * run)).astype(np.int64) for run in range(4)]
    tables = []
    for part in parts:
        edges, counts = np.unique(bucket(part), return_counts=True)
        tables.append(pd.DataFrame({"value_us": edges, "count": counts}))
    raw = np.sort(np.concatenate(parts))
    for percent in (1, 50, 90, 99, 99.9, 100):
        rank = -(
            -len(raw) * round(percent * 10) // 1000
        )  # in whole numbers: the least rank that reaches the percentage
        exact = float(raw[rank - 1]) / 1000
        assert exact * (1 - 1 / 1024) <= percentile_ms(merge(tables), percent) <= exact
        assert percentile_of_cell(tables, percent).value == percentile_ms(merge(tables), percent)
    averaged = float(np.mean([percentile_ms(table, 99) for table in tables]))
    assert averaged < 0.9 * percentile_ms(merge(tables), 99)  # the mistake that merging avoids would be seen


def test_an_interval_spans_what_repetitions_say() -> None:
    tables = [histogram({value: 10}) for value in (10_000, 20_000, 30_000)]
    found = percentile_of_cell(tables, 50)
    assert (found.value, found.low, found.high, found.n) == (20, 10, 30, 3)
    assert found == percentile_of_cell(tables, 50)  # seeded


def test_one_repetition_has_no_interval_and_empty_ones_do_not_count() -> None:
    found = percentile_of_cell([histogram({5_000: 1}), histogram({})], 50)
    assert found.n == 1
    assert math.isnan(found.low)
    assert percentile_of_cell([], 50).n == 0
    assert str(percentile_of_cell([], 50)) == "–"


def test_ratios_by_hand() -> None:
    over = [histogram({20_000: 5})] * 3
    under = [histogram({10_000: 5})] * 4
    ratio = ratio_of_cells(over, under, 99)
    assert (ratio.value, ratio.low, ratio.high, ratio.n) == (2, 2, 2, 3)
    medians = ratio_of_medians([30.0, 31.0, 29.0], [3.0, 3.0, 3.0])
    assert medians.value == 10
    assert 29 / 3 <= medians.low <= medians.high <= 31 / 3
    assert math.isnan(ratio_of_medians([1.0], [0.0]).value)
    assert math.isnan(ratio_of_cells(over, [], 50).value)


def test_medians_leave_out_what_was_not_measured() -> None:
    assert median_of([1.0, math.nan, 3.0, 2.0]).value == 2
    assert median_of([1.0, math.nan, 3.0, 2.0]).n == 3


def test_cells_use_valid_runs_and_say_so(tmp_path: Path) -> None:
    write_run(tmp_path / "a", repetition=0, samples_ms=(10.0,))
    write_run(tmp_path / "b", repetition=1, samples_ms=(90.0,), valid=False, invalid_reasons=["slow sink"])
    write_run(tmp_path / "c", protocol="transactions", samples_ms=(50.0,), valid=False, invalid_reasons=["slow sink"])
    results = load(tmp_path)
    found = cells(results, results.frame).set_index("protocol")
    assert found.loc["unsafe", "p50"].value == 10
    assert (found.loc["unsafe", "n"], found.loc["unsafe", "left_out"], found.loc["unsafe", "valid"]) == (1, 1, True)
    assert not found.loc["transactions", "valid"]


def test_the_cost_of_safety_by_hand(tmp_path: Path) -> None:
    for repetition in range(3):
        for protocol, middle in (("unsafe", 10.0), ("progress_marking", 15.0)):
            write_run(tmp_path / f"{protocol}{repetition}", protocol=protocol, repetition=repetition,
                      samples_ms=(middle,), commit_interval_ms=None if protocol == "unsafe" else 100)  # fmt: skip
    write_run(tmp_path / "alone", protocol="progress_marking", rate=99)
    write_run(tmp_path / "other", protocol="progress_marking", config={"flush_interval_ms": 5})
    results = load(tmp_path)
    ratios = against_baseline(results, cells(results, results.frame), "unsafe")
    assert len(ratios) == 1
    assert ratios.iloc[0]["p99_ratio"] == Estimate(value=1.5, low=1.5, high=1.5, n=3)


def test_write_amplification_and_recovery_by_hand(tmp_path: Path) -> None:
    split = {"detect": 1.0, "restart": 2.0, "restore": 3.0, "catch_up": 4.0, "total": 10.0}
    write_run(tmp_path / "a", fault_at_s=5.0, recovery_ms=split)
    write_run(tmp_path / "b", repetition=1, fault_at_s=5.0, recovery_ms=split | {"detect": 3.0, "catch_up": None})
    frame = load(tmp_path).frame
    assert write_amplification(frame).tolist() == [0.5, 0.5]
    found = recovery_split(frame)
    assert (found["detect"].value, found["detect"].n) == (2, 2)
    assert (found["catch_up"].value, found["catch_up"].n) == (4, 1)
    assert math.isnan(write_amplification(frame.assign(log_bytes_input=0)).iloc[0])


@pytest.mark.parametrize(("other", "flagged"), [(0.5, False), (0.6, False), (0.61, True), (0.4, True), (0.0, True)])
def test_revisions_more_than_a_fifth_apart_are_flagged(tmp_path: Path, other: float, flagged: bool) -> None:
    write_run(tmp_path / "a", protocol="unsafe")
    write_run(tmp_path / "b", protocol="transactions", revisions_per_event=other)
    write_run(tmp_path / "c", protocol="transactions", rate=5, revisions_per_event=9.0)
    found = revisions_apart(load(tmp_path).frame)
    assert found["flagged"].tolist() == [flagged]


def test_the_highest_rate_sustained(tmp_path: Path) -> None:
    for rate, sustainable, valid in ((1000, True, True), (2000, True, True), (4000, True, False), (8000, False, True)):
        write_run(tmp_path / str(rate), rate=rate, sustainable=sustainable, valid=valid)
    write_run(tmp_path / "t", protocol="transactions", rate=1000)
    found = sustained_rates(load(tmp_path).frame).set_index("protocol")
    assert (found.loc["unsafe", "rate"], found.loc["unsafe", "censored"]) == (2000, False)
    assert (found.loc["transactions", "rate"], found.loc["transactions", "censored"]) == (1000, True)


def test_a_repetition_of_another_sweep_is_another_repetition(tmp_path: Path) -> None:
    for sweep, best in (("one", 1000), ("two", 2000)):
        for rate in (1000, 2000, 4000):
            write_run(tmp_path / sweep / str(rate), rate=rate, sustainable=rate <= best, start_us=START_US + best)
        write_manifest(tmp_path / sweep, [])
    assert sorted(sustained_rates(load(tmp_path).frame)["rate"]) == [1000, 2000]


def test_a_repetition_with_rates_to_come_has_sustained_nothing_yet(tmp_path: Path) -> None:
    for repetition in (0, 1):
        for rate in (1000, 2000):
            write_run(tmp_path / f"{rate}-{repetition}", rate=rate, repetition=repetition)
    write_manifest(tmp_path, [{"id": "x", "overrides": [], "repetition": 1, "state": "pending", "directory": "x"}])
    assert sustained_rates(load(tmp_path).frame)["repetition"].tolist() == [0]


def test_revisions_are_compared_at_one_commit_interval(tmp_path: Path) -> None:
    for interval, mine, theirs in ((10, 0.1, 0.3), (100, 0.05, 0.05)):
        write_run(tmp_path / f"a{interval}", protocol="transactions", commit_interval_ms=interval,
                  revisions_per_event=mine)  # fmt: skip
        write_run(tmp_path / f"b{interval}", protocol="progress_marking", commit_interval_ms=interval,
                  revisions_per_event=theirs)  # fmt: skip
    write_run(tmp_path / "c", protocol="unsafe", commit_interval_ms=None, revisions_per_event=0.05)
    found = revisions_apart(load(tmp_path).frame).set_index("commit_interval_ms")
    assert found["apart"].round(2).to_dict() == {10: 5.0, 100: 0.0}
    assert found["flagged"].to_dict() == {10: True, 100: False}


def test_usual_runs_have_no_fault_and_one_commit_interval(tmp_path: Path) -> None:
    write_run(tmp_path / "a", protocol="transactions", commit_interval_ms=10)
    write_run(tmp_path / "b", protocol="transactions", commit_interval_ms=100)
    write_run(tmp_path / "c", protocol="unsafe", commit_interval_ms=None)
    write_run(tmp_path / "d", protocol="unsafe", commit_interval_ms=None, fault_at_s=5.0)
    chosen = usual(load(tmp_path).frame)["directory"]
    assert {Path(path).name for path in chosen} == {"b", "c"}


def test_numbers_are_short() -> None:
    assert [short(value) for value in (0.1234, 1.234, 12.34, 123.4, 12345.6, 0.0)] == [
        "0.123", "1.23", "12.3", "123", "12,346", "0"]  # fmt: skip
