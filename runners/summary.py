"""run.json and its tables: what the roles reported, condensed. Histograms are merged, percentiles never averaged."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import pandas as pd

from protocols.base import Guarantee
from runners.answer import answer_hash
from runners.histogram import Histogram, summary_ms
from runners.plan import WATERMARK_INTERVAL_MS
from runners.resources import Usage
from runners.settings import Settings
from runners.sink import METRICS
from runners.steady import keeps_up, medians_by_second, slope
from runners.supervisor import Outcome
from runners.verify import Verification

KINDS = ("input", "data", "changelog", "marker", "coordination", "snapshot", "report")
MAX_DELAY_MS = 10.0  # rule 1: beyond this, and beyond 5% of the visible p99, the instrument itself is too slow
MAX_DELAY_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class Findings:
    settings: Settings
    outcome: Outcome
    verification: Verification | None


def summarise(findings: Findings) -> dict[str, Any]:
    """The content of run.json. Field names are stable."""
    settings, outcome, checked = findings.settings, findings.outcome, findings.verification
    latency = {metric: _latency(findings, metric) for metric in METRICS}
    visible_p99 = summary_ms(latency["visible"])["p99"]
    delays = {
        "generator_delay_ms": _p50_p99(_generator_delay(findings)),
        "sink_delay_ms": _p50_p99(_latency(findings, "sink_delay")),
    }
    lag = _lag(findings)
    limit_ms = settings.query.visible_limit_ms(settings.commit_interval_ms or 0)
    processed = _processed_rate(settings.rate, lag)
    # A query may have nothing to say for seconds (Q7: no higher bid). That is not late; standing still shows as lag.
    late = visible_p99 > limit_ms
    slack = settings.rate * max(WATERMARK_INTERVAL_MS, settings.commit_interval_ms or 0) / 1000
    sustainable = outcome.complete and keeps_up(lag, settings.rate, slack) and not late
    reasons = [*outcome.reasons, *_invalid(findings, delays, visible_p99)]
    written = _written(outcome)
    return {
        "valid": not reasons,
        "invalid_reasons": reasons,
        "guarantee": settings.protocol.guarantee.value,
        "guarantee_held": _held(findings),
        "complete": outcome.complete,
        "verified": checked is not None,
        **settings.names,
        "seed": settings.seed,
        "repetition": settings.repetition,
        "sources": settings.sources,
        "parallelism": settings.parallelism,
        "rate_offered": settings.rate,
        "rate_sustained": processed,
        "sustainable": sustainable,
        "lag_slope": slope(lag),
        "events": settings.total,
        "duration_s": settings.duration_s,
        "warmup_s": settings.warmup_s,
        "start_us": outcome.start_us,
        "wall_s": (outcome.end_us - outcome.start_us) / 1e6 if outcome.start_us else None,
        "flush_interval_ms": settings.flush_interval_ms,
        "commit_interval_ms": settings.commit_interval_ms,
        "latency_from_intended_time": settings.workload.timestamps_are_intended,
        "latency_ms": {metric: _finite(summary_ms(histogram)) for metric, histogram in latency.items()},
        "revisions_per_event": _revisions(outcome),
        **delays,
        "verification": _verification(checked),
        "answer_hash": _answer_hash(outcome),
        "faults": outcome.faults,
        "restarts": outcome.restarts,
        "rollbacks": _rollbacks(outcome),
        "recovery_ms": slowest_recovery(outcome.faults),
        "recovery": _recovery(outcome),
        "log_bytes": {kind: written.get(kind, [0, 0])[1] for kind in KINDS},
        "log_entries": {kind: written.get(kind, [0, 0])[0] for kind in KINDS},
        "log_peak_bytes": outcome.log_peak_bytes,
        "log_pinned": settings.keep_log or not settings.trim or settings.protocol.pins_log(),
        "cpu_s": _cpu(findings),
        "late_rows": _sum(outcome, "late_rows"),
        "state_rows": _sum(outcome, "state_rows"),
        "state_bytes": _sum(outcome, "state_bytes"),
    }


def _held(findings: Findings) -> bool | None:
    checked = findings.verification
    return checked.holds(findings.settings.protocol.guarantee) if checked is not None else None


def latency_frame(outcome: Outcome) -> pd.DataFrame:
    """Histogram rows by second and metric: nothing is lost, and any two may be added up."""
    sink = outcome.results.get("sink")
    rows = [
        (second, metric, value_us, count)
        for (second, metric), counts in sink.result.get("latency", {}).items()
        for value_us, count in sorted(counts.items())
    ] if sink else []  # fmt: skip
    return pd.DataFrame(rows, columns=["second", "metric", "value_us", "count"])


def lag_frame(outcome: Outcome) -> pd.DataFrame:
    """The time line around faults: how far behind a reader of the results is, and rows on their way."""
    rows = [((at - outcome.start_us) / 1e6, behind, rows) for at, behind, rows in outcome.pulse]
    return pd.DataFrame(rows, columns=["elapsed_s", "behind_ms", "lag_rows"])


def resources_frame(outcome: Outcome) -> pd.DataFrame:
    """Memory, open files and disk, once a second."""
    return pd.DataFrame([asdict(usage) for usage in outcome.usage], columns=[field.name for field in fields(Usage)])


def tasks_frame(outcome: Outcome) -> pd.DataFrame:
    """The last report of every role in every second; counters rise within an instance."""
    newest: dict[tuple[str, int], dict[str, Any]] = {}
    for report in outcome.reports:
        second = (report.time_us - outcome.start_us) // 1_000_000
        content = report.content
        row = {"role": report.role, "instance": report.instance, "second": second}
        row |= {name: content.get(name) for name in ("pid", "rows_in", "rows_out", "cpu_s", "bound", "state_rows")}
        for kind in KINDS:
            entries, size = content.get("written", {}).get(kind, (0, 0))
            row |= {f"{kind}_entries": entries, f"{kind}_bytes": size}
        newest[report.role, second] = row
    return pd.DataFrame(list(newest.values()))


def _latency(findings: Findings, metric: str) -> Histogram:
    """All seconds of the measured part: after the warm-up, before the end of the schedule."""
    merged = Histogram()
    sink = findings.outcome.results.get("sink")
    for (second, name), counts in (sink.result.get("latency", {}) if sink else {}).items():
        if name == metric and _measured(findings.settings, second):
            merged.merge(Histogram(counts))
    return merged


def _measured(settings: Settings, second: int) -> bool:
    return settings.warmup_s <= second < math.ceil(settings.duration_s)


def _generator_delay(findings: Findings) -> Histogram:
    merged = Histogram()
    for result in findings.outcome.results.values():
        for second, counts in result.result.get("delays", {}).items():
            if _measured(findings.settings, second):
                merged.merge(Histogram(counts))
    return merged


def _p50_p99(histogram: Histogram) -> dict[str, float | None]:
    p50, p99 = histogram.percentiles([50, 99])
    return _finite({"p50": p50 / 1000, "p99": p99 / 1000})


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _invalid(findings: Findings, delays: dict[str, dict[str, float | None]], visible_p99: float) -> Iterable[str]:
    limit_ms = max(MAX_DELAY_MS, MAX_DELAY_SHARE * visible_p99) if math.isfinite(visible_p99) else MAX_DELAY_MS
    for name, delay in delays.items():
        if delay["p99"] is not None and delay["p99"] > limit_ms:
            yield f"{name} p99 is {delay['p99']:.1f} ms, above the {limit_ms:.1f} ms that a fair measurement allows"
    late = _sum(findings.outcome, "late_rows")
    # A restarted task repeats rows whose windows its consumers have closed: those are dropped, and were counted before.
    repeats = findings.settings.protocol.guarantee is Guarantee.AT_LEAST_ONCE and findings.outcome.restarts > 0
    if late and not repeats:
        yield f"{late} late rows were dropped; raise the query's grace_us"


def _verification(checked: Verification | None) -> dict[str, Any] | None:
    if checked is None:
        return None
    return {
        "checked": checked.checked,
        "lost": checked.lost,
        "duplicated": checked.duplicated,
        "wrong": checked.wrong,
        "edges_ok": checked.edges_ok,
        "examples": checked.examples,
    }


def _answer_hash(outcome: Outcome) -> str | None:
    sink = outcome.results.get("sink")
    return answer_hash(sink.result["answer"]) if sink is not None and "answer" in sink.result else None


def _last_reports(outcome: Outcome) -> dict[tuple[str, int], dict[str, Any]]:
    """What every instance said last; its result counts as its last word."""
    last = {(report.role, report.instance): report.content for report in outcome.reports}
    for result in outcome.results.values():
        if result.report:
            last[result.role, result.instance] = result.report
    return last


def _written(outcome: Outcome) -> dict[str, list[int]]:
    total: dict[str, list[int]] = {}
    for content in _last_reports(outcome).values():
        for kind, (entries, size) in content.get("written", {}).items():
            count = total.setdefault(kind, [0, 0])
            count[0] += entries
            count[1] += size
    return total


def _cpu(findings: Findings) -> dict[str, float]:
    groups = {"source": 0.0, "task": 0.0, "coordinator": 0.0, "sink": 0.0}
    for (role, _), content in _last_reports(findings.outcome).items():
        kind = role.split("/")[0]
        groups[kind if kind in groups else "task"] += content.get("cpu_s", 0.0)
    return groups


SPLIT = ("detect", "restart", "restore", "catch_up", "total")


def slowest_recovery(faults: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """The split of the fault that took longest to be over; all null when none was seen to be over."""
    splits: list[dict[str, Any]] = [dict(fault["recovery_ms"]) for fault in faults]
    over = [(split["total"], place) for place, split in enumerate(splits) if split["total"] is not None]
    return splits[max(over)[1]] if over else dict.fromkeys(SPLIT)


def _rollbacks(outcome: Outcome) -> int:
    """Tasks that went back in place, without dying: counted apart from restarts."""
    return sum(int(content.get("rollbacks", 0)) for content in _last_reports(outcome).values())


def _recovery(outcome: Outcome) -> dict[str, int]:
    """What recoveries read, over all restarted instances."""
    reports = [content for (_, instance), content in _last_reports(outcome).items() if instance > 1]
    return {name: int(sum(content.get(name, 0) for content in reports)) for name in ("entries_read", "changes_applied")}


def _sum(outcome: Outcome, name: str) -> int:
    return int(sum(result.report.get(name, 0) for result in outcome.results.values()))


def _revisions(outcome: Outcome) -> float | None:
    sink = outcome.results.get("sink")
    if sink is None or not sink.result.get("events"):
        return None
    return float(sink.result["rows"] / sink.result["events"])


def _lag(findings: Findings) -> list[tuple[float, float]]:
    """One sample for each measured second: (seconds, events that a reader of the results is behind).

    From the sink's event time, looked at twenty times a second. Row counters come with reports that are up to 200 ms
    old: at 500,000 events/s that alone is 100,000 rows, and looks like a trend. They serve where event time is not
    the schedule, as in a replay at another speed.
    """
    settings, outcome = findings.settings, findings.outcome
    if not (settings.workload.timestamps_are_intended and outcome.pulse):
        return [(t, float(v)) for t, v in outcome.lag if settings.warmup_s <= t <= settings.duration_s]
    behind = [((at - outcome.start_us) / 1e6, behind_ms) for at, behind_ms, _ in outcome.pulse]
    measured = [(t, ms) for t, ms in behind if settings.warmup_s <= t <= settings.duration_s]
    return [(second, ms * settings.rate / 1000) for second, ms in medians_by_second(measured)]


def _processed_rate(rate: int, lag: Sequence[tuple[float, float]]) -> float | None:
    """Events that left the pipeline per second, over the measured part."""
    if len(lag) < 2 or lag[-1][0] <= lag[0][0]:
        return None
    grown = (lag[-1][1] - lag[0][1]) / (lag[-1][0] - lag[0][0])
    return float(min(rate, rate - grown))
