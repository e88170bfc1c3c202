"""The highest sustainable rate, found by search and not by a hand-made grid; see docs/method.md, rule 5.

The rate doubles until a run does not keep up; what is then known to work and to fail is brought together by bisection,
on a geometric scale because the tolerance is a ratio. Every probe is a short run of its own.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

INSTRUMENT = ("generator_delay_ms", "sink_delay_ms")
"""How reasons begin that say: the measuring itself was too slow. A source that cannot offer a rate fails it, too."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One run at one rate. `why_not` is empty when the rate was sustained."""

    rate: int
    why_not: tuple[str, ...]
    broken: bool  # invalid for more than a slow instrument: a defect, which a low rate must not hide
    summary: Mapping[str, Any] = field(repr=False)

    @property
    def sustained(self) -> bool:
        return not self.why_not


@dataclass(frozen=True, kw_only=True)
class Found:
    """The outcome of a search. `rate` is the highest that was seen to be sustained, 0 if none was."""

    rate: int
    ended: str
    probes: tuple[Probe, ...]

    @property
    def best(self) -> Probe | None:
        return max((probe for probe in self.probes if probe.sustained), key=lambda probe: probe.rate, default=None)

    @property
    def limited_by(self) -> tuple[str, ...]:
        """What went wrong at the lowest rate that failed."""
        failed = min((probe for probe in self.probes if not probe.sustained), key=lambda p: p.rate, default=None)
        return failed.why_not if failed else ()

    @property
    def broken(self) -> tuple[Probe, ...]:
        return tuple(probe for probe in self.probes if probe.broken)


@dataclass(frozen=True, kw_only=True)
class Search:
    """How to look. The same answers give the same probes."""

    start_rate: int
    tolerance: float = 0.1
    max_runs: int = 8
    least_rate: int = 1000
    most_rate: int = 16_000_000

    def __post_init__(self) -> None:
        if not 1 <= self.least_rate <= self.start_rate <= self.most_rate:
            raise ValueError(
                f"search: need 1 <= least_rate <= start_rate <= most_rate,"
                f" got {self.least_rate}, {self.start_rate}, {self.most_rate}"
            )
        if self.max_runs < 1 or not 0 < self.tolerance < 1:
            raise ValueError(
                f"search: need max_runs >= 1 and a tolerance between 0 and 1, got {self.max_runs}, {self.tolerance}"
            )

    def run(self, measure: Callable[[int], Mapping[str, Any]]) -> Found:
        """`measure` runs at a rate and returns run.json's content. An interrupted run interrupts the search."""
        probes: list[Probe] = []
        rate: int | None = self.start_rate
        while rate is not None and len(probes) < self.max_runs:
            probes.append(judge(rate, measure(rate)))
            rate, ended = self._next(probes)
        if rate is not None:
            ended = f"{len(probes)} runs were allowed"
        return Found(rate=_best(probes), ended=ended, probes=tuple(probes))

    def _next(self, probes: list[Probe]) -> tuple[int | None, str]:
        """The next rate; or None, and why the search is over."""
        low, high = _best(probes), min((probe.rate for probe in probes if not probe.sustained), default=None)
        if high is None:
            if low == self.most_rate:
                return None, f"the highest rate allowed, {self.most_rate}, was sustained"
            return min(2 * low, self.most_rate), ""
        if not low:
            if high <= self.least_rate:
                return None, f"not even {self.least_rate} events/s were sustained"
            return max(self.least_rate, self._below(probes[-1])), ""
        if high <= low * (1 + self.tolerance):
            return None, f"within {self.tolerance:.0%} of a rate that failed"
        return _rounded(math.sqrt(low * high)), ""

    def _below(self, failed: Probe) -> int:
        """Nothing has worked so far: half the rate, or what was really processed if that is even less.

        A quarter at least: an overloaded run may process less than it could.
        """
        processed = failed.summary.get("rate_sustained") or 0.0
        return _rounded(min(max(processed, failed.rate / 4), failed.rate / 2))


def judge(rate: int, summary: Mapping[str, Any]) -> Probe:
    """Whether a run counts as sustained: it kept up, stayed under its query's limit, and was measured properly."""
    reasons = [str(reason) for reason in summary["invalid_reasons"]]
    if "interrupted" in reasons:
        raise KeyboardInterrupt
    why_not = list(reasons)
    if not summary["sustainable"]:
        p99 = summary["latency_ms"]["visible"]["p99"]
        seen = "no result in the measured part" if p99 is None else f"visible p99 {p99:.0f} ms"
        processed = summary.get("rate_sustained")
        kept = "" if processed is None else f", processed {processed:.0f}/s"
        why_not.insert(0, f"did not keep up: {seen}{kept}")
    elif not summary["valid"] and not reasons:
        why_not.append("invalid")
    broken = not summary["complete"] or any(not reason.startswith(INSTRUMENT) for reason in reasons)
    return Probe(rate=rate, why_not=tuple(why_not), broken=broken, summary=summary)


def _best(probes: list[Probe]) -> int:
    return max((probe.rate for probe in probes if probe.sustained), default=0)


def _rounded(rate: float) -> int:
    """Three significant digits: rates are read by people."""
    unit = 10 ** max(0, math.floor(math.log10(rate)) - 2)
    return int(round(rate / unit) * unit)
