"""Is a run in steady state? A robust slope of its lag says so; see docs/method.md, rules 4 and 5."""

import math
from collections.abc import Sequence

import numpy as np


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Theil–Sen: the median of the slopes between all pairs of (time, value). 0 with fewer than three samples."""
    if len(samples) < 3:
        return 0.0
    times, values = np.array(samples, dtype=float).T
    left, right = np.triu_indices(len(times), k=1)
    spans = times[right] - times[left]
    apart = spans > 0
    return float(np.median((values[right] - values[left])[apart] / spans[apart])) if apart.any() else 0.0


def medians_by_second(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """One (second, value) for each second that has samples; one late look or a commit's saw-tooth cannot move it."""
    seconds: dict[int, list[float]] = {}
    for time, value in samples:
        seconds.setdefault(math.floor(time), []).append(value)
    return [(float(second), float(np.median(values))) for second, values in sorted(seconds.items())]


def keeps_up(lag: Sequence[tuple[float, float]], rate: float, slack: float = 0.0) -> bool:
    """Whether lag grows by no more than 1% of the offered load, or all in all by no more than `slack`.

    Commits of several stages drift against each other, so lag wanders within about one commit interval. In a short run
    that has a slope, and is no trend.
    """
    grows = slope(lag)
    return grows <= 0.01 * rate or grows * (lag[-1][0] - lag[0][0]) <= slack
