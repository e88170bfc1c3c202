"""Each claim is shown results in which it holds, in which it does not, and too few of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.claims import CLAIMS, Finding, Judged, Verdict, above, evaluate, within
from analysis.load import load
from analysis.metrics import Estimate
from tests.analysis.synthetic import write_manifest, write_run

Writer = Callable[[Path, bool, int], None]
PM, TX, AL = "progress_marking", "transactions", "aligned_checkpoint"


def pair(root: Path, n: int, over: str, over_ms: float, under: str, under_ms: float, **fields: Any) -> None:
    """n repetitions of two protocols with these latencies, a little different each time."""
    for repetition in range(n):
        for name, middle in ((over, over_ms), (under, under_ms)):
            interval = None if name == "unsafe" else fields.get("commit_interval_ms", 100)
            write_run(root / f"{name}-{interval}-{fields.get('rate', 0)}-{repetition}", protocol=name,
                      repetition=repetition, samples_ms=(middle + repetition / 10,),
                      **{**fields, "commit_interval_ms": interval})  # fmt: skip


def at_ten_ms(root: Path, holds: bool, n: int) -> None:
    pair(root, n, TX, 50 if holds else 20, PM, 30, query="q4", commit_interval_ms=10)


def gap(root: Path, holds: bool, n: int) -> None:
    pair(root, n, TX, 90 if holds else 30, PM, 30, query="q4", commit_interval_ms=10)
    pair(root, n, TX, 100 if holds else 200, PM, 100, query="q4", commit_interval_ms=100)


def at_hundred_ms(root: Path, holds: bool, n: int) -> None:
    pair(root, n, TX, 150 if holds else 80, PM, 100, query="q5")


def aligned(root: Path, holds: bool, n: int) -> None:
    pair(root, n, AL, 150 if holds else 80, PM, 100, query="q8")


def cost(root: Path, holds: bool, n: int) -> None:
    pair(root, n, PM, 150 if holds else 300, "unsafe", 100, query="q5")


def sustained(root: Path, holds: bool, n: int) -> None:
    for repetition in range(n):
        for name, best in ((PM, 4000 if holds else 1000), (TX, 2000)):
            for rate in (1000, 2000, 4000, 8000):
                write_run(root / f"{name}-{rate}-{repetition}", protocol=name, rate=rate, repetition=repetition,
                          sustainable=rate <= best)  # fmt: skip


def snapshots(root: Path, holds: bool, n: int, *, fault_at_s: float = 5.1) -> None:
    for repetition in range(n):
        for interval, entries, total in ((0, 1000, 4000.0), (1_000, 40 if holds else 900, 300.0 if holds else 5000.0)):
            write_run(root / f"{interval}-{repetition}", protocol=PM, query="q8", repetition=repetition,
                      fault_at_s=fault_at_s,
                      snapshot_interval_ms=interval, entries_read=entries + repetition,
                      recovery_ms={"total": total + repetition})  # fmt: skip


def exactly_once(root: Path, holds: bool, n: int) -> None:
    for repetition in range(n):
        broken = not holds and repetition == 0
        write_run(root / f"{repetition}", protocol=TX, repetition=repetition, fault_at_s=5.0,
                  guarantee_held=not broken, verification={"duplicated": int(broken)})  # fmt: skip


def unsafe(root: Path, holds: bool, n: int) -> None:
    for repetition in range(n):
        write_run(root / f"{repetition}", protocol="unsafe", repetition=repetition, fault_at_s=5.0,
                  verification={"edges_ok": not (holds or repetition)})  # fmt: skip


WRITERS: dict[str, Writer] = {
    "transactions_at_10_ms": at_ten_ms,
    "gap_grows": gap,
    "transactions_at_100_ms": at_hundred_ms,
    "aligned_checkpoints": aligned,
    "cost_p50": cost,
    "cost_p99": cost,
    "sustained_rate": sustained,
    "snapshots_entries": snapshots,
    "snapshots_time": snapshots,
    "exactly_once_kept": exactly_once,
    "unsafe_breaks": unsafe,
}


def judged(root: Path, name: str) -> Judged:
    return next(one for one in evaluate(load(root)) if one.claim.name == name)


def test_every_claim_is_shown_data() -> None:
    assert set(WRITERS) == {claim.name for claim in CLAIMS}


@pytest.mark.parametrize("name", WRITERS)
def test_a_claim_holds_where_the_data_say_so(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path, True, 3)
    found = judged(tmp_path, name)
    assert found.verdict is Verdict.HOLDS, found
    assert any(character.isdigit() for finding in found.findings for character in finding.numbers)


@pytest.mark.parametrize("name", WRITERS)
def test_a_claim_does_not_hold_where_the_data_say_the_opposite(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path, False, 3)
    assert judged(tmp_path, name).verdict is Verdict.FAILS, judged(tmp_path, name)


@pytest.mark.parametrize("name", WRITERS)
def test_two_repetitions_are_too_few(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path, True, 2)
    found = judged(tmp_path, name)
    assert found.findings
    assert found.verdict is Verdict.UNKNOWN, found


def test_without_runs_nothing_is_known(tmp_path: Path) -> None:
    assert {one.verdict for one in evaluate(load(tmp_path))} == {Verdict.UNKNOWN}


def test_invalid_runs_decide_nothing(tmp_path: Path) -> None:
    pair(tmp_path, 3, TX, 50, PM, 30, query="q4", commit_interval_ms=10, valid=False, invalid_reasons=["slow sink"])
    found = judged(tmp_path, "transactions_at_10_ms")
    assert found.verdict is Verdict.UNKNOWN
    assert "invalid" in found.findings[0].numbers


def test_runs_with_faults_say_nothing_of_latency(tmp_path: Path) -> None:
    pair(tmp_path, 3, TX, 50, PM, 30, query="q4", commit_interval_ms=10, fault_at_s=5.0)
    assert not judged(tmp_path, "transactions_at_10_ms").findings


def test_answers_that_were_wrong_or_not_checked_say_nothing_of_latency(tmp_path: Path) -> None:
    pair(tmp_path / "wrong", 3, TX, 50, PM, 30, query="q4", commit_interval_ms=10, verification={"wrong": 1})
    pair(tmp_path / "unknown", 3, TX, 50, PM, 30, query="q6", commit_interval_ms=10)
    for path in (tmp_path / "unknown").glob("*/run.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"verification": None}))
    assert not judged(tmp_path, "transactions_at_10_ms").findings


def test_only_equal_parallelism_is_compared(tmp_path: Path) -> None:
    """With one task the claim holds by far, with two it does not; across both it would look as if it did."""
    for parallelism, theirs in ((1, 200), (2, 20)):
        pair(tmp_path / f"{parallelism}", 3, TX, theirs, PM, 30, query="q4", commit_interval_ms=10,
             parallelism=parallelism)  # fmt: skip
    cells = [{"id": str(n), "overrides": [f"parallelism={n}"], "repetition": 0, "state": "done", "directory": f"{n}"}
             for n in (1, 2)]  # fmt: skip
    write_manifest(tmp_path, cells)
    found = {finding.where: finding.verdict for finding in judged(tmp_path, "transactions_at_10_ms").findings}
    assert found == {
        "q4, parallelism=1 at 10,000/s, 10 ms": Verdict.HOLDS, "q4, parallelism=2 at 10,000/s, 10 ms": Verdict.FAILS
    }  # fmt: skip


def test_the_highest_rate_with_valid_runs_decides(tmp_path: Path) -> None:
    pair(tmp_path / "a", 3, TX, 50, PM, 30, query="q4", commit_interval_ms=10, rate=1000)
    pair(tmp_path / "b", 3, TX, 50, PM, 30, query="q4", commit_interval_ms=10, rate=2000, valid=False,
         invalid_reasons=["slow sink"])  # fmt: skip
    (finding,) = judged(tmp_path, "transactions_at_10_ms").findings
    assert (finding.where, finding.verdict) == ("q4 at 1,000/s, 10 ms", Verdict.HOLDS)


def test_a_fault_that_nobody_dies_of_says_nothing_of_unsafe(tmp_path: Path) -> None:
    unsafe(tmp_path, True, 3)
    write_run(tmp_path / "slow", protocol="unsafe", repetition=3, fault_at_s=5.0, failure="slow_log", restarts=0)
    assert judged(tmp_path, "unsafe_breaks").verdict is Verdict.HOLDS


def test_the_cost_is_that_of_the_papers_flushes(tmp_path: Path) -> None:
    for repetition in range(3):
        for protocol, p50 in (("unsafe", 10.0), (PM, 100.0)):
            write_run(tmp_path / f"{protocol}-{repetition}", protocol=protocol, repetition=repetition,
                      samples_ms=(p50,), config={"flush_interval_ms": 10},
                      commit_interval_ms=None if protocol == "unsafe" else 100)  # fmt: skip
    assert judged(tmp_path, "cost_p50").findings == ()


def test_a_kill_soon_after_the_start_says_nothing_of_snapshots(tmp_path: Path) -> None:
    snapshots(tmp_path, False, 3, fault_at_s=3.5)  # half a second after a snapshot: seven times less can be saved
    entries = judged(tmp_path, "snapshots_entries")
    assert entries.verdict is Verdict.UNKNOWN
    assert "too early: at most 7.00 times less" in entries.findings[0].numbers
    assert judged(tmp_path, "snapshots_time").verdict is Verdict.FAILS


def test_a_fault_without_proof_says_nothing_of_guarantees(tmp_path: Path) -> None:
    exactly_once(tmp_path, True, 2)
    fault = {"kind": "kill", "role": "count/0", "time_ms": 0, "proven": False}
    write_run(tmp_path / "unproven", protocol=TX, repetition=2, fault_at_s=5.0, faults=[fault])
    assert judged(tmp_path, "exactly_once_kept").verdict is Verdict.UNKNOWN


def test_the_top_of_the_grid_decides_nothing(tmp_path: Path) -> None:
    for repetition in range(3):
        for name in (PM, TX):
            write_run(tmp_path / f"{name}-{repetition}", protocol=name, repetition=repetition)
    assert judged(tmp_path, "sustained_rate").verdict is Verdict.UNKNOWN


def test_different_amounts_of_results_are_said(tmp_path: Path) -> None:
    pair(tmp_path, 3, TX, 50, PM, 30, query="q4", commit_interval_ms=10)
    results = load(tmp_path)
    frame = results.frame
    frame.loc[frame["protocol"] == TX, "revisions_per_event"] = 0.9
    found = next(one for one in evaluate(results) if one.claim.name == "transactions_at_10_ms")
    assert "revisions per event differ by 80%" in found.findings[0].numbers


def test_intervals_decide() -> None:
    assert above(Estimate(value=2, low=1.5, high=3, n=3), 1) is Verdict.HOLDS
    assert above(Estimate(value=2, low=0.5, high=3, n=3), 1) is Verdict.UNKNOWN
    assert above(Estimate(value=0.5, low=0.4, high=0.9, n=3), 1) is Verdict.FAILS
    assert above(Estimate(value=2, low=1.5, high=3, n=2), 1) is Verdict.UNKNOWN
    assert within(Estimate(value=1.5, low=1.3, high=1.9, n=3), 1.2, 2) is Verdict.HOLDS
    assert within(Estimate(value=1.5, low=1.1, high=1.9, n=3), 1.2, 2) is Verdict.UNKNOWN
    assert within(Estimate(value=3, low=2.5, high=3.5, n=3), 1.2, 2) is Verdict.FAILS


def test_one_comparison_against_it_is_enough_and_half_must_speak_for_it() -> None:
    def over(*verdicts: Verdict) -> Verdict:
        findings = tuple(Finding(where="", verdict=verdict, numbers="") for verdict in verdicts)
        return Judged(claim=CLAIMS[0], findings=findings).verdict

    assert over(Verdict.HOLDS, Verdict.HOLDS, Verdict.FAILS) is Verdict.FAILS
    assert over(Verdict.HOLDS, Verdict.UNKNOWN) is Verdict.HOLDS
    assert over(Verdict.HOLDS, Verdict.UNKNOWN, Verdict.UNKNOWN) is Verdict.UNKNOWN
