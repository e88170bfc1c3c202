"""Figures over cells: latency against throughput, commit intervals, cost of safety, written bytes, the log's latency.

Each function takes loaded results and returns a matplotlib figure, or None when there is nothing to draw. Every figure
says its n and what became of invalid runs. The time line around a fault is in `timeline`.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from analysis import published
from analysis.load import Results
from analysis.metrics import (
    BASELINE,
    WRITTEN_KINDS,
    Estimate,
    against_baseline,
    cells,
    median_of,
    usual,
    write_amplification,
)
from analysis.style import Look, finish, log_numbers, looks, panels, save
from analysis.timeline import recovery_timelines

# The parts of what is written have greys and one accent: protocols own the colours.
KIND_LOOKS = {
    "data": ("#4D4D4D", ""),
    "changelog": ("#A6A6A6", "////"),
    "marker": ("#FFFFFF", "...."),
    "coordination": ("#D9D9D9", "xxxx"),
    "snapshot": ("#FFFFFF", "\\\\\\\\"),
}


def latency_throughput(results: Results) -> Any | None:
    """Visible p50 and p99 against the offered rate, a column for each series (four to a row)."""
    if results.frame.empty:
        return None
    runs = usual(results.frame)
    rates = runs.groupby("series")["rate_offered"].nunique()
    drawn = sorted(rates[rates > 1].index) or sorted(rates.index)  # one rate alone is no curve
    if not drawn:
        return None
    found = cells(results, runs[runs["series"].isin(drawn)])
    across = _across(len(drawn))
    figure, axes = panels(2 * math.ceil(len(drawn) / across), across, sharex="col" if len(drawn) <= 4 else False)
    for place, series in enumerate(drawn):
        for offset, percentile in enumerate(("p50", "p99")):
            one = axes[2 * (place // across) + offset][place % across]
            part = found[found["series"] == series]
            for look in looks(part["protocol"]):
                _line(one, look, part[part["protocol"] == look.name].sort_values("rate_offered"), percentile, part)
            one.set_title(f"{series}, {percentile}")
            _log_rates(one, part["rate_offered"])
            one.set_yscale("log")
            log_numbers(one.yaxis)
            if place % across == 0:
                one.set_ylabel("visible latency (ms)")
        one.set_xlabel("offered events/s")
    for unused in range(len(drawn), across * math.ceil(len(drawn) / across)):
        for offset in (0, 1):
            axes[2 * (unused // across) + offset][unused % across].set_axis_off()
    return finish(figure, axes.flat, "Latency against throughput", _note(found))


def _across(count: int) -> int:
    """At most four to a row, and rows as equal as can be."""
    return math.ceil(count / math.ceil(count / 4))


def _line(one: Any, look: Look, part: pd.DataFrame, column: str, everyone: pd.DataFrame) -> None:
    """Estimates along the rates, with intervals; cells without a valid run are hollow.

    Where all share one rate they stand side by side instead of on top of each other.
    """
    beside = 1.0 if everyone["rate_offered"].nunique() > 1 else 1.12 ** (look.place - 2)
    rates = part["rate_offered"] * beside
    values = [estimate.value for estimate in part[column]]
    errors = _errors(list(part[column]))
    one.errorbar(rates, values, yerr=errors, color=look.colour, lw=1.2, capsize=2, elinewidth=1)
    for rate, value, valid in zip(rates, values, part["valid"], strict=True):
        one.plot([rate], [value], look.marker, ms=5, color=look.colour, mfc=look.colour if valid else "white")
    one.plot([], [], look.marker + "-", ms=5, lw=1.2, color=look.colour, label=look.label)


def _errors(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Distances to both ends of the interval; none where there is no interval."""
    low = [0.0 if math.isnan(e.low) else max(e.value - e.low, 0.0) for e in estimates]
    high = [0.0 if math.isnan(e.high) else max(e.high - e.value, 0.0) for e in estimates]
    return [low, high]


def commit_interval(results: Results) -> Any | None:
    """Bars of visible p50 and p99 by commit interval, for queries that ran with at least two intervals."""
    runs = results.frame
    if runs.empty:
        return None
    quiet = runs[(runs["fault_count"] == 0) & runs["commit_interval_ms"].notna()]
    swept = quiet.groupby(["series", "rate_offered"])["commit_interval_ms"].nunique()
    chosen = [(str(series), int(rate)) for series, rate in swept[swept > 1].index]
    if not chosen:
        return None
    found = cells(results, quiet)
    found = found.loc[[key in chosen for key in zip(found["series"], found["rate_offered"], strict=True)]]
    figure, axes = panels(len(chosen), 2, width=4.2)
    for row, (series, rate) in enumerate(chosen):
        part = found.loc[(found["series"] == series) & (found["rate_offered"] == rate)]
        for one, percentile in zip(axes[row], ("p50", "p99"), strict=True):
            _bars(one, part, percentile)
            one.set_title(f"{series} at {rate:,} events/s, {percentile}")
    return finish(figure, axes.flat, "Latency by commit interval", _note(found))


