"""The end-to-end benchmarks on a system of known speed: do they ask the right questions and read the answers right?"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.bench import bench_pipeline, bench_protocols, harness, structured
from tests.bench.__main__ import BENCHMARKS
from tests.bench.__main__ import main as all_benchmarks

SLOWNESS = {"unsafe": 1.0, "progress_marking": 0.9, "transactions": 0.7, "aligned_checkpoint": 0.85}
EMIT = {"unsafe": 10.0, "progress_marking": 15.0, "transactions": 30.0, "aligned_checkpoint": 12.0}


@dataclass
class System:
    """Stands in for `harness.run`: every protocol has a capacity and a latency."""

    capacity: int = 1_200_000
    wrong: str | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, *overrides: str, query: str, protocol: str, rate: int, directory: Path, **settings: Any) -> Any:
        self.asked.append({"overrides": overrides, "query": query, "protocol": protocol, "rate": rate, **settings})
        directory.mkdir(parents=True, exist_ok=True)
        name = protocol.split("-")[0]
        (directory / "config.yaml").write_text(
            f"rate: {rate}\nprotocol: {{name: {name}}}\nlog: {{durability: process}}\n"
        )
        keeps_up = rate <= self.capacity * SLOWNESS.get(name, 0.5)
        emit = EMIT.get(name, 20.0)
        latency = {"count": 9, "p50": emit, "p90": 2 * emit, "p99": 3 * emit, "p999": 4 * emit, "max": 5 * emit}
        bad = int(protocol == self.wrong)
        verification = {"lost": bad, "duplicated": 0, "wrong": 0, "edges_ok": True, "examples": ["lost {}"] * bad}
        return {
            "query": query, "protocol": protocol, "rate_offered": rate, "sustainable": keeps_up, "valid": True,
            "invalid_reasons": [], "complete": True, "rate_sustained": float(rate), "revisions_per_event": 1.0,
            "latency_ms": dict.fromkeys(("emit", "visible", "paper"), latency),
            "verification": verification if settings["verify"] else None,
        }  # fmt: skip


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    fake = System()
    monkeypatch.setattr(harness, "run", fake)
    return fake


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.bench.measuring.RESULTS", tmp_path / "bench")


def test_pipeline_finds_the_rate_and_says_which_bars_are_met(
    system: System, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system.capacity = 700_000
    path = tmp_path / "pipeline.json"
    assert bench_pipeline.main(["--queries", "q1", "q5", "--no-structured", "--json", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    q1, q5 = (next(line.split() for line in lines if line.startswith(f"{query} ")) for query in ("q1", "q5"))
    assert q1[3:5] == ["NOT", "MET"]
    assert q5[3] == "met"
    numbers = json.loads(path.read_text())
    assert numbers["complete"]
    assert 630_000 <= numbers["queries"]["q5"]["search"]["rate"] <= 700_000
    assert numbers["queries"]["q5"]["confirmed"]["verification"]["lost"] == 0


def test_pipeline_fails_on_a_wrong_answer(system: System, tmp_path: Path) -> None:
    system.wrong = "unsafe"
    assert bench_pipeline.main(["--queries", "q1", "--no-structured", "--json", str(tmp_path / "p.json")]) == 1


def test_protocols_are_compared_at_half_the_baselines_rate(
    system: System, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "protocols.json"
    assert bench_protocols.main(["--queries", "q5", "--repetitions", "2", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    marking = [line.split() for line in out.splitlines() if line.startswith("q5 progress_marking")]
    rates, latencies = marking
    assert "met" in rates
    assert latencies[5] == "1.50"
    assert "config differs" not in out
    searched = json.loads(path.read_text())["measured"]["sustained"]
    half = {one["repetition"]: one["result"]["rate"] // 2 for one in searched if one["protocol"] == "unsafe"}
    measured = [asked for asked in system.asked if asked["verify"]]
    assert {asked["rate"] for asked in measured} == set(half.values())
    assert {asked["protocol"] for asked in measured} == set(harness.protocols())


def test_every_protocol_gets_its_commit_interval_and_unsafe_none(system: System, tmp_path: Path) -> None:
    bench_protocols.main(["--queries", "q1", "--intervals", "10", "50", "--json", str(tmp_path / "p.json")])
    intervals: dict[str, set[str]] = {}
    for asked in system.asked:
        found = [override for override in asked["overrides"] if override.startswith("protocol.")]
        named = [override.partition("=")[0] for override in found]
        assert ("protocol.commit_interval_ms" in named) == (asked["protocol"] != "unsafe"), asked
        intervals.setdefault(asked["protocol"], set()).update(found)
    commits = {f"protocol.commit_interval_ms={ms}" for ms in (10, 50, 100)}
    assert intervals["transactions"] == {*commits, f"protocol.snapshot_interval_ms={bench_protocols.SNAPSHOT_MS}"}


def test_latencies_are_taken_with_the_flushes_of_the_paper(system: System, tmp_path: Path) -> None:
    bench_protocols.main(["--queries", "q1", "q5", "--intervals", "10", "--json", str(tmp_path / "p.json")])
    flushes = {
        (asked["query"], override)
        for asked in system.asked
        for override in asked["overrides"]
        if asked["verify"] and override.startswith("flush")
    }
    assert flushes == {("q1", "flush_interval_ms=10"), ("q5", "flush_interval_ms=100")}


def test_the_order_comes_from_the_seed(system: System, tmp_path: Path) -> None:
    def order(seed: int) -> list[str]:
        system.asked.clear()
        path = tmp_path / f"{seed}-{len(list(tmp_path.iterdir()))}.json"
        arguments = ["--queries", "q1", "--runs", "1", "--interval-protocols", "--seed", str(seed), "--json", str(path)]
        bench_protocols.main(arguments)
        return [asked["protocol"] for asked in system.asked]

    orders = {seed: order(seed) for seed in range(4)}
    assert len({tuple(names) for names in orders.values()}) > 1


def test_an_answer_that_differs_is_not_a_success(system: System, tmp_path: Path) -> None:
    system.wrong = "transactions"
    assert bench_protocols.main(["--queries", "q1", "--json", str(tmp_path / "p.json")]) == 1


def test_structured_streaming_is_not_charged_for_its_first_batch() -> None:
    def batch(second: int, rows: int, ms: int) -> dict[str, Any]:
        return {
            "timestamp": f"2026-01-01T00:00:{second:02}.000Z",
            "numInputRows": rows,
            "durationMs": {"triggerExecution": ms},
        }

    found = structured.rates([batch(0, 100, 9000), batch(9, 100, 4000), batch(13, 100, 1000)])
    assert found == {"events_per_s": pytest.approx(40.0), "events_per_s_later_half": pytest.approx(100.0)}


def test_names_are_checked_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        all_benchmarks(["nonsense"])
    assert ended.value.code == 2
    with pytest.raises(SystemExit):
        all_benchmarks(["--help"])
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in BENCHMARKS)
