"""Tables for people: a few runs side by side, from their run.json."""

from collections.abc import Mapping, Sequence
from typing import Any

Run = Mapping[str, Any]


def comparison(runs: Sequence[Run]) -> str:
    """One line for each run: latency, restart, what was written, and whether the answer was right."""
    header = ("protocol", "emit p50/p99 ms", "visible p50/p99 ms", "recovery ms", "written/input", "verified")
    rows = [
        (
            str(run["protocol"]),
            _pair(run, "emit"),
            _pair(run, "visible"),
            _restart(run),
            _amplification(run),
            verdict(run),
        )
        for run in runs
    ]
    return aligned([header, *rows])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Text columns, wide enough for their longest cell; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def verdict(run: Run) -> str:
    """What verification found, in a few words."""
    checked = run["verification"]
    if checked is None:
        return f"incomplete: {run['invalid_reasons'][0][:60]}" if run["invalid_reasons"] else "not verified"
    found = [f"{checked[name]} {name}" for name in ("lost", "duplicated", "wrong") if checked[name]]
    if not checked["edges_ok"]:
        found.append("edges differ")
    return ", ".join(found) if found else f"all {checked['checked']} right"


def _pair(run: Run, metric: str) -> str:
    values = run["latency_ms"][metric]
    if values["p50"] is None:
        return "–"
    return f"{values['p50']:.0f} / {values['p99']:.0f}"


def _restart(run: Run) -> str:
    total = run["recovery_ms"]["total"]
    return f"{total:.0f}" if total is not None else "–"


def _amplification(run: Run) -> str:
    """Bytes that the job wrote for each byte of input; reports are the harness's own and do not count."""
    written = sum(size for kind, size in run["log_bytes"].items() if kind not in ("input", "report"))
    return f"{written / run['log_bytes']['input']:.2f}" if run["log_bytes"]["input"] else "–"
