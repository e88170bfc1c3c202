"""Run directories made by hand, so that the right answer of every analysis is known beforehand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

START_US = 1_700_000_000_000_000
GUARANTEES = {"unsafe": "none", "at_least_once": "at_least_once"}
KINDS = ("input", "data", "changelog", "marker", "coordination", "snapshot", "report")


def write_run(
    path: Path,
    *,
    query: str = "q5",
    protocol: str = "unsafe",
    rate: int = 10_000,
    repetition: int = 0,
    samples_ms: Sequence[float] = (10.0, 20.0, 30.0),
    commit_interval_ms: float | None = 100,
    snapshot_interval_ms: float | None = None,
    fault_at_s: float | None = None,
    recovery_ms: Mapping[str, float | None] | None = None,
    entries_read: int = 0,
    config: Mapping[str, Any] | None = None,
    lag: Sequence[tuple[float, int]] | None = None,
    slow_second: int | None = None,
    verification: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Path:
    """One complete directory of 10 s with 2 s warm-up. The samples are the visible latencies of every second.

    `slow_second` multiplies that second's latencies by ten; `fields` go into run.json as they are.
    """
    path.mkdir(parents=True)
    _latency(samples_ms, slow_second).to_parquet(path / "latency.parquet")
    pd.DataFrame({"role": ["source/0"], "second": [0]}).to_parquet(path / "tasks.parquet")
    (path / "events.jsonl").write_text(json.dumps({"event": "start", "time_ms": START_US / 1000}) + "\n")
    (path / "environment.json").write_text(
        json.dumps({"commit": "c0ffee", "cores": 2, "input_hash": f"{query}-{rate}", "versions": {"pyspark": "4"}})
    )
    protocol_config = {"_target_": f"protocols.{protocol}.Protocol", "commit_interval_ms": commit_interval_ms}
    if snapshot_interval_ms is not None:
        protocol_config["snapshot_interval_ms"] = snapshot_interval_ms
    settings = {"query": {"name": query}, "protocol": protocol_config, "rate": rate, "seed": 7 + repetition,
                "failure": {"at_s": fault_at_s}, "duration_s": 10, "warmup_s": 2, "flush_interval_ms": 100,
                **(config or {})}  # fmt: skip
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    if lag is not None:
        pd.DataFrame(lag, columns=["elapsed_s", "behind_ms"]).to_parquet(path / "lag.parquet")
    faults = [] if fault_at_s is None else [
        {"kind": "kill", "role": "count/0", "pid": 1, "time_ms": START_US / 1000 + fault_at_s * 1000,
         "instance_before": 1, "instance_after": 2, "proven": True, "restart_ms": 300.0}
    ]  # fmt: skip
    middle = {name: float(np.percentile(samples_ms, at, method="inverted_cdf")) if len(samples_ms) else None
              for name, at in (("p50", 50), ("p90", 90), ("p99", 99), ("p999", 99.9), ("max", 100))}  # fmt: skip
    run: dict[str, Any] = {
        "valid": True, "invalid_reasons": [], "guarantee": GUARANTEES.get(protocol, "exactly_once"),
        "guarantee_held": None if protocol == "unsafe" else True, "complete": True, "query": query,
        "protocol": protocol, "log": "embedded", "cluster": "local",
        "failure": "none" if fault_at_s is None else "kill", "seed": 7 + repetition, "rate_offered": rate,
        "rate_sustained": float(rate), "sustainable": True, "events": rate * 10, "duration_s": 10, "warmup_s": 2,
        "start_us": START_US, "parallelism": 2, "commit_interval_ms": commit_interval_ms,
        "latency_ms": {metric: {"count": len(samples_ms) * 8, **{n: v and v * scale for n, v in middle.items()}}
                       for metric, scale in (("emit", 0.5), ("visible", 1.0), ("paper", 0.25))},
        "revisions_per_event": 0.5, "generator_delay_ms": {"p50": 1.0, "p99": 2.0},
        "verification": {"checked": 12, "lost": 0, "duplicated": 0, "wrong": 0, "edges_ok": True, "examples": [],
                         **(verification or {})},
        "faults": faults, "restarts": len(faults),
        "recovery_ms": dict.fromkeys(("detect", "restart", "restore", "catch_up", "total")) | dict(recovery_ms or {}),
        "recovery": {"entries_read": entries_read, "changes_applied": 2 * entries_read},
        "log_bytes": dict.fromkeys(KINDS, 0) | {"input": 1000, "data": 300, "changelog": 150, "marker": 50},
        "log_entries": dict.fromkeys(KINDS, 1), "cpu_s": {"source": 1.0, "task": 2.0},
        "repetition": repetition, **fields,
    }  # fmt: skip
    (path / "run.json").write_text(json.dumps(run))
    return path


def _latency(samples_ms: Sequence[float], slow_second: int | None) -> pd.DataFrame:
    rows = [
        (second, metric, round(value * 1000 * scale * (10 if second == slow_second else 1)), 1)
        for second in range(10)
        for metric, scale in (("visible", 1.0), ("emit", 0.5), ("paper", 0.25))
        for value in samples_ms
    ]
    table = pd.DataFrame(rows, columns=["second", "metric", "value_us", "count"])
    return table.groupby(["second", "metric", "value_us"], as_index=False).sum()


def write_manifest(path: Path, cells: Sequence[Mapping[str, Any]], **fields: Any) -> None:
    content = {"experiment": "smoke", "scale": "small", "command": "python run.py experiment=smoke", "cells": cells}
    (path / "manifest.json").write_text(json.dumps(content | fields))
