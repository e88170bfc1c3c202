"""Rate schedules: when event number n is due.

Every schedule is a sequence of segments of constant rate, once (the last one goes on for ever) or repeated. A rate is
a whole number of events/s, so the count of events up to a time is a whole number of millionths of an event, and both
directions (number → offset, offset → count) are exact integer arithmetic: no rate and no run length makes them drift.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from nexmark.errors import ParameterError, require_int
from nexmark.workload import Int64s

_MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Durations and rates, ready for lookup. `work` counts millionths of events: rate × microseconds."""

    durations_us: tuple[int, ...]
    rates: tuple[int, ...]
    repeated: bool

    @cached_property
    def starts_us(self) -> Int64s:
        return np.cumsum([0, *self.durations_us], dtype=np.int64)

    @cached_property
    def starts_work(self) -> Int64s:
        return np.cumsum([0, *(d * r for d, r in zip(self.durations_us, self.rates, strict=True))], dtype=np.int64)

    @cached_property
    def rate_array(self) -> Int64s:
        return np.array(self.rates, dtype=np.int64)

    def offset_us(self, numbers: Int64s) -> Int64s:
        if len(self.rates) == 1:
            return numbers * _MILLION // self.rates[0]
        work = numbers * _MILLION
        passed_us: Int64s | int = 0
        if self.repeated:
            periods, work = np.divmod(work, self.starts_work[-1])
            passed_us = periods * self.starts_us[-1]
        segment = np.searchsorted(self.starts_work[1:-1], work, side="right")
        inside_us = (work - self.starts_work[segment]) // self.rate_array[segment]
        return passed_us + self.starts_us[segment] + inside_us

    def count_before(self, offset_us: int) -> int:
        """Python integers: called once per flush, and must not overflow."""
        if offset_us <= 0:
            return 0
        work = 0
        if self.repeated:
            periods, offset_us = divmod(offset_us, int(self.starts_us[-1]))
            work = periods * int(self.starts_work[-1])
        segment = int(np.searchsorted(self.starts_us[1:-1], offset_us, side="right"))
        work += int(self.starts_work[segment]) + (offset_us - int(self.starts_us[segment])) * self.rates[segment]
        return -(-work // _MILLION)


@dataclass(frozen=True, kw_only=True)
class Rate(ABC):
    """A schedule as configured. `offset_us` and `count_before` are exact inverses."""

    @abstractmethod
    def _segments(self) -> Segments: ...

    @cached_property
    def segments(self) -> Segments:
        return self._segments()

    @property
    def least(self) -> int:
        """The lowest rate, in events/s."""
        return min(self.segments.rates)

    def offset_us(self, numbers: Int64s) -> Int64s:
        """When these events are due, in whole microseconds from the start."""
        return self.segments.offset_us(numbers)

    def count_before(self, offset_us: int) -> int:
        """How many numbers n have offset_us(n) < offset_us."""
        return self.segments.count_before(offset_us)


def _require_rate(owner: str, name: str, value: object) -> None:
    require_int(owner, name, value, 1, 1_000_000_000)


@dataclass(frozen=True, kw_only=True)
class Constant(Rate):
    events_per_s: int = 10_000

    def __post_init__(self) -> None:
        _require_rate("constant rate", "events_per_s", self.events_per_s)

    def _segments(self) -> Segments:
        return Segments(durations_us=(1,), rates=(self.events_per_s,), repeated=False)


@dataclass(frozen=True, kw_only=True)
class _Wave(Rate):
    low_events_per_s: int
    high_events_per_s: int
    period_us: int = 600_000_000

    def __post_init__(self) -> None:
        owner = type(self).__name__.lower() + " rate"
        _require_rate(owner, "low_events_per_s", self.low_events_per_s)
        _require_rate(owner, "high_events_per_s", self.high_events_per_s)
        require_int(owner, "period_us", self.period_us, 1000, 10**12)
        if self.low_events_per_s > self.high_events_per_s:
            raise ParameterError(
                f"{owner}: low_events_per_s={self.low_events_per_s} exceeds high_events_per_s={self.high_events_per_s}"
            )


@dataclass(frozen=True, kw_only=True)
class Square(_Wave):
    """Half a period at the high rate, half at the low one."""

    def _segments(self) -> Segments:
        half = self.period_us // 2
        return Segments(
            durations_us=(half, self.period_us - half),
            rates=(self.high_events_per_s, self.low_events_per_s),
            repeated=True,
        )


@dataclass(frozen=True, kw_only=True)
class Sine(_Wave):
    """A cosine from high to low and back, in `pieces` pieces of constant rate."""

    pieces: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("sine rate", "pieces", self.pieces, 2, 1000)

    def _segments(self) -> Segments:
        middle = (self.high_events_per_s + self.low_events_per_s) / 2
        swing = (self.high_events_per_s - self.low_events_per_s) / 2
        edges = [self.period_us * piece // self.pieces for piece in range(self.pieces + 1)]
        phases = [(piece + 0.5) / self.pieces for piece in range(self.pieces)]
        return Segments(
            durations_us=tuple(stop - start for start, stop in pairwise(edges)),
            rates=tuple(max(1, round(middle + swing * math.cos(2 * math.pi * phase))) for phase in phases),
            repeated=True,
        )


@dataclass(frozen=True, kw_only=True)
class Steps(Rate):
    """(duration in µs, events/s) pairs, one after the other; the last rate stays."""

    steps: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        steps = tuple(tuple(step) for step in self.steps)
        if not steps or any(len(step) != 2 for step in steps):
            raise ParameterError(f"step rates: need a list of [duration_us, events_per_s] pairs, got {self.steps!r}")
        for index, (duration_us, events_per_s) in enumerate(steps):
            require_int(f"step {index}", "duration_us", duration_us, 1, 10**12)
            _require_rate(f"step {index}", "events_per_s", events_per_s)
        object.__setattr__(self, "steps", steps)

    def _segments(self) -> Segments:
        durations, rates = zip(*self.steps, strict=True)
        return Segments(durations_us=durations, rates=rates, repeated=False)
