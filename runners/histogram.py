"""Latency histograms: log-linear buckets of about 0.1% width, exact to merge, cheap to fill column-wise."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]

# A value keeps its 11 leading bits: with 1024 steps in every power of two the error is below 0.1%.
_BITS = 11
_STEPS = 1 << (_BITS - 1)
_PENDING = 1 << 16


def bucket(values: Int) -> Int:
    """The lower edge of each value's bucket. Negative values mirror the positive ones."""
    return _edges(_places(np.asarray(values)))


def _places(values: Int) -> Int:
    """Consecutive numbers of the buckets, so that they can be counted without sorting."""
    magnitude: Int = np.abs(values)
    exponent = np.frexp(magnitude.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(exponent - _BITS, 0)
    places: Int = np.where(values < 0, -1, 1) * (shift * _STEPS + (magnitude >> shift))
    return places


def _edges(places: Int) -> Int:
    magnitude: Int = np.abs(places)
    shift = np.maximum(magnitude // _STEPS - 1, 0)
    edges: Int = np.where(places < 0, -1, 1) * ((magnitude - shift * _STEPS) << shift)
    return edges


class Histogram:
    """Counts by bucket. Two histograms of any runs may be merged; percentiles are taken last.

    Values are kept until there are many or somebody asks: filing them one small batch at a time took more of the
    sink than everything else it does. They are summed up by the number of their bucket, in one row for all buckets
    between the least and the greatest: a dictionary would be a Python loop over buckets, time and again.
    """

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self._counts: dict[int, int] = dict(counts or {})
        self._values: list[Int] = []
        self._weights: list[Int] = []
        self._waiting = 0
        self._sums = np.zeros(0)  # exact: counts stay far below 2**53
        self._least = 0  # the bucket number of the first sum

    @property
    def counts(self) -> dict[int, int]:
        """Bucket edge → count."""
        self._file()
        found = np.flatnonzero(self._sums)
        for edge, count in zip(_edges(found + self._least).tolist(), self._sums[found].tolist(), strict=True):
            self._counts[edge] = self._counts.get(edge, 0) + int(count)
        self._sums[found] = 0
        return self._counts

    def add(self, values: Int, weights: Int | None = None) -> None:
        self._values.append(values)
        self._weights.append(np.ones(len(values), np.int64) if weights is None else weights)
        self._waiting += len(values)
        if self._waiting >= _PENDING:
            self._file()

    def _file(self) -> None:
        if not self._waiting:
            return
        places = _places(np.concatenate(self._values))
        least, most = int(places.min()), int(places.max())
        self._make_room(least, most)
        sums = np.bincount(places - least, weights=np.concatenate(self._weights))
        self._sums[least - self._least : most + 1 - self._least] += sums
        self._values, self._weights, self._waiting = [], [], 0

    def _make_room(self, least: int, most: int) -> None:
        """Let the row of sums cover these places too."""
        end = self._least + self._sums.size
        if self._sums.size and self._least <= least and most < end:
            return
        wider_least, wider_end = (min(self._least, least), max(end, most + 1)) if self._sums.size else (least, most + 1)
        wider = np.zeros(wider_end - wider_least)
        wider[self._least - wider_least :][: self._sums.size] = self._sums
        self._least, self._sums = wider_least, wider

    def add_one(self, value: int) -> None:
        """The same for a single value, without the detour through an array."""
        shift = max(abs(value).bit_length() - _BITS, 0)
        edge = (abs(value) >> shift) << shift
        edge = -edge if value < 0 else edge
        self._counts[edge] = self._counts.get(edge, 0) + 1

    def merge(self, other: "Histogram") -> None:
        for edge, count in other.counts.items():
            self._counts[edge] = self._counts.get(edge, 0) + count

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
