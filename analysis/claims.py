"""The headline claims of the Impeller paper as predicates over results: does it hold here, does it not, is it unknown?

A claim is decided by 95% intervals over at least three repetitions: it holds where the whole interval says so, does not
where the whole interval says the opposite, and everything else is not enough data. Only valid runs count, and for
latency only those whose answer was checked and right.
Latencies are `visible` ones, the method's headline; the paper's own measure (`paper`) is given beside them.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pandas as pd

from analysis import published
from analysis.load import Results
from analysis.metrics import (
    BASELINE,
    MAX_REVISIONS_APART,
    Estimate,
    cells,
    histograms_of,
    ratio_of_cells,
    ratio_of_medians,
    short,
    sustained_rates,
    usual,
)

LEAST_REPETITIONS = 3
MARKING, TRANSACTIONS, ALIGNED = "progress_marking", "transactions", "aligned_checkpoint"
STATEFUL = ("q3", "q4", "q5", "q6", "q7", "q8")


class Verdict(Enum):
    HOLDS = "holds"
    FAILS = "does not hold"
    UNKNOWN = "not enough data"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One comparison that bears on a claim."""

    where: str
    verdict: Verdict
    numbers: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the paper says, what it measured, and how to look for it here."""

    name: str
    statement: str
    published: str
    look: Callable[[Results], Iterable[Finding]]


@dataclass(frozen=True, kw_only=True)
class Judged:
    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """One comparison decided against the claim is enough; half of them must be decided for it."""
        seen = [finding.verdict for finding in self.findings]
        if Verdict.FAILS in seen:
            return Verdict.FAILS
        return Verdict.HOLDS if seen and 2 * seen.count(Verdict.HOLDS) >= len(seen) else Verdict.UNKNOWN

    @property
    def summary(self) -> str:
        if not self.findings:
            return "no such runs"
        counts = {v: sum(finding.verdict is v for finding in self.findings) for v in Verdict}
        return ", ".join(f"{verdict.value} in {count}" for verdict, count in counts.items() if count)


def evaluate(results: Results) -> list[Judged]:
    """Every claim over these results."""
    if results.frame.empty:
        return [Judged(claim=claim, findings=()) for claim in CLAIMS]
    return [Judged(claim=claim, findings=tuple(claim.look(results))) for claim in CLAIMS]


def above(estimate: Estimate, limit: float) -> Verdict:
    """Whether all of the interval is above the limit, or none of it."""
    if estimate.n < LEAST_REPETITIONS or math.isnan(estimate.low):
        return Verdict.UNKNOWN
    if estimate.low > limit:
        return Verdict.HOLDS
    return Verdict.FAILS if estimate.high < limit else Verdict.UNKNOWN


def within(estimate: Estimate, low: float, high: float) -> Verdict:
    """Whether all of the interval is inside the limits, or none of it."""
    if estimate.n < LEAST_REPETITIONS or math.isnan(estimate.low):
        return Verdict.UNKNOWN
    if low <= estimate.low and estimate.high <= high:
        return Verdict.HOLDS
    return Verdict.FAILS if estimate.high < low or estimate.low > high else Verdict.UNKNOWN


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Two cells of one series and rate, the valid runs of each."""

    series: str
    query: str
    rate: int
    interval_ms: float
    flush_ms: float
    over: Mapping[Hashable, Any]
    under: Mapping[Hashable, Any]
    kept_up: bool

    @property
    def enough(self) -> bool:
        """Valid runs on both sides, as many as a verdict needs."""
        return all(cell["valid"] and cell["n"] >= LEAST_REPETITIONS for cell in (self.over, self.under))


def _pairs(results: Results, runs: pd.DataFrame, over: str, under: str) -> list[_Pair]:
    """All rates and commit intervals at which both protocols ran without a fault; a baseline has no interval."""
    wanted = runs[runs["protocol"].isin([over, under]) & (runs["fault_count"] == 0)]
    wanted = wanted[(wanted["snapshot_interval_ms"] != 0) & _right(wanted)]
    if wanted.empty:
        return []
    kept = wanted.groupby("cell")["sustainable"].mean()
    found = cells(results, wanted).sort_values("n", ascending=False)
    pairs = []
    for (series, query, rate), group in found.groupby(["series", "query", "rate_offered"]):
        for _, top in group[group["protocol"] == over].drop_duplicates("commit_interval_ms").iterrows():
            same = group["commit_interval_ms"].isna() | (group["commit_interval_ms"] == top["commit_interval_ms"])
            below = group[(group["protocol"] == under) & same]
            if len(below):
                bottom = below.iloc[0]
                fit = max(kept[str(top["cell"])], kept[str(bottom["cell"])]) > 0.5
                pairs.append(
                    _Pair(
                        series=str(series),
                        query=str(query),
                        rate=int(float(str(rate))),
                        interval_ms=float(top["commit_interval_ms"]),
                        flush_ms=float(top["flush_interval_ms"]),
                        over=top.to_dict(),
                        under=bottom.to_dict(),
                        kept_up=fit,
                    )
                )
    return pairs


