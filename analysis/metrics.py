"""What runs say together: percentiles of merged histograms, intervals, ratios, flags. Pure functions over frames.

Percentiles are never averaged. A cell is a set of repetitions; its percentile is that of their added histograms, and
its interval comes from drawing repetitions with replacement and adding up what was drawn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.load import Results

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000
SEED = 7
LEVEL = 95.0
# Rule 2 of the method: beyond this, two runs did not do the same work.
MAX_REVISIONS_APART = 0.2
BASELINE = "unsafe"
USUAL_COMMIT_INTERVAL_MS = 100.0
WRITTEN_KINDS = ("data", "changelog", "marker", "coordination", "snapshot")
# The columns that name a cell to a person; `cell` tells cells apart that agree in all of these.
CELL = ("series", "query", "rate_offered", "failure", "protocol", "flush_interval_ms", "commit_interval_ms",
        "snapshot_interval_ms", "cell")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number from n repetitions with its 95% interval; the interval is NaN where n is less than two."""

    value: float
    low: float = math.nan
    high: float = math.nan
    n: int = 0

    @property
    def bare(self) -> str:
        """Value and interval, without n."""
        if math.isnan(self.low):
            return short(self.value)
        return f"{short(self.value)} [{short(self.low)}, {short(self.high)}]"

    def __str__(self) -> str:
        return f"{self.bare} (n={self.n})" if self.n else "–"


