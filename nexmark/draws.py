"""Counter-based randomness: a draw is a hash of (seed, event number, which draw), never of what was drawn before.

The hash is the finaliser of SplitMix64 over a Weyl sequence whose start is itself a hash of (seed, draw).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nexmark.workload import Int64s

UInt64s = npt.NDArray[np.uint64]

_MASK = 2**64 - 1
_WEYL = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def mix_inplace(words: UInt64s) -> UInt64s:
    """Spread every bit of each word over all its bits."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(_FIRST)
    words ^= words >> np.uint64(27)
    words *= np.uint64(_SECOND)
    words ^= words >> np.uint64(31)
    return words


def mix_one(word: int) -> int:
    """The same for a single Python integer."""
    word = ((word ^ (word >> 30)) * _FIRST) & _MASK
    word = ((word ^ (word >> 27)) * _SECOND) & _MASK
    return word ^ (word >> 31)


def key(seed: int, draw: int) -> int:
    """Where the sequence of one draw starts."""
    return mix_one((mix_one((seed * _WEYL + 1) & _MASK) + draw * _WEYL) & _MASK)


def keys(seed: int, draws: Sequence[int]) -> UInt64s:
    """Keys of several draws, as a column for `words`."""
    return np.array([[key(seed, draw)] for draw in draws], dtype=np.uint64)


def words(keys: UInt64s, numbers: Int64s) -> UInt64s:
    """64 random bits for every draw (rows) and every event number (columns)."""
    return mix_inplace(numbers.view(np.uint64) * np.uint64(_WEYL) + keys)


def high(words: UInt64s) -> UInt64s:
    """A 32-bit draw from the upper half."""
    return words >> _HALF


def low(words: UInt64s) -> UInt64s:
    """Another 32-bit draw, from the lower half."""
    return words & _LOW


def below(draws: UInt64s, limit: UInt64s | int) -> UInt64s:
    """Uniform over [0, limit) from 32-bit draws; the bias is at most limit / 2³²."""
    bound = np.uint64(limit) if isinstance(limit, int) else limit
    return (draws * bound) >> _HALF


def split(draws: UInt64s, ratio: int) -> tuple[npt.NDArray[np.bool_], UInt64s]:
    """(true with probability 1 − 1/ratio, what is left of the draw as another 32-bit draw)."""
    scaled = draws * np.uint64(ratio)
    return scaled > _LOW, scaled & _LOW
