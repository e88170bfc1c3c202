"""Figures from run directories. Colours and order of protocols are stable from figure to figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from runners.rundir import RunDirectory

# Okabe and Ito's palette: distinct in print and for colour-blind readers. Protocols take colours in sorted order.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")


def colours(names: Sequence[str]) -> Mapping[str, str]:
    return {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(sorted(set(names)))}


def percentile_by_second(latency: pd.DataFrame, metric: str, percent: float) -> pd.Series:
    """A percentile of every second's histogram, in milliseconds, indexed by second."""
    rows = latency[latency["metric"] == metric].sort_values(["second", "value_us"])
    found = {}
    for second, part in rows.groupby("second"):
        total = part["count"].cumsum().to_numpy()
        rank = max(1, int(np.ceil(percent / 100 * total[-1])))
        found[second] = part["value_us"].to_numpy()[np.searchsorted(total, rank)] / 1000
    return pd.Series(found, dtype=float)


def latency_over_time(directories: Sequence[Path], target: Path, *, percent: float = 99) -> Path:
    """Visible latency second by second, one line per run; a dotted line where a fault was injected."""
    runs = [(RunDirectory(path), RunDirectory(path).run()) for path in directories]
    palette = colours([run["protocol"] for _, run in runs])
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for place, (directory, run) in enumerate(runs):
        series = percentile_by_second(directory.latency(), "visible", percent)
        if series.empty:
            continue
        marker = "osD^vPX"[place % 7]
        axes.plot(series.index + 0.5, series, marker + "-", ms=4, lw=1.5, color=palette[run["protocol"]],
                  label=run["protocol"].replace("_", " "))  # fmt: skip
    times = [fault["time_ms"] - run["start_us"] / 1000 for _, run in runs for fault in run["faults"]]
    if times:
        axes.axvline(float(np.median(times)) / 1000, color="#666666", ls=":", lw=1.2, label="fault")
    axes.set_yscale("log")
    axes.set_xlabel("seconds since the first event")
    axes.set_ylabel(f"visible latency, p{percent:g} (ms)")
    query = ", ".join(sorted({run["query"] for _, run in runs}))
    rate = max(run["rate_offered"] for _, run in runs)
    axes.set_title(f"{query} at {rate:,} events/s (n=1)", fontsize=11)
    axes.grid(alpha=0.3, which="both", lw=0.5)
    axes.legend(frameon=False, fontsize=9, ncols=2)
    figure.savefig(target, dpi=150)
    plt.close(figure)
    return target