def _bars(one: Any, part: pd.DataFrame, percentile: str) -> None:
    intervals = sorted(part["commit_interval_ms"].unique())
    drawn = looks(part["protocol"])
    width = 0.8 / len(drawn)
    for place, look in enumerate(drawn):
        mine = part[part["protocol"] == look.name].drop_duplicates("commit_interval_ms")
        centres = [
            intervals.index(value) + (place - (len(drawn) - 1) / 2) * width for value in mine["commit_interval_ms"]
        ]
        values = [estimate.value for estimate in mine[percentile]]
        faces = [look.colour if valid else "white" for valid in mine["valid"]]
        one.bar(centres, values, width * 0.92, yerr=_errors(list(mine[percentile])), color=faces, edgecolor=look.colour,
                capsize=2, error_kw={"lw": 1})  # fmt: skip
        one.bar([math.nan], [math.nan], color=look.colour, label=look.label)
    one.set_xticks(range(len(intervals)), [f"{value:g}" for value in intervals])
    one.set_xlabel("commit interval (ms)")
    one.set_ylabel("visible latency (ms)")
    one.grid(axis="x", visible=False)


def cost_of_safety(results: Results) -> Any | None:
    """Each protocol's p50 and p99 as a multiple of the unsafe baseline's at the same series and rate."""
    if results.frame.empty:
        return None
    found = cells(results, usual(results.frame))
    ratios = against_baseline(results, found, BASELINE)
    if ratios.empty:
        return None
    drawn = sorted(ratios["series"].unique())
    figure, axes = panels(2, len(drawn), sharex="col")
    for column, series in enumerate(drawn):
        part = ratios[ratios["series"] == series]
        for one, percent in zip(axes[:, column], (50, 99), strict=True):
            one.axhline(1, color="black", lw=0.8, ls="--")
            if _as_published(part):
                low, high = published.COST_OF_UNSAFE[percent]
                one.axhspan(low, high, color="#009E73", alpha=0.12, lw=0, label="paper's progress marking, Q5")
            for look in looks(part["protocol"]):
                mine = part[part["protocol"] == look.name].sort_values("rate_offered")
                _line(one, look, mine, f"p{percent}_ratio", part)
            one.set_title(f"{series}, p{percent}")
            _log_rates(one, part["rate_offered"])
            one.set_ylim(bottom=0)
            if column == 0:
                one.set_ylabel(f"× {BASELINE}")
        axes[1][column].set_xlabel("offered events/s")
    return finish(figure, axes.flat, f"Visible latency as a multiple of {BASELINE}", _note(ratios))


def _as_published(part: pd.DataFrame) -> bool:
    """Whether the paper measured the cost of this query with these flushes."""
    return bool((part["query"] == "q5").all() and (part["flush_interval_ms"] == published.COST_FLUSH_INTERVAL_MS).all())


def written(results: Results) -> Any | None:
    """Bytes written for each byte of input, by kind, for each series and protocol at its highest common rate."""
    runs = results.frame
    if runs.empty:
        return None
    runs = usual(runs) if (runs["fault_count"] == 0).any() else runs
    runs = runs.assign(amplification=write_amplification(runs)).dropna(subset=["amplification"])
    drawn = sorted(runs["series"].unique())
    if not drawn:
        return None
    across = _across(len(drawn))
    down = math.ceil(len(drawn) / across)
    names = looks(runs["protocol"])
    figure, axes = panels(down, across, width=3.0, height=0.9 + 0.3 * len(names), sharey=True)
    counted = []
    for one, series in zip(axes.flat, drawn, strict=False):
        part = runs[runs["series"] == series]
        part = part[part["rate_offered"] == _common_rate(part)]
        counted += part.groupby("protocol").size().tolist()
        _stacks(one, part, names)
        one.set_title(f"{series}, {part['rate_offered'].max() / 1000:g}k/s")
        one.set_xlabel("bytes written per input byte")
    for unused in list(axes.flat)[len(drawn) :]:
        unused.set_axis_off()
    faults = "; runs with a fault" if (runs["fault_count"] > 0).all() else ""
    note = (
        f"medians; n = {_span(counted)} run(s) per bar, invalid ones included: bytes do not hang on the clock{faults}"
    )
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="black", lw=0.5, label=kind)
        for kind, (colour, hatch) in KIND_LOOKS.items()
    ]
    return finish(figure, [], "Write amplification", note, handles)


def _common_rate(part: pd.DataFrame) -> int:
    """The highest rate that most protocols ran at."""
    tried = part.groupby("rate_offered")["protocol"].nunique()
    return int(tried[tried == tried.max()].index.max())


