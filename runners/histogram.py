"""Latency histograms: log-linear buckets of about 0.1% width, exact to merge, cheap to fill column-wise."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]

# A value keeps its 11 leading bits: with 1024 steps in every power of two the error is below 0.1%.
_BITS = 11


def bucket(values: Int) -> Int:
    """The lower edge of each value's bucket. Negative values keep their own sign and edge."""
    magnitude = np.abs(values)
    exponent = np.frexp(magnitude.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(exponent - _BITS, 0)
    edges: Int = np.sign(values) * ((magnitude >> shift) << shift)
    return edges


class Histogram:
    """Counts by bucket. Two histograms of any runs may be merged; percentiles are taken last."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = dict(counts or {})

    def add(self, values: Int, weights: Int | None = None) -> None:
        if not len(values):
            return
        edges, inverse = np.unique(bucket(values), return_inverse=True)
        sums = np.bincount(inverse, weights=weights, minlength=len(edges))
        for edge, count in zip(edges.tolist(), sums.tolist(), strict=True):
            self.counts[edge] = self.counts.get(edge, 0) + int(count)

    def add_one(self, value: int) -> None:
        """The same for a single value, without the detour through an array."""
        shift = max(abs(value).bit_length() - _BITS, 0)
        edge = (abs(value) >> shift) << shift
        edge = -edge if value < 0 else edge
        self.counts[edge] = self.counts.get(edge, 0) + 1

    def merge(self, other: "Histogram") -> None:
        for edge, count in other.counts.items():
            self.counts[edge] = self.counts.get(edge, 0) + count

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def percentile(self, percent: float) -> float:
        """The bucket edge that `percent` of all values do not exceed; NaN when there are none."""
        return percentiles(self, [percent])[0]


def percentiles(histogram: Histogram, percents: list[float]) -> list[float]:
    """Several percentiles of one histogram; 100 is the largest bucket."""
    if not histogram.counts:
        return [float("nan")] * len(percents)
    edges = np.array(sorted(histogram.counts))
    total = np.cumsum([histogram.counts[edge] for edge in edges.tolist()])
    ranks = np.ceil(np.asarray(percents) / 100 * total[-1])
    return [float(edges[i]) for i in np.searchsorted(total, np.maximum(ranks, 1))]


def summary_ms(histogram: Histogram) -> dict[str, float]:
    """What run.json says of a latency: count, and p50 to max in milliseconds."""
    names = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9, "max": 100.0}
    values = percentiles(histogram, list(names.values()))
    return {"count": histogram.count, **{name: value / 1000 for name, value in zip(names, values, strict=True)}}
