"""Tables for people: runs side by side, and what recovery cost. As text for a terminal, as rows for the report."""

import math
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import published
from analysis.load import Results
from analysis.metrics import (
    WRITTEN_KINDS,
    cells,
    median_of,
    recovery_split,
    sustained_rates,
    usual,
    write_amplification,
)
from analysis.style import looks

Run = Mapping[str, Any]
Row = Sequence[str]

PARTS = ("detect", "restart", "restore", "catch_up")
WIDEST = 120
_GAP = "  "
_LEAST_VERDICT = 18


def comparison(runs: Sequence[Run], *, width: int | None = None) -> str:
    """One line for each run.json: rate, latency, recovery split, what was written, and whether the answer was right.

    As wide as the terminal, 120 columns at most. Where that is too narrow the recovery becomes a table of its own.
    """
    columns = min(width or shutil.get_terminal_size((WIDEST, 40)).columns, WIDEST)
    names = [str(run["protocol"]) for run in runs]
    first = _column("protocol", names)
    latency = [
        _column("rate/s", [_rate(run) for run in runs]),
        _column("emit ms\np50/p99", [_pair(run, "emit") for run in runs]),
        _column("visible ms\np50/p99", [_pair(run, "visible") for run in runs]),
    ]
    recovery = [_column(f"{part.replace('_', '-')}\nms", [_part(run, part) for run in runs]) for part in PARTS]
    written = _column("written\n/input", [_amplification(run) for run in runs])
    found = _column("verified", [verdict(run) for run in runs])
    wide = [first, *latency, *recovery, written]
    if columns - _width(wide) >= _LEAST_VERDICT:
        return _table([*wide, found], columns)
    above = _table([first, *latency, written, found], columns)
    if all(cell == "–" for column in recovery for cell in column[1:]):
        return above
    return above + "\n\nrecovery\n" + _table([first, *recovery], columns)


def _column(header: str, values: Sequence[str]) -> list[str]:
    return [header, *values]


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(_widest(column) + len(_GAP) for column in columns)


def _widest(column: Sequence[str]) -> int:
    return max(len(line) for cell in column for line in cell.split("\n"))


def _table(columns: Sequence[Sequence[str]], width: int) -> str:
    """The last column takes what is left of the width, and wraps."""
    room = max(width - _width(columns[:-1]), 10)
    last = [columns[-1][0], *(textwrap.fill(cell, room) for cell in columns[-1][1:])]
    return aligned(list(zip(*columns[:-1], last, strict=True)))