def _stacks(one: Any, part: pd.DataFrame, names: Sequence[Look]) -> None:
    places = range(len(names))
    left = np.zeros(len(names))
    for kind in WRITTEN_KINDS:
        colour, hatch = KIND_LOOKS[kind]
        share = part[f"log_bytes_{kind}"] / part["log_bytes_input"]
        sizes = np.array([float(share[part["protocol"] == look.name].median()) for look in names])
        sizes = np.nan_to_num(sizes)
        one.barh(places, sizes, 0.7, left=left, color=colour, hatch=hatch, edgecolor="black", lw=0.5)
        left += sizes
    for place, look in enumerate(names):
        total = median_of(part["amplification"][part["protocol"] == look.name].tolist())
        one.text(left[place], place, f" {total.value:.2f}" if total.n else " not run", va="center", fontsize=8)
    one.set_yticks(places, [look.label for look in names])
    one.set_ylim(len(names) - 0.4, -0.6)
    one.set_xlim(0, max(left.max(), 0.01) * 1.25)
    one.grid(axis="y", visible=False)


def log_latency(results: Results) -> Any | None:
    """How long an append takes to reach a reader elsewhere, by append rate, beside the paper's Table 2."""
    rows = results.log_latency
    if rows.empty:
        return None
    figure, axes = panels(1, 2, width=4.0, height=3.0, sharey=True)
    medians = rows.groupby("rate")[["p50_us", "p99_us"]].median()
    for one, (place, percentile) in zip(axes.flat, enumerate(("p50", "p99")), strict=True):
        one.plot(medians.index, medians[f"{percentile}_us"], "o-", color="#0072B2", lw=1.2, label="this log, one host")
        for (system, points), marker, colour in zip(published.LOG_LATENCY_US.items(), "s^", ("#D55E00", "#000000"),
                                                    strict=True):  # fmt: skip
            one.plot(list(points), [pair[place] for pair in points.values()], marker + "--", color=colour, mfc="white",
                     lw=1, label=f"{system} (paper, three replicas over a network)")  # fmt: skip
        one.set_title(percentile)
        _log_rates(one, [*medians.index, *published.LOG_LATENCY_US["Boki"]])
        one.set_yscale("log")
        log_numbers(one.yaxis)
        one.set_xlabel("appends/s")
    axes[0][0].set_ylabel("append to read elsewhere (µs)")
    repeated = rows.groupby("rate").size().tolist()
    note = f"16 KiB entries; n = {_span(repeated)} measurement(s) per rate, medians; published points are hollow"
    return finish(figure, axes.flat, "Latency of the log", note)


FIGURES: dict[str, Callable[[Results], Any | None]] = {
    "latency_throughput": latency_throughput,
    "commit_interval": commit_interval,
    "cost_of_safety": cost_of_safety,
    "write_amplification": written,
    "log_latency": log_latency,
}


def write_all(results: Results, directory: Path) -> dict[str, Path]:
    """Every figure that the results allow, as PNG and PDF; name → the PNG's path."""
    drawn = {name: draw(results) for name, draw in FIGURES.items()} | recovery_timelines(results)
    return {name: save(figure, directory, name) for name, figure in drawn.items() if figure is not None}


def _note(found: pd.DataFrame) -> str:
    """What every figure must say of its runs."""
    hollow = int((~found["valid"].astype(bool)).sum())
    left_out = int(found["left_out"].sum())
    parts = [f"n = {_span(found['n'].tolist())} run(s) per point"]
    parts.append("whiskers: bootstrap 95% intervals" if (found["n"] > 1).any() else "no intervals with one run")
    if hollow:
        parts.append(f"hollow: {hollow} cell(s) of invalid runs only")
    if left_out:
        parts.append(f"{left_out} invalid run(s) left out")
    return "; ".join(parts)


def _span(counts: Sequence[int]) -> str:
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}–{max(counts)}"


def _log_rates(one: Any, rates: Sequence[float]) -> None:
    """A logarithmic axis with the rates themselves as ticks, as far as they have room."""
    one.set_xscale("log")
    ticks = sorted({float(rate) for rate in rates})
    shown = [ticks[0]] if ticks else []
    span = math.log(ticks[-1] / ticks[0]) if len(ticks) > 1 else 1.0
    for tick in ticks[1:]:
        if math.log(tick / shown[-1]) > span / 8:
            shown.append(tick)
    one.set_xticks(shown, [f"{tick / 1000:g}k" if tick >= 1000 else f"{tick:g}" for tick in shown])
    one.xaxis.set_minor_locator(NullLocator())
    if len(ticks) == 1:
        one.set_xlim(ticks[0] / 2, ticks[0] * 2)