def _right(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Whose answer was checked and right."""
    differences = runs[[f"verification_{kind}" for kind in ("lost", "duplicated", "wrong")]].sum(axis=1, skipna=False)
    return (differences == 0) & (runs["verification_edges_ok"] == True)  # noqa: E712


def _highest(pairs: Sequence[_Pair]) -> list[_Pair]:
    """For each series the highest common rate that at least one of the two kept up with; else the highest.

    Of these one with enough valid runs: near the limit it is the instruments that give way first.
    """
    best: dict[str, _Pair] = {}
    for pair in sorted(pairs, key=lambda pair: (pair.kept_up, pair.enough, pair.rate)):
        best[pair.series] = pair
    return [best[series] for series in sorted(best)]


def _compare(results: Results, pair: _Pair, percent: int, judge: Callable[[Estimate], Verdict]) -> Finding:
    """The ratio of the two cells' percentiles, judged; undecided without valid runs on both sides."""

    visible = _ratio(results, pair, percent, "visible")
    top, bottom = (f"{cell['protocol']} {cell[f'p{percent}'].bare}" for cell in (pair.over, pair.under))
    paper = _ratio(results, pair, percent, "paper")
    numbers = f"p{percent} of {top} / {bottom} ms = {visible}; by the paper's measure {paper.bare}"
    valid = bool(pair.over["valid"]) and bool(pair.under["valid"])
    apart = _revisions_apart(results, pair)
    if apart > MAX_REVISIONS_APART:
        numbers += f"; revisions per event differ by {apart:.0%}"
    return Finding(
        where=f"{pair.series} at {pair.rate:,}/s"
        + ("" if math.isnan(pair.interval_ms) else f", {pair.interval_ms:g} ms"),
        verdict=judge(visible) if valid else Verdict.UNKNOWN,
        numbers=numbers if valid else f"{numbers}; only invalid runs on one side",
    )


def _ratio(results: Results, pair: _Pair, percent: int, metric: str) -> Estimate:
    over, under = (histograms_of(results, cell["directories"], metric) for cell in (pair.over, pair.under))
    return ratio_of_cells(over, under, percent)


def _revisions_apart(results: Results, pair: _Pair) -> float:
    runs = results.frame
    medians = [
        float(runs["revisions_per_event"][runs["directory"].isin(cell["directories"])].astype(float).median())
        for cell in (pair.over, pair.under)
    ]
    return max(medians) / min(medians) - 1 if min(medians) > 0 else 0.0


def _transactions_at_ten_ms(results: Results) -> Iterable[Finding]:
    runs = results.frame
    short_commits = runs[runs["commit_interval_ms"] == 10]
    for pair in _highest(_pairs(results, short_commits, TRANSACTIONS, MARKING)):
        yield _compare(results, pair, 99, lambda ratio: above(ratio, 1))


def _gap_grows(results: Results) -> Iterable[Finding]:
    """Between the shortest and the longest interval of a series and rate."""
    pairs = _pairs(results, results.frame, TRANSACTIONS, MARKING)
    for series, rate in sorted({(pair.series, pair.rate) for pair in pairs}):
        mine = sorted((p for p in pairs if (p.series, p.rate) == (series, rate)), key=lambda pair: pair.interval_ms)
        if len(mine) < 2:
            continue
        first, last = (_ratio(results, pair, 99, "visible") for pair in (mine[0], mine[-1]))
        valid = all(bool(cell["valid"]) for p in (mine[0], mine[-1]) for cell in (p.over, p.under))
        enough = valid and min(first.n, last.n) >= LEAST_REPETITIONS
        verdict = Verdict.UNKNOWN
        if enough and first.low > last.high:
            verdict = Verdict.HOLDS
        elif enough and first.high < last.low:
            verdict = Verdict.FAILS
        where = f"{series} at {rate:,}/s, {mine[0].interval_ms:g} against {mine[-1].interval_ms:g} ms"
        yield Finding(where=where, verdict=verdict, numbers=f"p99 ratio {first} against {last}")


def _transactions_at_usual(results: Results) -> Iterable[Finding]:
    for pair in _highest(_pairs(results, usual(results.frame), TRANSACTIONS, MARKING)):
        if pair.query in ("q1", "q2", "q3", "q5", "q7"):
            yield _compare(results, pair, 99, lambda ratio: above(ratio, 1))


def _aligned(results: Results) -> Iterable[Finding]:
    for pair in _highest(_pairs(results, usual(results.frame), ALIGNED, MARKING)):
        if pair.query in STATEFUL:
            yield _compare(results, pair, 99, lambda ratio: above(ratio, 1))


def _cost(percent: int) -> Callable[[Results], Iterable[Finding]]:
    """At the paper's flush interval: below it the baseline shows results sooner, and waiting for commits costs more."""
    low, high = published.COST_OF_UNSAFE[percent]

    def look(results: Results) -> Iterable[Finding]:
        for pair in _pairs(results, usual(results.frame), MARKING, BASELINE):
            if pair.query == "q5" and pair.kept_up and pair.flush_ms == published.COST_FLUSH_INTERVAL_MS:
                yield _compare(results, pair, percent, lambda ratio: within(ratio, low, high))

    return look


def _sustained(results: Results) -> Iterable[Finding]:
    rates = sustained_rates(usual(results.frame))
    for series, group in rates.groupby("series"):
        mine, theirs = (group[group["protocol"] == name] for name in (MARKING, TRANSACTIONS))
        if mine.empty or theirs.empty:
            continue
        ratio = ratio_of_medians(mine["rate"].tolist(), theirs["rate"].tolist())
        numbers = f"{short(mine['rate'].median())}/s against {short(theirs['rate'].median())}/s = {ratio}"
        verdict = Verdict.UNKNOWN
        if mine["censored"].all() and theirs["censored"].all():
            numbers += "; both sustained the highest rate that was tried"
        elif ratio.n >= LEAST_REPETITIONS and not math.isnan(ratio.low):
            verdict = Verdict.HOLDS if ratio.low >= 1 else Verdict.FAILS if ratio.high < 1 else Verdict.UNKNOWN
        yield Finding(where=str(series), verdict=verdict, numbers=numbers)


def _snapshots(column: str, unit: str, limit: float) -> Callable[[Results], Iterable[Finding]]:
    """Without over with snapshots, for every series, rate, protocol and fault that it recovered from in both ways.

    A snapshot saves what was done before it. Where the kill came too early for the limit, nothing is decided.
    """

    def look(results: Results) -> Iterable[Finding]:
        runs = results.frame
        faulty = runs[(runs["fault_count"] > 0) & runs["valid"].astype(bool) & runs["snapshot_interval_ms"].notna()]
        keys = ["series", "rate_offered", "protocol", "fault", "commit_interval_ms"]
        for (series, rate, protocol, *_), group in faulty.groupby(keys, dropna=False):
            off = group["snapshot_interval_ms"] == 0
            without, having = group[column][off].tolist(), group[column][~off].tolist()
            if not without or not having:
                continue
            ratio = ratio_of_medians(without, having)
            numbers = f"{short(pd.Series(without).median())} / {short(pd.Series(having).median())} {unit} = {ratio}"
            verdict = above(ratio, limit)
            possible = _most_saved(group[~off])
            if possible <= limit:
                verdict = Verdict.UNKNOWN
                numbers += f"; the kill came too early: at most {short(possible)} times less was there to be read"
            yield Finding(where=f"{series} at {rate:,}/s, {protocol}", verdict=verdict, numbers=numbers)

    return look


def _most_saved(runs: pd.DataFrame) -> float:
    """Time before the fault over time since the last snapshot: how many times less a snapshot can let be read."""
    interval_s = runs["snapshot_interval_ms"] / 1000
    return float((runs["fault_s"] / (runs["fault_s"] % interval_s)).median())


def _exactly_once(results: Results) -> Iterable[Finding]:
    """Judged by every run that was checked: a slow instrument spoils latencies, not answers."""
    runs = _faulty(results)
    for name, group in runs[runs["guarantee"] == "exactly_once"].groupby("protocol"):
        broken = group[group["guarantee_held"] == False]  # noqa: E712
        verdict = Verdict.FAILS if len(broken) else Verdict.UNKNOWN
        if len(group) >= LEAST_REPETITIONS and (group["guarantee_held"] == True).all():  # noqa: E712
            verdict = Verdict.HOLDS
        yield Finding(
            where=str(name), verdict=verdict, numbers=f"{len(broken)} of {len(group)} runs with a fault broke it"
        )


def _unsafe(results: Results) -> Iterable[Finding]:
    """By faults that somebody died of: a slow disk or a short pause takes nothing from anybody."""
    runs = _faulty(results)
    for name, group in runs[(runs["guarantee"] == "none") & (runs["restarts"] > 0)].groupby("protocol"):
        failed = ~_right(group)
        verdict = Verdict.UNKNOWN if len(group) < LEAST_REPETITIONS else Verdict.HOLDS
        if not failed.all():
            verdict = Verdict.FAILS
        numbers = f"{int(failed.sum())} of {len(group)} runs with a fault lost or repeated rows"
        yield Finding(where=str(name), verdict=verdict, numbers=numbers)


def _faulty(results: Results) -> pd.DataFrame:
    runs = results.frame
    chosen = (runs["fault_count"] > 0) & runs["faults_proven"].astype(bool) & runs["complete"].astype(bool)
    return runs[chosen & runs["verification_checked"].notna()]


CLAIMS = (
    Claim(name="transactions_at_10_ms", look=_transactions_at_ten_ms,
          statement="At 10 ms commits, transactions' p99 is higher than progress marking's.",
          published="Q4 at 3,000/s: 358 / 114 ms, 3.1× (Fig 8)"),
    Claim(name="gap_grows", look=_gap_grows,
          statement="The shorter the commit interval, the greater progress marking's advantage over transactions.",
          published="Q4 at 3,000/s: 3.1× at 10 ms, 1.0× at 100 ms (Fig 8)"),
    Claim(name="transactions_at_100_ms", look=_transactions_at_usual,
          statement="At 100 ms commits, transactions' p99 is higher than progress marking's for Q1, Q2, Q3, Q5 and Q7.",
          published="Q1 256k 94 / 16, Q3 512k 8239 / 475, Q5 192k 430 / 367, Q7 64k 212 / 191 ms (Fig 7)"),
    Claim(name="aligned_checkpoints", look=_aligned,
          statement="On the stateful queries aligned checkpoints' p99 is higher than progress marking's.",
          published="Q3 256k 1471 / 152, Q5 192k 759 / 367, Q8 80k 1217 / 170 ms (Fig 7)"),
    Claim(name="cost_p50", look=_cost(50),
          statement="With flushes every 100 ms, progress marking costs 1.2 to 2.0 times unsafe's p50 on Q5.",
          published="1.2–2.0× (Fig 9)"),
    Claim(name="cost_p99", look=_cost(99),
          statement="With flushes every 100 ms, progress marking costs 1.0 to 1.8 times unsafe's p99 on Q5.",
          published="1.0–1.8× (Fig 9)"),
    Claim(name="sustained_rate", look=_sustained,
          statement="Progress marking sustains at least transactions' rate.",
          published="Q3 at 512k/s: p99 475 ms against 8239 ms, so only one stays under 1 s (Fig 7)"),
    Claim(name="snapshots_entries", look=_snapshots("recovery_entries_read", "entries", 10),
          statement="Snapshots cut the entries read at recovery by an order of magnitude.",
          published="27–30× fewer, Q8 (Table 4)"),
    Claim(name="snapshots_time", look=_snapshots("recovery_total_ms", "ms", 1),
          statement="Snapshots shorten recovery.",
          published="Q8 at 80k/96k/112k: 3.858/3.920/4.758 s without, 0.273/0.270/0.297 s with, 14–16× (Table 4)"),
    Claim(name="exactly_once_kept", look=_exactly_once,
          statement="Under faults, exactly-once protocols neither lose nor duplicate.",
          published="by design (§3)"),
    Claim(name="unsafe_breaks", look=_unsafe,
          statement="Under faults, the unsafe baseline loses or duplicates.",
          published="by design (§5.3.4)"),
)  # fmt: skip
