"""report.html: one self-contained file that says what a sweep found, how far to trust it and how to repeat it.

`python -m analysis.report DIR` writes it, and the figures beside it, into DIR.
"""

import base64
import html
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from analysis import claims, differences, figures, tables
from analysis.load import Results, load
from analysis.metrics import revisions_apart
from runners.rundir import RunDirectoryError

CAPTIONS = {
    "latency_throughput": "Visible latency against the offered rate (the paper's Figure 7).",
    "commit_interval": "Visible latency by commit interval (Figure 8).",
    "cost_of_safety": "What each protocol costs over the unsafe baseline (Figure 9).",
    "write_amplification": "Bytes written to log and snapshots for each byte of input, by kind.",
    "log_latency": "From append to read elsewhere, without any stream processing (Table 2).",
}
SHOWN_COMMANDS = 12
STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; margin: 0 auto; max-width: 1400px;
  padding: 1rem 1.2rem 4rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
nav a { margin-right: .9rem; display: inline-block; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; vertical-align: top; border-bottom: 1px solid #eee; }
th { border-bottom: 1px solid #999; white-space: nowrap; } .tight td { white-space: nowrap; }
figure { margin: 1.2rem 0; } figure img { max-width: 100%; height: auto; } figcaption { color: #555; font-size: 13px; }
pre { background: #f5f5f5; padding: .6rem .8rem; overflow-x: auto; font-size: 13px; }
.claim { border-bottom: 1px solid #eee; padding: .5rem 0; }
.holds, .does-not-hold, .not-enough-data { font-weight: 600; white-space: nowrap; }
.holds { color: #00664a; } .does-not-hold { color: #a33d00; } .not-enough-data { color: #666; }
.small { font-size: 13px; color: #555; }
ul.numbers { margin: .2rem 0 0; padding-left: 1.1rem; font-size: 13px; color: #444; }
.numbers li { overflow-wrap: anywhere; }
.flag { background: #fff4e5; border-left: 4px solid #d55e00; padding: .4rem .8rem; margin: .6rem 0; }
"""


def write(directory: Path) -> Path:
    """Load everything below the directory and leave report.html and figures/ in it. Returns the report's path.

    Raises `RunDirectoryError` if there is no such directory; anything less is written into the report.
    """
    if directory.is_file():
        raise RunDirectoryError(f"{directory} is a file; name the directory that it lies in")
    results = load(directory)
    drawn = figures.write_all(results, directory / "figures")
    target = directory / "report.html"
    partial = directory / ".report.html.partial"
    partial.write_text(page(results, directory.resolve(), drawn))
    partial.replace(target)
    return target


def page(results: Results, root: Path, drawn: dict[str, Path]) -> str:
    """The whole document."""
    judged = claims.evaluate(results)
    sections = {
        "Summary": _summary(results, judged),
        "Claims": _claims(judged),
        "Figures": _figures(drawn),
        "Tables": _tables(results),
        "Configuration": _configuration(results),
        "Invalid runs": _invalid(results, root),
        "Environment": _environment(results),
        "How to repeat it": _repeat(results),
    }
    title = _title(results, root)
    menu = "".join(f'<a href="#{_anchor(name)}">{name}</a>' for name in sections)
    body = "".join(f'<section id="{_anchor(name)}"><h2>{name}</h2>{text}</section>' for name, text in sections.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><h1>{_text(title)}</h1><nav>{menu}</nav>{body}</body></html>\n"
    )


def _title(results: Results, root: Path) -> str:
    names = sorted({f"{m.get('experiment', '?')} ({m.get('scale', '?')})" for m in results.manifests.values()})
    return "Tidemark: " + (", ".join(names) or root.name)


def _summary(results: Results, judged: Sequence[claims.Judged]) -> str:
    runs = results.frame
    cells = [cell for manifest in results.manifests.values() for cell in manifest["cells"]]
    lines = []
    if cells:
        states = {
            state: sum(cell["state"] == state for cell in cells) for state in ("done", "failed", "running", "pending")
        }
        lines.append(f"{len(cells)} cells: " + ", ".join(f"{n} {state}" for state, n in states.items() if n) + ".")
    if len(runs):
        per_cell = runs.groupby("cell").size()
        invalid = int((~runs["valid"].astype(bool)).sum())
        broken = int((runs["guarantee_held"] == False).sum())  # noqa: E712
        lines += [
            f"{len(runs)} runs of {runs['query'].nunique()} queries and {runs['protocol'].nunique()} protocols; "
            f"n = {per_cell.min()}"
            + (f" to {per_cell.max()}" if per_cell.max() > per_cell.min() else "")
            + " per cell.",
            f"{invalid} runs broke a rule of the method; their latencies are not quoted beside valid ones.",
            f"{broken} runs broke their protocol's guarantee.",
        ]
        if runs.groupby("cell").size().max() < claims.LEAST_REPETITIONS:
            lines.append(f"With fewer than {claims.LEAST_REPETITIONS} repetitions no claim is decided by intervals.")
    else:
        lines.append("No complete run was found.")
    if len(results.unreadable):
        lines.append(f"Directories that were left out: {len(results.unreadable)}; they are listed below.")
    tally = [f"{v.value}: {sum(j.verdict is v for j in judged)}" for v in claims.Verdict]
    lines.append("Claims of the paper: " + "; ".join(tally) + ".")
    return _list(lines) + "".join(f'<p class="flag">{_text(flag)}</p>' for flag in _flags(results))


def _flags(results: Results) -> Iterable[str]:
    """What makes a comparison unfair."""
    if results.frame.empty:
        return
    apart = revisions_apart(results.frame)
    where = [_apart(row) for row in apart[apart["flagged"].astype(bool)].to_dict("records")]
    if where:
        yield (
            "The protocols did not emit the same amount of results. Revisions per event, most against fewest, differ "
            f"by {'; '.join(where)}"
            ". Latency counts from the oldest event that a result reflects, so merged revisions do not look faster."
        )
    unfair = differences.unexpected(results)
    if unfair:
        yield f"{len(unfair)} settings other than the protocol differ inside a comparison; see Configuration."


def _apart(row: dict[Any, Any]) -> str:
    interval = float(row["commit_interval_ms"])
    commits = "" if math.isnan(interval) else f", {interval:g} ms commits"
    fault = "" if row["failure"] == "none" else f", {row['failure']}"
    return f"{row['apart']:.0%} at {row['series']}, {row['rate_offered']:,}/s{commits}{fault}"


def _claims(judged: Sequence[claims.Judged]) -> str:
    blocks = [
        '<p class="small">Ratios with bootstrap 95% intervals over repetitions; a claim needs at least '
        f"{claims.LEAST_REPETITIONS} valid ones on both sides, and an interval on one side of the limit. The paper ran "
        "on 13 machines with a replicated log: compare shapes and ratios, not milliseconds.</p>"
    ]
    for one in judged:
        style = one.verdict.value.replace(" ", "-")
        blocks.append(
            f'<div class="claim"><span class="{style}">{one.verdict.value}</span> {_text(one.claim.statement)}'
            f'<div class="small">Paper: {_text(one.claim.published)}. Here: {_text(one.summary)}.</div>'
            + _list([f"{f.where}: {f.verdict.value}; {f.numbers}" for f in one.findings], "numbers")
            + "</div>"
        )
    return "".join(blocks)


def _figures(drawn: dict[str, Path]) -> str:
    if not drawn:
        return "<p>There is nothing to draw.</p>"
    return "".join(_figure(name, path) for name, path in drawn.items())


def _figure(name: str, path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    caption = CAPTIONS.get(name, "Visible latency and lag around the fault.")
    return (
        f'<figure><img alt="{_text(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{_text(caption)} figures/{path.stem}.pdf</figcaption></figure>"
    )


def _tables(results: Results) -> str:
    recovery = tables.recovery_rows(results)
    text = "<h3>Cells</h3>" + _table(tables.cell_rows(results))
    text += '<p class="small">Milliseconds, with 95% intervals; percentiles of merged histograms.</p>'
    if len(recovery) > 1:
        text += "<h3>Recovery</h3>" + _table(recovery)
        text += (
            '<p class="small">Medians over repetitions; caught up: lag is back inside its band before the fault; load: '
            "the rate as a fraction of the one that the protocol sustained without a fault (≤ where it sustained all "
            "that were tried).</p>"
        )
    theirs = tables.published_rows(results)
    if len(theirs) > 1:
        text += "<h3>The paper's own figures</h3>" + _table(theirs)
        text += '<p class="small">p50 / p99 in milliseconds by its own measure, on 13 machines.</p>'
    return text


def _configuration(results: Results) -> str:
    protocols, settings = differences.protocol_settings(results)
    names = [name for name in settings if not name.endswith("._target_")]
    rows = [("protocol", *(name.removeprefix("protocol.") for name in names))]
    rows += [(protocol, *(settings[name][protocol] for name in names)) for protocol in protocols]
    text = "<p>What the protocols were configured with:</p>" + _table(rows)
    unfair = differences.unexpected(results)
    if not unfair:
        return text + "<p>Nothing else differs between the runs that are compared with each other.</p>"
    flagged = [("comparison", "setting", "values"), *(
        (d.where, d.setting, "; ".join(f"{name}: {value}" for name, value in d.values.items())) for d in unfair
    )]  # fmt: skip
    return text + '<p class="flag">These settings differ, too, so the comparison is not fair:</p>' + _table(flagged)


def _invalid(results: Results, root: Path) -> str:
    text = ""
    runs = results.frame
    bad = runs[~runs["valid"].astype(bool)] if len(runs) else runs
    if len(bad):
        rows = [(_short(Path(path), root), reasons) for path, reasons in
                zip(bad["directory"], bad["invalid_reasons"], strict=True)]  # fmt: skip
        text += _table([("run", "why it does not count"), *rows], tight=False)
    failed = [
        cell for manifest in results.manifests.values() for cell in manifest["cells"] if cell["state"] == "failed"
    ]
    if failed:
        rows = [(str(cell["id"]), f"exit code {cell.get('exit_code')}: {' '.join(map(str, cell.get('overrides', [])))}")
                for cell in failed]  # fmt: skip
        text += "<p>Cells that failed:</p>" + _table([("cell", "what was asked"), *rows], tight=False)
    if results.unreadable:
        rows = [(_short(one.path, root), one.reason.replace(f"{root}/", "")) for one in results.unreadable]
        text += "<p>Directories that were left out:</p>" + _table([("directory", "why"), *rows], tight=False)
    return text or "<p>None: every run kept the rules.</p>"


def _short(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) and path != root else path.name


def _environment(results: Results) -> str:
    """Values that all runs share, and those that differ."""
    seen: dict[str, set[str]] = {}
    for environment in results.environments.values():
        for name, value in environment.items():
            if name not in ("seed", "input_hash", "disk_free_bytes"):
                shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
                seen.setdefault(name, set()).add(shown)
    if not seen:
        return "<p>No run told.</p>"
    rows = [(name, " | ".join(sorted(values))) for name, values in seen.items()]
    return _table([("", "value (several where runs differ)"), *rows], tight=False)


def _repeat(results: Results) -> str:
    commands = sorted({str(manifest["command"]) for manifest in results.manifests.values() if manifest.get("command")})
    text = ""
    if not commands and len(results.frame):
        runs = results.frame.to_dict("records")
        commands = sorted({_command(run, results.configs[str(run["directory"])]) for run in runs})
        if len(commands) > SHOWN_COMMANDS:
            text = f'<p class="small">and {len(commands) - SHOWN_COMMANDS} more, by each run\'s config.yaml</p>'
            commands = commands[:SHOWN_COMMANDS]
    if not commands:
        return "<p>Nothing was run.</p>"
    return f"<pre>{_text(chr(10).join(commands))}</pre>{text}<pre>python -m analysis.report DIRECTORY</pre>"


def _command(run: dict[Any, Any], config: Any) -> str:
    words = ["python run.py", f"query={run['query']}", f"protocol={run['protocol']}", f"rate={run['rate_offered']}"]
    words += [f"{name}={run[name]}" for name in ("duration_s", "warmup_s", "seed", "parallelism") if name in run]
    if run["failure"] != "none":
        words.append(f"failure={run['failure']}")
        words += [f"{name}={value}" for name, value in config.items()
                  if name.startswith("failure.") and not name.startswith("failure._")]  # fmt: skip
    return " ".join(words)


def _table(rows: Sequence[Sequence[str]], *, tight: bool = True) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    style = ' class="tight"' if tight else ""
    return f'<div class="wide"><table{style}><tr>{head}</tr>{body}</table></div>'


def _list(lines: Iterable[str], style: str = "") -> str:
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f'<ul class="{style}">{items}</ul>' if items else ""


def _text(value: str) -> str:
    return html.escape(str(value))


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def main(arguments: Sequence[str]) -> int:
    """0 and the report's path, or 2 and what is wrong."""
    if len(arguments) != 1:
        print("usage: python -m analysis.report DIRECTORY", file=sys.stderr)
        return 2
    try:
        print(write(Path(arguments[0])))
    except RunDirectoryError as error:
        print(f"analysis.report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
