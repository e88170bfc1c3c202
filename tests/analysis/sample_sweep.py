"""A made-up sweep with all that figures and reports must cope with: `python -m tests.analysis.sample_sweep DIR`.

Four queries, five protocols and one that no configuration knows, invalid cells, faults with lag, commit intervals,
snapshots on and off, log latencies, a cut-off directory and a manifest.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.analysis.synthetic import write_manifest, write_run

Samples = Callable[[float], list[float]]
SCALE = {"aligned_checkpoint": 1.6, "at_least_once": 0.9, "progress_marking": 1.5, "transactions": 1.9, "unsafe": 0.8}
DIRTY = "sink_delay_ms p99 is 30.2 ms, above the 15.9 ms that a fair measurement allows"


def write_sweep(root: Path, *, queries: tuple[str, ...] = ("q1", "q3", "q5", "q8"), repetitions: int = 3) -> Path:
    """The same values every time: seed 7."""
    random = np.random.default_rng(7)

    def samples(middle_ms: float) -> list[float]:
        return (middle_ms * random.lognormal(0, 0.5, 200)).round(2).tolist()

    cells = []
    for repetition in range(repetitions):
        for query in queries:
            for rate in (5_000, 10_000, 20_000, 40_000):
                for name, scale in SCALE.items():
                    middle = 60 * scale * (1 + (rate / 20_000) ** 2)
                    bad = query == "q3" and name == "transactions" and rate == 40_000
                    directory = f"{query}-{name}-{rate}-{repetition}"
                    write_run(
                        root / directory, query=query, protocol=name, rate=rate, repetition=repetition,
                        samples_ms=samples(middle), commit_interval_ms=None if name == "unsafe" else 100,
                        snapshot_interval_ms=10_000 if name in ("progress_marking", "transactions") else None,
                        valid=not bad, invalid_reasons=[DIRTY] if bad else [], sustainable=middle < 300,
                    )  # fmt: skip
                    cells.append({"id": directory, "overrides": [f"query={query}", f"protocol={name}", f"rate={rate}"],
                                  "repetition": repetition, "state": "done", "exit_code": 0,
                                  "directory": directory})  # fmt: skip
        _commit_intervals(root, repetition, samples)
        _faults(root, repetition, samples)
    _odd_ones(root)
    cells.append({"id": "impossible", "overrides": ["parallelism=0"], "repetition": 0, "state": "failed",
                  "exit_code": 2, "directory": "impossible"})  # fmt: skip
    write_manifest(root, cells, experiment="latency_throughput", command="python run.py experiment=latency_throughput")
    return root


def _commit_intervals(root: Path, repetition: int, samples: Samples) -> None:
    for interval_ms in (10, 25, 50, 100):
        for name, factor in (("progress_marking", 1.0), ("transactions", 1 + 8 / interval_ms)):
            write_run(
                root / f"q4-{name}-{interval_ms}ms-{repetition}", query="q4", protocol=name, rate=3_000,
                repetition=repetition, samples_ms=samples((20 + interval_ms) * factor),
                commit_interval_ms=interval_ms, snapshot_interval_ms=10_000,
            )  # fmt: skip


def _faults(root: Path, repetition: int, samples: Samples) -> None:
    broken = {"lost": 5, "duplicated": 5, "edges_ok": False}
    for name, scale in SCALE.items():
        for snapshots in (10_000, 0) if name in ("progress_marking", "transactions") else (None,):
            slow = 1.0 if snapshots is None or snapshots else 12.0
            split = {"detect": 4.0 + repetition, "restart": 250.0 * scale, "restore": 40.0 * slow, "catch_up": 500.0}
            times = np.arange(0, 10, 0.05)
            lag = 200 + 4000 * scale * slow**0.3 * np.exp(-np.maximum(times - 5.3, 0) * 1.2) * (times > 5.0)
            write_run(
                root / f"q8-{name}-kill-{snapshots}-{repetition}", query="q8", protocol=name, rate=20_000,
                repetition=repetition, samples_ms=samples(90 * scale), fault_at_s=5.05, slow_second=5,
                commit_interval_ms=None if name == "unsafe" else 100, snapshot_interval_ms=snapshots,
                recovery_ms=split | {"total": sum(split.values())}, entries_read=int(40 * slow) + repetition,
                lag=list(zip(times.tolist(), lag.astype(int).tolist(), strict=True)),
                verification=broken if name in ("unsafe", "at_least_once") else None,
            )  # fmt: skip


def _odd_ones(root: Path) -> None:
    write_run(root / "q5-zebra-0", protocol="zebra", rate=10_000, samples_ms=(50, 60, 70))
    cut_off = write_run(root / "q5-unsafe-cut-off", protocol="unsafe")
    (cut_off / "run.json").write_text('{"valid": tr')
    (root / "log").mkdir()
    (root / "log_latency").mkdir()
    rows = [{"rate": rate, "p50_us": 180 + rate / 20, "p99_us": 420 + rate / 5, "count": rate * 5}
            for rate in (10, 50, 100, 1000)]  # fmt: skip
    (root / "log_latency" / "log_latency.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    print(write_sweep(Path(sys.argv[1])))
