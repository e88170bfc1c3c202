"""What a fault looks like from outside: visible latency and lag, before, at and after it.

Lag is how far the event time that a reader of the results has reached is behind the present.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

from analysis.load import Results, load
from analysis.metrics import merge, percentile_ms
from analysis.style import Look, finish, log_numbers, looks, panels, save
from runners.rundir import RunDirectory

NAMED_PLACES = 3
_BIN_S = 0.1


def percentile_by_second(latency: pd.DataFrame, metric: str, percent: float) -> pd.Series:
    """A percentile of every second's histogram, in milliseconds, indexed by second."""
    rows = latency[latency["metric"] == metric]
    found = {second: percentile_ms(merge([part]), percent) for second, part in rows.groupby("second")}
    return pd.Series(found, dtype=float)


def recovery_timelines(results: Results) -> dict[str, Any]:
    """A figure for each series, rate and fault that was injected."""
    runs = results.frame
    if runs.empty:
        return {}
    faulty = runs[runs["fault_count"] > 0]
    drawn: dict[str, Any] = {}
    for (series, rate), group in faulty.groupby(["series", "rate_offered"]):
        parts = [part for _, part in group.groupby("fault")]
        for number, part in enumerate(parts, start=1):
            name = f"recovery_{_plain(str(series))}_{rate}" + (f"_{number}" if len(parts) > 1 else "")
            drawn[name] = timeline(part)
    return drawn


def _plain(name: str) -> str:
    """Fit for a file."""
    return re.sub(r"[^a-z0-9]+", "_", name)


def timeline(runs: pd.DataFrame, *, percent: float = 99) -> Any:
    """Visible latency above and lag below, time counted from the fault (from the first event without one).

    Repetitions of a protocol are merged second by second. Of a protocol that ran with and without snapshots only the
    runs with them are shown.
    """
    shown = _one_kind(runs)
    lags = {directory: _lag(Path(directory)) for directory in shown["directory"]}
    with_lag = any(lag is not None for lag in lags.values())
    figure, axes = panels(2 if with_lag else 1, 1, width=7.4, height=2.4 if with_lag else 3.4, sharex=True)
    faults = bool(shown["fault_s"].notna().any())
    for look in looks(shown["protocol"]):
        mine = shown[shown["protocol"] == look.name]
        _latency_line(axes[0][0], look, mine, percent)
        if with_lag:
            _lag_line(axes[1][0], look, mine, lags)
    for one in axes.flat:
        if faults:
            one.axvline(0, color="#444444", ls=":", lw=1.2, label="fault")
    axes[0][0].set_yscale("log")
    log_numbers(axes[0][0].yaxis)
    axes[0][0].set_ylabel(f"visible p{percent:g} (ms)")
    if with_lag:
        axes[1][0].set_ylim(bottom=0)
        axes[1][0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes[1][0].set_ylabel("behind the present (ms)")
    axes[-1][0].set_xlabel("seconds since the fault" if faults else "seconds since the first event")
    series, rates = ", ".join(sorted(set(shown["series"]))), sorted(set(shown["rate_offered"]))
    title = f"{series} at {', '.join(f'{rate:,}' for rate in rates)} events/s" + _struck(shown)
    return finish(figure, axes.flat, title, _note(shown, len(runs) - len(shown)))


def _struck(shown: pd.DataFrame) -> str:
    """What the faults were and where, if that fits into a title."""
    kinds = ", ".join(sorted(set(shown["failure"])))
    places = sorted({place for places in shown["fault_role"] for place in str(places).split(", ") if place})
    if len(places) > NAMED_PLACES:
        return f", {kinds} in {len(places)} places"
    return f", {kinds} of {', '.join(places)}" if places else ""


def _note(shown: pd.DataFrame, left_out: int) -> str:
    counts = shown.groupby("protocol").size()
    span = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()}–{counts.max()}"
    invalid = shown[~shown["valid"].astype(bool)].groupby("protocol").size()
    parts = [f"n = {span} run(s) per protocol, histograms of a second merged"]
    if len(invalid):
        parts.append("hollow: with invalid runs (" + ", ".join(f"{name} {n}" for name, n in invalid.items()) + ")")
    if left_out:
        parts.append(f"{left_out} run(s) without snapshots left out")
    return "; ".join(parts)


def _one_kind(runs: pd.DataFrame) -> pd.DataFrame:
    off = runs["snapshot_interval_ms"] == 0
    both = set(runs["protocol"][off]) & set(runs["protocol"][~off])
    return runs[~(off & runs["protocol"].isin(both))]


def _origin_s(run: Any) -> float:
    return 0.0 if math.isnan(run.fault_s) else float(run.fault_s)


def _latency_line(one: Any, look: Look, runs: pd.DataFrame, percent: float) -> None:
    tables = [RunDirectory(Path(directory)).latency() for directory in runs["directory"]]
    series = percentile_by_second(pd.concat(tables), "visible", percent)
    if series.empty:
        return
    origin = float(np.median([_origin_s(run) for run in runs.itertuples()]))
    face = look.colour if runs["valid"].all() else "white"
    one.plot(series.index + 0.5 - origin, series, look.marker + "-", ms=4.5, lw=1.4, color=look.colour, mfc=face,
             label=look.label)  # fmt: skip


def _lag(path: Path) -> pd.DataFrame | None:
    """Samples of the lag, if this run kept them."""
    return pd.read_parquet(path / "lag.parquet") if (path / "lag.parquet").is_file() else None


def _lag_line(one: Any, look: Look, runs: pd.DataFrame, lags: dict[str, pd.DataFrame | None]) -> None:
    """The median over repetitions, in steps of a tenth of a second."""
    parts = []
    for run in runs.itertuples():
        lag = lags[str(run.directory)]
        if lag is not None:
            during = lag[lag["elapsed_s"] <= run.duration_s]  # afterwards the last results are waited for
            parts.append(pd.DataFrame({"time": during["elapsed_s"] - _origin_s(run), "ms": during["behind_ms"]}))
    if parts:
        every = pd.concat(parts)
        medians = every.groupby((every["time"] / _BIN_S).round() * _BIN_S)["ms"].median()
        one.plot(medians.index, medians, "-", lw=1.4, color=look.colour)


def latency_over_time(directories: Sequence[Path], target: Path, *, percent: float = 99) -> Path:
    """The time line of a few runs, as PNG and beside it as PDF."""
    results = load(*directories)
    return save(timeline(results.frame, percent=percent), target.parent, target.stem)
