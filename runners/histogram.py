"""Latency histograms: log-linear buckets of about 0.1% width, exact to merge, cheap to fill column-wise."""

from collections.abc import Mapping, Sequence

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
        self._values: list[Int] = []
        self._weights: list[Int] = []
        self._ones: list[int] = []  # single values, of weight 1
        self._waiting = 0
        self._sums = np.zeros(0)  # exact: counts stay far below 2**53
        self._least = 0  # the bucket number of the first sum
        if counts:
            self.add(np.fromiter(counts, np.int64), np.fromiter(counts.values(), np.int64))

    @property
    def counts(self) -> dict[int, int]:
        """Bucket edge → count, made anew for every caller."""
        edges, sums = self._filled()
        return dict(zip(edges.tolist(), sums.astype(np.int64).tolist(), strict=True))

    def add(self, values: Int, weights: Int | None = None) -> None:
        self._values.append(values)
        self._weights.append(np.ones(len(values), np.int64) if weights is None else weights)
        self._waiting += len(values)
        if self._waiting >= _PENDING:
            self._file()

    def add_one(self, value: int) -> None:
        """The same for a single value, without an array of its own."""
        self._ones.append(value)
        if len(self._ones) >= _PENDING:
            self._file()

    def merge(self, other: "Histogram") -> None:
        other._file()
        if other._sums.size:
            self._add_sums(other._least, other._sums)

    @property
    def count(self) -> int:
        return int(self._filled()[1].sum())

    def percentile(self, percent: float) -> float:
        """The bucket edge that `percent` of all values do not exceed; NaN when there are none."""
        return self.percentiles([percent])[0]

    def percentiles(self, percents: Sequence[float]) -> list[float]:
        """Several at once; 100 is the largest bucket."""
        edges, sums = self._filled()
        if not edges.size:
            return [float("nan")] * len(percents)
        total = np.cumsum(sums)
        ranks = np.ceil(np.asarray(percents) / 100 * total[-1])
        return [float(edges[i]) for i in np.searchsorted(total, np.maximum(ranks, 1))]

    def _filled(self) -> tuple[Int, npt.NDArray[np.float64]]:
        """The edges of all buckets that are not empty, in order, and what is in them."""
        self._file()
        found = np.flatnonzero(self._sums)
        return _edges(found + self._least), self._sums[found]

    def _file(self) -> None:
        if self._ones:
            self._values.append(np.array(self._ones, np.int64))
            self._weights.append(np.ones(len(self._ones), np.int64))
            self._ones = []
        if not self._values:
            return
        places = _places(np.concatenate(self._values))
        if places.size:
            least = int(places.min())
            sums = np.bincount(places - least, weights=np.concatenate(self._weights))
            self._add_sums(least, sums.astype(np.float64, copy=False))
        self._values, self._weights, self._waiting = [], [], 0

    def _add_sums(self, least: int, sums: npt.NDArray[np.float64]) -> None:
        """Add counts of consecutive buckets; the row grows where it does not cover them yet."""
        end, own_end = least + sums.size, self._least + self._sums.size
        if not self._sums.size:
            self._least, self._sums = least, np.zeros(sums.size)
        elif least < self._least or end > own_end:
            wider_least = min(self._least, least)
            wider = np.zeros(max(own_end, end) - wider_least)
            wider[self._least - wider_least :][: self._sums.size] = self._sums
            self._least, self._sums = wider_least, wider
        self._sums[least - self._least : end - self._least] += sums


def summary_ms(histogram: Histogram) -> dict[str, float]:
    """What run.json says of a latency: count, and p50 to max in milliseconds."""
    names = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9, "max": 100.0}
    values = histogram.percentiles(list(names.values()))
    return {"count": histogram.count, **{name: value / 1000 for name, value in zip(names, values, strict=True)}}