def aligned(rows: Sequence[Row]) -> str:
    """Text columns, wide enough for their longest line; the first row is the header. Cells may have several lines."""
    widths = [_widest([row[column] for row in rows]) for column in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells_lines = [cell.split("\n") for cell in row]
        for place in range(max(len(cell) for cell in cells_lines)):
            texts = [cell[place] if place < len(cell) else "" for cell in cells_lines]
            lines.append(_GAP.join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip())
        if number == 0:
            lines.append(_GAP.join("─" * width for width in widths))
    return "\n".join(lines)


def verdict(run: Run) -> str:
    """What verification found, in a few words."""
    checked = run["verification"]
    if checked is None:
        return f"incomplete: {run['invalid_reasons'][0][:60]}" if run["invalid_reasons"] else "not verified"
    found = [f"{checked[name]:.0f} {name}" for name in ("lost", "duplicated", "wrong") if checked[name]]
    if not checked["edges_ok"]:
        found.append("edges differ")
    return ", ".join(found) if found else f"all {checked['checked']:.0f} right"


def _rate(run: Run) -> str:
    """The offered rate; beside it what was processed, where a run without faults did not keep up."""
    kept = run["rate_sustained"]
    if run["faults"] or run["sustainable"] or kept is None or kept >= 0.99 * run["rate_offered"]:
        return str(run["rate_offered"])
    return f"{kept:.0f} of\n{run['rate_offered']}"


def _pair(run: Run, metric: str) -> str:
    values = run["latency_ms"][metric]
    if values["p50"] is None:
        return "–"
    return f"{values['p50']:.0f}/{values['p99']:.0f}"


def _part(run: Run, part: str) -> str:
    """A part of the recovery. Older runs measured the restart alone, with each fault."""
    value = (run.get("recovery_ms") or {}).get(part)
    if value is None and part == "restart":
        value = max((f["restart_ms"] for f in run["faults"] if f.get("restart_ms") is not None), default=None)
    return "–" if value is None else f"{value:.0f}"


def _amplification(run: Run) -> str:
    """Bytes that the job wrote for each byte of input; reports are the harness's own and do not count."""
    written = sum(run["log_bytes"].get(kind, 0) for kind in WRITTEN_KINDS)
    return f"{written / run['log_bytes']['input']:.2f}" if run["log_bytes"]["input"] else "–"


def cell_rows(results: Results) -> list[Row]:
    """The report's comparison: a row for each cell with percentiles of merged repetitions and their intervals."""
    header = ("query", "events/s", "fault", "protocol", "commit ms", "snapshots", "emit p50", "emit p99", "visible p50",
              "visible p99", "written/input", "n", "verified")  # fmt: skip
    runs = results.frame
    if runs.empty:
        return [header]
    emit = {str(row["cell"]): row for _, row in cells(results, runs, "emit").iterrows()}
    runs = runs.assign(amplification=write_amplification(runs)).set_index("directory", drop=False)
    rows: list[Row] = [header]
    for _, cell in _in_order(cells(results, runs)).iterrows():
        mine = runs.loc[cell["directories"]]
        everyone = runs[runs["cell"] == cell["cell"]]
        other = emit[str(cell["cell"])]
        figures = [estimate.bare for estimate in (other["p50"], other["p99"], cell["p50"], cell["p99"])]
        amplification = median_of(mine["amplification"].tolist()).value
        note = "" if cell["valid"] else " (invalid)"
        left_out = f" (+{cell['left_out']} invalid)" if cell["left_out"] else ""
        rows.append((
            str(cell["series"]), f"{cell['rate_offered']:,}", str(mine["failure"].iloc[0]), str(cell["protocol"]),
            _interval_ms(cell["commit_interval_ms"]), _snapshots(cell["snapshot_interval_ms"]), *figures,
            f"{amplification:.2f}", f"{cell['n']}{note}{left_out}", _found(everyone),
        ))  # fmt: skip
    return rows


def _found(runs: pd.DataFrame) -> str:
    """What verification found over all repetitions, in a few words."""
    checked = runs[runs["verification_checked"].notna()]
    if checked.empty:
        return "not verified"
    totals = {name: float(checked[f"verification_{name}"].sum()) for name in ("lost", "duplicated", "wrong")}
    words = [f"{total:.0f} {name}" for name, total in totals.items() if total]
    apart = int((~checked["verification_edges_ok"].astype(bool)).sum())
    if apart:
        words.append(f"edges differ in {apart}")
    some = f"{len(checked)} of {len(runs)} verified: " if len(checked) < len(runs) else ""
    return some + (", ".join(words) if words else "all right")


def recovery_rows(results: Results) -> list[Row]:
    """The shape of the paper's Table 4: what recovery took with and without snapshots, and how much it read.

    Medians over valid runs, or over all where none is valid. The load is a fraction of the rate that the protocol
    sustained without a fault, at most that where it sustained every rate that was tried.
    """
    header = ("query", "events/s", "load", "fault", "protocol", "snapshots", "detect ms", "restart ms", "restore ms",
              "catch-up ms", "total ms", "entries read", "n")  # fmt: skip
    rows: list[Row] = [header]
    runs = results.frame
    if runs.empty:
        return rows
    faulty = runs[runs["fault_count"] > 0]
    sustained = _sustained(runs)
    names = ["series", "rate_offered", "fault", "protocol", "snapshot_interval_ms", "cell"]
    for key, group in faulty.groupby(names, dropna=False):
        good = group[group["valid"].astype(bool)]
        used = good if len(good) else group
        split = recovery_split(used)
        entries = median_of(used["recovery_entries_read"].tolist())
        series, rate, _, protocol, snapshots, _ = key
        note = "" if len(good) else " (invalid)"
        load = _load(float(str(rate)), sustained.get((str(series), str(protocol))))
        named = (str(series), f"{rate:,}", load, _struck(group), str(protocol), _snapshots(float(str(snapshots))))
        rows.append((*named, *(split[part].bare for part in split), entries.bare, f"{len(used)}{note}"))
    return rows


def published_rows(results: Results) -> list[Row]:
    """What the paper measured for these queries, p50 / p99 in ms."""
    protocols = ("progress_marking", "transactions", "aligned_checkpoint")
    rows: list[Row] = [("figure", "query", "events/s", "commit ms", *protocols)]
    queries = set(results.frame["query"]) if len(results.frame) else set()
    measured = [("7", query, rate, 100, found) for query, rates in published.LATENCY_MS.items()
                for rate, found in rates.items()]  # fmt: skip
    measured += [("8", "q4", 3_000, interval, found) for interval, found in published.COMMIT_INTERVAL_MS.items()]
    for figure, query, rate, interval, found in measured:
        if query in queries:
            pairs = [" / ".join(map(str, found[name])) if name in found else "–" for name in protocols]
            rows.append((figure, query, f"{rate:,}", str(interval), *pairs))
    return rows


def _struck(runs: pd.DataFrame) -> str:
    """The kind of fault, where and when; where they were many, how many there were."""
    first = runs.iloc[0]
    if first["fault_count"] > 1:
        return f"{first['failure']}, {first['fault_count']} times"
    when = "" if math.isnan(first["fault_s"]) else f" at {first['fault_s']:.0f} s"
    return f"{first['failure']} of {first['fault_role']}{when}"


def _sustained(runs: pd.DataFrame) -> dict[tuple[str, str], tuple[float, bool]]:
    """For each series and protocol the median of the rates sustained without a fault, and whether it may be higher."""
    rates = sustained_rates(usual(runs))
    return {
        (str(series), str(protocol)): (float(group["rate"].median()), bool(group["censored"].any()))
        for (series, protocol), group in rates.groupby(["series", "protocol"])
    }


def _load(rate: float, sustained: tuple[float, bool] | None) -> str:
    if sustained is None or not sustained[0]:
        return "–"
    return f"{'≤ ' if sustained[1] else ''}{rate / sustained[0]:.0%}"


def _in_order(found: pd.DataFrame) -> pd.DataFrame:
    places = {look.name: look.place for look in looks(found["protocol"])}
    order = found.assign(place=found["protocol"].map(places))
    return order.sort_values(
        ["series", "rate_offered", "failure", "place", "commit_interval_ms", "snapshot_interval_ms"]
    )


def _snapshots(interval_ms: float) -> str:
    if math.isnan(interval_ms):
        return "–"
    return f"every {interval_ms / 1000:g} s" if interval_ms else "off"


def _interval_ms(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:g}"
