"""A vectorised hash index: tuples of int64 keys → dense row numbers, a whole batch of keys per call.

Open addressing with linear probing. All keys of a call take their first step together, then those that met a
stranger take a second one, and so on: with a load of at most one half there are few steps, and each is a few NumPy
calls. (Sorting 10,000 keys takes about as long as finding them all here three times.)
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

# Odd constants: one multiplication spreads neighbouring keys over the upper bits (Fibonacci hashing).
_FACTORS = tuple(np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93))


class HashIndex:
    """Rows are numbered 0, 1, 2 … as their keys are first inserted. Nothing is ever removed: its owner rebuilds it."""

    def __init__(self, arity: int, capacity: int) -> None:
        """`capacity` is the number of rows that fit; the caller never inserts more."""
        bits = max(4, (2 * capacity - 1).bit_length())
        self.size = 0
        self.keys = [np.zeros(capacity, np.int64) for _ in range(arity)]
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        self._places = np.full(1 << bits, -1, np.int64)

    def find(self, keys: Sequence[Ints]) -> Ints:
        """The row of every key, −1 for unknown keys."""
        at = self._first_place(keys)
        return self._probe(at, keys)

    def insert(self, keys: Sequence[Ints]) -> Ints:
        """The row of every key. Unknown keys get new rows, equal ones the same."""
        at = self._first_place(keys)
        rows = self._probe(at, keys)
        new = np.flatnonzero(rows < 0)
        while new.size:
            # Everybody writes its claim into the free place that it found; the last writer gets it, and the others
            # go on probing from there: the winner may hold their own key.
            places = at[new]
            self._places[places] = new
            won = self._places[places] == new
            winners = new[won]
            self._places[at[winners]] = rows[winners] = self._number(winners, keys)
            losers = new[~won]
            if not losers.size:
                break
            moved = at[losers]
            rows[losers] = self._probe(moved, [key[losers] for key in keys])
            at[losers] = moved
            new = losers[rows[losers] < 0]
        return rows

    @property
    def nbytes(self) -> int:
        return self._places.nbytes + sum(key.nbytes for key in self.keys)

    def _number(self, winners: Ints, keys: Sequence[Ints]) -> Ints:
        end = self.size + winners.size
        for column, key in zip(self.keys, keys, strict=True):
            column[self.size : end] = key[winners]
        numbers = np.arange(self.size, end)
        self.size = end
        return numbers

    def _first_place(self, keys: Sequence[Ints]) -> Ints:
        mixed = keys[0].view(np.uint64) * _FACTORS[0]
        for key, factor in zip(keys[1:], _FACTORS[1:], strict=False):
            mixed += key.view(np.uint64) * factor
        mixed >>= self._shift
        return mixed.view(np.int64)

    def _probe(self, at: Ints, keys: Sequence[Ints]) -> Ints:
        """Walk from the places `at` to each key's row, or to a free place (row −1); `at` ends up there."""
        rows = self._places[at]
        astray = np.flatnonzero(self._differ(rows, keys))
        while astray.size:
            step = (at[astray] + 1) & self._mask
            at[astray] = step
            found = self._places[step]
            rows[astray] = found
            astray = astray[self._differ(found, [key[astray] for key in keys])]
        return rows

    def _differ(self, rows: Ints, keys: Sequence[Ints]) -> npt.NDArray[np.bool_]:
        """Where a row is another key's. (Row −1 reads some key too, and never differs.)"""
        differ: npt.NDArray[np.bool_] = self.keys[0][rows] != keys[0]
        for column, key in zip(self.keys[1:], keys[1:], strict=True):
            differ |= column[rows] != key
        differ &= rows >= 0
        return differ


def group(keys: Sequence[Ints]) -> tuple[Ints, Ints]:
    """(group of every row, the last row of every group): the grouping of one batch, without sorting it."""
    rows = np.arange(keys[0].size)
    codes, space = _codes(keys)
    places = np.empty(space, np.int64)
    places[codes] = rows
    last = np.flatnonzero(places[codes] == rows)
    places[codes[last]] = rows[: last.size]
    return places[codes], last


def _codes(keys: Sequence[Ints]) -> tuple[Ints, int]:
    """One small number per distinct key. Keys of a batch often lie close together, and then their offsets will do."""
    count = keys[0].size
    codes, space = np.zeros(count, np.int64), 1
    for key in keys if count else ():
        low = int(key.min())
        span = int(key.max()) - low + 1
        space *= span
        if space > 16 * count + 1024:
            index = HashIndex(len(keys), count)
            return index.insert(keys), index.size
        codes = codes * span + (key - low)
    return codes, space


def ordinals(groups: Ints) -> Ints:
    """How many earlier rows of the batch are of the same group: 0, 1, 2 … within each."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if groups.size else order
    lengths = np.diff(np.append(starts, groups.size))
    result = np.empty_like(groups)
    result[order] = np.arange(groups.size) - np.repeat(starts, lengths)
    return result
