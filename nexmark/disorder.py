"""Which event number stands at which position, when the stream is to be out of order.

Two options, and their combination. *Groups*: inside every group of g numbers the order is a fixed permutation, as in
the reference. *Lateness*: one number in every *stratum* of K is late (which one is a draw). M strata form a *round*;
the M late events of a round are emitted during the next round, one at the end of each stratum, in a drawn order:

    round 0                    round 1                         …  after the last whole round
    regular regular regular    regular regular late-of-round-0    late-of-last-round, then the rest in order

Every stratum takes one late event out and puts another one in, so a position's event is closed-form arithmetic:
seekable, without a search, and each number occurs exactly once. A late event is due less than two rounds after its
time. Regular events are due exactly at their own time (groups shift all by g − 1 events: none is due before its time).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nexmark.draws import UInt64s, keys, words
from nexmark.workload import Int64s

_GROUP_STEP = 953
"""The reference's multiplier of the permutation inside groups; a prime, so every group size but its multiples works."""

_CHOICE, _ROTATE, _SHIFT = 100, 101, 102


@dataclass(frozen=True, kw_only=True)
class Disorder:
    """`stratum` 0 means no lateness; otherwise K = stratum and M = strata, which must be 1 or a prime."""

    seed: int
    total: int
    group: int = 1
    stratum: int = 0
    strata: int = 1

    @property
    def in_order(self) -> bool:
        return self.group == 1 and self._rounds == 0

    def numbers(self, positions: Int64s) -> Int64s:
        """Event number at each position."""
        return self._permuted(self._indexes(positions))

    def clock(self, positions: Int64s) -> Int64s:
        """Event number whose time is the moment at which the position is due. Never falls with the position."""
        clock = positions
        if self._rounds:
            stratum, slot, late = self._place(positions)
            inside = np.where(late, (stratum + 1) * self.stratum - 1, self._regular(stratum, slot))
            after = self._end + np.maximum(positions - self._tail - self.strata, 0)
            clock = np.where(positions < self._tail, inside, after)
        return clock + (self.group - 1)

    def count_clock_below(self, number: int) -> int:
        """How many positions have a smaller clock: the inverse of `clock`."""
        number = max(0, number - (self.group - 1))
        if not self._rounds:
            return min(number, self.total)
        if number >= self._end:
            return min(self._tail + (self.strata + number - self._end if number > self._end else 0), self.total)
        stratum, inside = divmod(number, self.stratum)
        before = stratum * (self.stratum - 1) if stratum < self.strata else stratum * self.stratum - self.strata
        choice = int(self._choice(np.array([stratum], dtype=np.int64))[0])
        return before + inside - (choice < inside)

    def least_from(self, stop: int) -> int:
        """Least event number among the positions ≥ stop; stop < total must hold."""
        late = np.empty(0, dtype=np.int64)
        regular = stop
        if self._rounds and stop >= self._tail:
            regular = self._end + max(0, stop - self._tail - self.strata)
            late = self._late_of(self._rounds - 1, np.arange(min(stop - self._tail, self.strata), self.strata))
        elif self._rounds:
            stratum, slot, is_late = (int(part[0]) for part in self._place(np.array([stop], dtype=np.int64)))
            here = np.array([stratum], dtype=np.int64)
            regular = (stratum + 1) * self.stratum if is_late else int(self._regular(here, np.array([slot]))[0])
            this_round, inside = divmod(stratum, self.strata)
            late = self._late_of(this_round, np.arange(self.strata))
            if this_round:
                waiting = self._sender(np.full(self.strata - inside, this_round), np.arange(inside, self.strata))
                late = np.concatenate([late, self._late_of(this_round - 1, waiting)])
        # All indexes ≥ regular are still to come; the least of their numbers is in the group of the first.
        group_end = min((regular // self.group + 1) * self.group, self.total)
        coming = np.concatenate([late, np.arange(regular, max(group_end, regular), dtype=np.int64)])
        return int(self._permuted(coming).min())

    @cached_property
    def _rounds(self) -> int:
        return self.total // (self.stratum * self.strata) if self.stratum else 0

    @cached_property
    def _end(self) -> int:
        """First index behind the last whole round."""
        return self._rounds * self.stratum * self.strata

    @cached_property
    def _tail(self) -> int:
        """First position behind the last whole round."""
        return self._end - self.strata

    @cached_property
    def _keys(self) -> UInt64s:
        return keys(self.seed, (_CHOICE, _ROTATE, _SHIFT))

    def _permuted(self, indexes: Int64s) -> Int64s:
        if self.group == 1:
            return indexes
        inside = indexes % self.group
        moved = indexes - inside + inside * _GROUP_STEP % self.group
        whole = self.total // self.group * self.group
        return np.where(indexes < whole, moved, indexes)

    def _indexes(self, positions: Int64s) -> Int64s:
        """Undo the lateness: where each position's event stood before."""
        if not self._rounds:
            return positions
        stratum, slot, late = self._place(positions)
        this_round, inside = stratum // self.strata, stratum % self.strata
        sender = self._sender(this_round, inside)
        indexes = np.where(late, self._late_of(this_round - 1, sender), self._regular(stratum, slot))
        if len(positions) and positions[-1] >= self._tail:
            behind = positions - self._tail
            last = self._late_of(self._rounds - 1, np.clip(behind, 0, self.strata - 1))
            behind_end = np.where(behind < self.strata, last, self._end + behind - self.strata)
            indexes = np.where(behind < 0, indexes, behind_end)
        return indexes

    def _place(self, positions: Int64s) -> tuple[Int64s, Int64s, Any]:
        """(stratum, slot in it, whether the slot is the late one) for positions before the tail."""
        first = positions < self.strata * (self.stratum - 1)
        size = np.where(first, self.stratum - 1, self.stratum)
        shifted = np.where(first, positions, positions + self.strata)
        return shifted // size, shifted % size, ~first & (shifted % size == self.stratum - 1)

    def _choice(self, stratum: Int64s) -> Int64s:
        """Which of the K numbers of a stratum is late."""
        drawn: Int64s = (words(self._keys[:1], stratum)[0] >> np.uint64(1)).view(np.int64)
        return drawn % self.stratum

    def _regular(self, stratum: Int64s, slot: Int64s) -> Int64s:
        return stratum * self.stratum + slot + (slot >= self._choice(stratum))

    def _late_of(self, this_round: Int64s | int, inside: Int64s) -> Int64s:
        stratum = this_round * self.strata + inside
        return stratum * self.stratum + self._choice(stratum)

    def _sender(self, this_round: Int64s, inside: Int64s) -> Int64s:
        """From which stratum of the round before the late event comes: an affine permutation drawn per round."""
        drawn: Int64s = (words(self._keys[1:], this_round) >> np.uint64(1)).view(np.int64)
        rotate, shift = drawn[0] % max(self.strata - 1, 1) + 1, drawn[1] % self.strata
        sender: Int64s = (rotate * inside + shift) % self.strata
        return sender


def largest_prime_up_to(limit: int) -> int:
    """1 for limits below 2: a round of a single stratum needs no permutation."""
    for candidate in range(limit, 1, -1):
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            return candidate
    return 1