def short(value: float) -> str:
    """Three significant digits, no exponent."""
    if math.isnan(value):
        return "–"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def merge(histograms: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Histogram rows (value_us, count) added up."""
    if not histograms:
        return pd.DataFrame({"value_us": [], "count": []}, dtype="int64")
    return pd.concat(histograms).groupby("value_us")["count"].sum().reset_index()


def percentile_ms(histogram: pd.DataFrame, percent: float) -> float:
    """The lower edge of the bucket that holds the percentile, in milliseconds; NaN when there are no values."""
    rows = histogram.sort_values("value_us")
    counts = rows["count"].to_numpy(dtype=float)[np.newaxis, :]
    return float(_percentiles_ms(rows["value_us"].to_numpy(dtype=float), counts, percent)[0])


def _percentiles_ms(edges: Floats, counts: Floats, percent: float) -> Floats:
    """A percentile for each row of counts over the same sorted edges."""
    if not len(edges):
        return np.full(len(counts), math.nan)
    total = counts.cumsum(axis=1)
    # Rounding first: 0.07 * 100 is a little more than 7, and its ceiling would be the next rank.
    ranks = np.maximum(np.ceil(np.round(percent / 100 * total[:, -1], 6)), 1)
    places = (total < ranks[:, np.newaxis]).sum(axis=1)
    found: Floats = np.where(total[:, -1] > 0, edges[np.minimum(places, len(edges) - 1)] / 1000, math.nan)
    return found


def percentile_of_cell(repetitions: Sequence[pd.DataFrame], percent: float, *, seed: int = SEED) -> Estimate:
    """A percentile over repetitions given as histograms (value_us, count); those without values do not count."""
    drawn, value, n = _drawn_percentiles(repetitions, percent, np.random.default_rng(seed))
    return _estimate(value, drawn, n)


def ratio_of_cells(
    over: Sequence[pd.DataFrame], under: Sequence[pd.DataFrame], percent: float, *, seed: int = SEED
) -> Estimate:
    """How many times the one cell's percentile is the other's; both are drawn anew each time. n is the smaller one."""
    random = np.random.default_rng(seed)
    top, top_value, top_n = _drawn_percentiles(over, percent, random)
    bottom, bottom_value, bottom_n = _drawn_percentiles(under, percent, random)
    return _ratio(top, top_value, top_n, bottom, bottom_value, bottom_n)


def _drawn_percentiles(
    repetitions: Sequence[pd.DataFrame], percent: float, random: np.random.Generator
) -> tuple[Floats, float, int]:
    filled = [part for part in repetitions if part["count"].sum()]
    if not filled:
        return np.full(RESAMPLES, math.nan), math.nan, 0
    n = len(filled)
    table = pd.concat(
        [part.groupby("value_us")["count"].sum() for part in filled], axis=1, keys=range(n)
    ).sort_index().fillna(0)  # fmt: skip
    edges, counts = table.index.to_numpy(dtype=float), table.to_numpy(dtype=float).T
    value = float(_percentiles_ms(edges, counts.sum(axis=0, keepdims=True), percent)[0])
    # Few repetitions can be drawn in few ways only; each way is computed once.
    ways, back = np.unique(random.multinomial(n, np.full(n, 1 / n), size=RESAMPLES), axis=0, return_inverse=True)
    drawn = np.concatenate([_percentiles_ms(edges, way[np.newaxis, :] @ counts, percent) for way in ways.astype(float)])
    return drawn[back.reshape(-1)], value, n


def median_of(values: Sequence[float], *, seed: int = SEED) -> Estimate:
    """The median of one number per repetition; missing ones do not count."""
    drawn, value, n = _drawn_medians(values, np.random.default_rng(seed))
    return _estimate(value, drawn, n)


def ratio_of_medians(over: Sequence[float], under: Sequence[float], *, seed: int = SEED) -> Estimate:
    """How many times the one median is the other."""
    random = np.random.default_rng(seed)
    return _ratio(*_drawn_medians(over, random), *_drawn_medians(under, random))


def _drawn_medians(values: Sequence[float], random: np.random.Generator) -> tuple[Floats, float, int]:
    known = np.array([value for value in values if value is not None and not math.isnan(value)], dtype=float)
    if not len(known):
        return np.full(RESAMPLES, math.nan), math.nan, 0
    drawn: Floats = np.median(known[random.integers(0, len(known), size=(RESAMPLES, len(known)))], axis=1)
    return drawn, float(np.median(known)), len(known)


def _estimate(value: float, drawn: Floats, n: int) -> Estimate:
    if n < 2:
        return Estimate(value=value, n=n)
    low, high = np.percentile(drawn, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return Estimate(value=value, low=float(low), high=float(high), n=n)


def _ratio(top: Floats, top_value: float, top_n: int, bottom: Floats, bottom_value: float, bottom_n: int) -> Estimate:
    n = min(top_n, bottom_n)
    if not n or not bottom_value or not np.all(bottom):
        return Estimate(value=math.nan, n=n)
    return _estimate(top_value / bottom_value, top / bottom, n)


def histograms_of(results: Results, directories: Sequence[str], metric: str) -> list[pd.DataFrame]:
    """The measured part of each run as (value_us, count)."""
    return [results.histogram(directory, metric)[["value_us", "count"]] for directory in directories]


def cells(results: Results, runs: pd.DataFrame, metric: str = "visible") -> pd.DataFrame:
    """One row per cell with p50 and p99 as estimates over its valid runs.

    A cell without a valid run is computed from its invalid ones and has `valid` False; `n` counts the runs used and
    `left_out` the invalid ones that were not.
    """
    rows: list[dict[str, object]] = []
    for key, group in runs.groupby(list(CELL), dropna=False):
        good = group[group["valid"].astype(bool)]
        used = good if len(good) else group
        parts = histograms_of(results, used["directory"].tolist(), metric)
        row: dict[str, object] = dict(zip(CELL, key, strict=True))
        row |= {"p50": percentile_of_cell(parts, 50), "p99": percentile_of_cell(parts, 99)}
        row |= {"valid": bool(len(good)), "n": len(used), "left_out": len(group) - len(used)}
        row["directories"] = used["directory"].tolist()
        rows.append(row)
    return pd.DataFrame(rows, columns=[*CELL, "p50", "p99", "valid", "n", "left_out", "directories"])


def usual(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs without faults at one commit interval: 100 ms where there is such a run, else the longest there is.

    Protocols without commits belong to every interval.
    """
    if runs.empty:
        return runs
    quiet = runs[runs["fault_count"] == 0]
    intervals = quiet["commit_interval_ms"].dropna()
    if intervals.empty:
        return quiet
    chosen = USUAL_COMMIT_INTERVAL_MS if (intervals == USUAL_COMMIT_INTERVAL_MS).any() else intervals.max()
    return quiet[quiet["commit_interval_ms"].isna() | (quiet["commit_interval_ms"] == chosen)]


def against_baseline(results: Results, found: pd.DataFrame, baseline: str, metric: str = "visible") -> pd.DataFrame:
    """Cells with `p50_ratio` and `p99_ratio` to the baseline's cell of the same series, rate and failure.

    Cells without such a baseline are left out, and the baseline itself is.
    """
    keys = ["series", "rate_offered", "failure"]
    bases = {tuple(row[keys]): row for _, row in found[found["protocol"] == baseline].iterrows()}
    rows = []
    for _, row in found[found["protocol"] != baseline].iterrows():
        base = bases.get(tuple(row[keys]))
        if base is None:
            continue
        over = histograms_of(results, row["directories"], metric)
        under = histograms_of(results, base["directories"], metric)
        ratios = {f"p{p}_ratio": ratio_of_cells(over, under, p) for p in (50, 99)}
        rows.append({**row, **ratios, "valid": row["valid"] and base["valid"]})
    return pd.DataFrame(rows, columns=[*found.columns, "p50_ratio", "p99_ratio"])


def write_amplification(runs: pd.DataFrame) -> pd.Series:
    """Bytes that a job wrote for each byte of its input; reports are the harness's own and do not count."""
    written = sum((runs[f"log_bytes_{kind}"].astype(float) for kind in WRITTEN_KINDS), pd.Series(0.0, index=runs.index))
    return written / runs["log_bytes_input"].astype(float).replace(0.0, math.nan)


def recovery_split(runs: pd.DataFrame) -> dict[str, Estimate]:
    """The median of each part of the recovery, over repetitions that measured it."""
    parts = ("detect", "restart", "restore", "catch_up", "total")
    return {part: median_of(runs[f"recovery_{part}_ms"].tolist()) for part in parts}


def revisions_apart(runs: pd.DataFrame) -> pd.DataFrame:
    """Comparisons whose protocols emitted different numbers of revisions per event, by more than 20% of the fewest.

    One row per series, rate, failure and commit interval: what each protocol emitted (medians), and whether that is
    flagged. Protocols without commits belong to every interval.
    """
    rows = []
    keys = ["series", "rate_offered", "failure"]
    for key, group in runs.groupby(keys):
        for interval in sorted(group["commit_interval_ms"].dropna().unique()) or [math.nan]:
            part = group[group["commit_interval_ms"].isna() | (group["commit_interval_ms"] == interval)]
            medians = part.groupby("protocol")["revisions_per_event"].median().dropna().astype(float)
            if len(medians) < 2:
                continue
            apart = float(medians.max() / medians.min() - 1) if medians.min() > 0 else math.inf
            rows.append((*key, interval, apart, apart > MAX_REVISIONS_APART, medians.to_dict()))
    return pd.DataFrame(rows, columns=[*keys, "commit_interval_ms", "apart", "flagged", "revisions_per_event"])


def sustained_rates(runs: pd.DataFrame) -> pd.DataFrame:
    """For each series, protocol and repetition the highest offered rate that was sustained by a valid run.

    A repetition of another sweep is another one, and one that is not finished is none: a rate is missing. 0 if none
    was sustained. `censored` says that it was also the highest rate tried: the true one may be higher.
    """
    rows = []
    quiet = runs[(runs["fault_count"] == 0) & ~runs["unfinished"]]
    for (series, protocol, _, repetition), group in quiet.groupby(["series", "protocol", "sweep", "repetition"]):
        kept = group[group["valid"].astype(bool) & group["sustainable"].astype(bool)]["rate_offered"]
        rate = float(kept.max()) if len(kept) else 0.0
        rows.append((series, protocol, repetition, rate, rate == float(group["rate_offered"].max())))
    return pd.DataFrame(rows, columns=["series", "protocol", "repetition", "rate", "censored"])
