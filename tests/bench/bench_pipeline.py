"""The whole pipeline: source, log, tasks, log, sink, on the Spark runner, query by query.

    python -m tests.bench.bench_pipeline [--quick] [--queries q1 q5] [--protocol unsafe] [--parallelism 1]

For every query the highest sustainable rate, found by search, and one verified run at that rate; then Q1's latency at
a low rate; then Spark Structured Streaming on the same events, in the same run. One repetition: n=1.
"""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from runners.sustained import Found
from tests.bench import harness, structured
from tests.bench.measuring import (
    BARS,
    Plan,
    Results,
    add_options,
    as_json,
    doubts,
    first_line,
    interruptible,
    milliseconds,
    plan_of,
    say,
    table,
)

LATENCY_RATE = 20_000
LATENCY_FLUSH_MS = 10
LATENCY_BAR_MS = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Prints tables; the exit code is 0 unless a run broke or an answer was wrong: a busy machine is no defect."""
    options = _options(argv)
    plan = plan_of(options, "pipeline")
    results = Results("pipeline", options)
    print(f"whole pipeline under {options.protocol}, {os.cpu_count()} cores, parallelism {plan.parallelism},"
          f" {plan.sources} source(s), runs of {plan.seconds:g} s, n=1", flush=True)  # fmt: skip
    found: dict[str, Found] = {}
    confirmed: dict[str, dict[str, Any] | None] = {}
    for number, query in enumerate(options.queries, 1):
        say(f"[{number}/{len(options.queries)}] {query}: searching the sustained rate")
        found[query] = plan.search(query, query, options.protocol)
        confirmed[query] = _confirm(plan, query, options.protocol, found[query].rate)
        results.put("queries", {q: {"search": as_json(found[q]), "confirmed": confirmed[q]} for q in found})
    print(_rates_table(found, confirmed), flush=True)
    wrong = [query for query, run in confirmed.items() if any("WRONG" in doubt for doubt in doubts(run))]
    if not options.no_latency:
        run = _latency(plan, options.protocol)
        results.put("latency", run)
        wrong += [f"q1 at {LATENCY_RATE}/s"] if any("WRONG" in doubt for doubt in doubts(run)) else []
    if not options.no_structured:
        _structured(options, plan, found, results)
    results.finish()
    if wrong:
        print(f"WRONG ANSWERS: {', '.join(wrong)}", flush=True)
    return 1 if wrong or any(search.broken for search in found.values()) else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Sustained rates of the whole pipeline, and Structured Streaming.")
    add_options(parser, parallelism=1, queries=sorted(BARS), runs=8, tolerance=0.1)
    parser.add_argument("--protocol", default="unsafe", choices=harness.protocols(), help="default: %(default)s")
    parser.add_argument("--no-latency", action="store_true", help="leave Q1's latency at a low rate out")
    parser.add_argument("--no-structured", action="store_true", help="leave Spark Structured Streaming out")
    parser.add_argument("--batch", type=int, help="events in a micro-batch of Structured Streaming (default: 500000)")
    parser.add_argument("--batches", type=int, help="micro-batches of Structured Streaming (default: 16)")
    return parser.parse_args(argv)


def _confirm(plan: Plan, query: str, protocol: str, rate: int) -> dict[str, Any] | None:
    """One more run at the rate found, compared with the oracle: a fast wrong answer is worth nothing."""
    if not rate:
        return None
    say(f"    {rate:>10,}/s  once more{', verified' if plan.verify else ''}")
    return plan.run(f"{query}-{rate}-confirmed", query, protocol, rate)


def _rates_table(found: dict[str, Found], confirmed: dict[str, dict[str, Any] | None]) -> str:
    head = ["query", "events/s", "bar", "", "visible p50", "p99 ms", "runs", "limited by; doubts"]
    rows = []
    for query, search in found.items():
        run = confirmed[query]
        remarks = [f"above it: {first_line(reason)}" for reason in search.limited_by[:1]] or [search.ended]
        remarks += [f"broke at {probe.rate}/s: {first_line(probe.why_not[-1])}" for probe in search.broken]
        if run is not None and not run["sustainable"]:
            remarks.append("not sustained when run once more")
        rows.append([
            query,
            f"{search.rate:,}",
            f"{BARS[query]:,}",
            "met" if search.rate >= BARS[query] else "NOT MET",
            milliseconds(run, "visible", "p50") if run else "–",
            milliseconds(run, "visible", "p99") if run else "–",
            str(len(search.probes)),
            "; ".join(remarks + doubts(run)),
        ])  # fmt: skip
    return table(head, rows)


def _latency(plan: Plan, protocol: str) -> dict[str, Any]:
    say(f"q1 at {LATENCY_RATE:,}/s")
    run = plan.run("q1-latency", "q1", protocol, LATENCY_RATE, flush_interval_ms=LATENCY_FLUSH_MS)
    p50 = run["latency_ms"]["visible"]["p50"]
    verdict = "met" if p50 is not None and p50 <= LATENCY_BAR_MS else "NOT MET"
    verdict += "" if run["valid"] else " (by an invalid run)"
    print(f"q1 at {LATENCY_RATE:,}/s, {LATENCY_FLUSH_MS} ms flush: visible p50 {milliseconds(run, 'visible', 'p50')},"
          f" p99 {milliseconds(run, 'visible', 'p99')} ms; bar p50 ≤ {LATENCY_BAR_MS} ms: {verdict}"
          f"{''.join(f'; {doubt}' for doubt in doubts(run))}", flush=True)  # fmt: skip
    return run


def _structured(options: argparse.Namespace, plan: Plan, found: dict[str, Found], results: Results) -> None:
    """Structured Streaming on the queries that it can do, over the events of our rate."""
    batch = options.batch or (100_000 if options.quick else 500_000)
    batches = options.batches or (3 if options.quick else 16)
    numbers: dict[str, Any] = {}
    print(f"Spark Structured Streaming, local[{structured.CORES}], checkpoint on, the same events from Parquet files,"
          f" {batch:,} per micro-batch, noop sink; q5 without the maximum per window", flush=True)  # fmt: skip
    rows = []
    for query in structured.QUERIES:
        if query not in found:
            continue
        say(f"Structured Streaming on {query}: writing {batch * batches:,} events, then running")
        ours = found[query].rate
        other = structured.measure(query, rate=ours or BARS[query], events=batch * batches, batch=batch, seed=plan.seed)
        speeds = (other["events_per_s"], other["events_per_s_later_half"])
        numbers[query] = {**other, "ours": ours, "ratios": [ours / speed for speed in speeds]}
        results.put("structured_streaming", numbers)
        rows.append([
            query,
            *(f"{speed:,.0f}" for speed in speeds),
            f"{other['micro_batch_ms_median']:,}",
            f"{ours:,}",
            *(f"{ours / speed:.2f}" if ours else "–" for speed in speeds),
        ])  # fmt: skip
    head = ["query", "events/s after the first batch", "later half", "ms per batch", "ours", "ratio", "(later half)"]
    print(table(head, rows), flush=True)


if __name__ == "__main__":
    raise SystemExit(interruptible(main))
