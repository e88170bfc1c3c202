"""Strings without a loop per event: slices of seeded pools of letters, and rows of small tables.

A slice is built as an Arrow string view (16 bytes that point into the pool) and copied once, by Arrow's cast to plain
strings. The tables of a seed are made once per process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nexmark.draws import UInt64s, below, high, keys, low, words
from nexmark.workload import Int64s

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
COLD_CHANNELS = 10_000

_POOL_STARTS = 1 << 18
_LONGEST = 1 << 16
_SHORTEST = 3
_INLINE = 12
_EMAIL_PARTS = 1 << 14

CARD_BYTES = 19
STATE_BYTES = 2

_PRICE_BITS = 12
_PRICE_STEPS = 1 << _PRICE_BITS

# Which bytes of the three inlined words belong to a string of 0…12 bytes.
_INLINE_MASKS = np.array(
    [[(1 << 8 * min(max(length - 4 * word, 0), 4)) - 1 for word in range(3)] for length in range(_INLINE + 1)],
    dtype=np.uint32,
)


class Pool:
    """Random text of which every string is a slice."""

    def __init__(self, seed: int, draw: int, special: str = "") -> None:
        """Letters a–z; with `special`, that character in one of 13 places, as in the reference."""
        size = _POOL_STARTS + _LONGEST
        bits = words(keys(seed, (draw,)), np.arange(size, dtype=np.int64))[0]
        letters = (below(high(bits), 26) + np.uint64(ord("a"))).astype(np.uint8)
        if special:
            letters[below(low(bits), 13) == 0] = ord(special)
        self._buffer = pa.py_buffer(letters)
        padded = np.concatenate([letters, np.zeros(16, np.uint8)])
        quads = np.lib.stride_tricks.sliding_window_view(padded, 4)[:size]
        self._quads: npt.NDArray[np.uint32] = np.ascontiguousarray(quads).view("<u4").ravel()

    def slices(self, draws: UInt64s, lengths: Int64s) -> Any:
        """One string per 32-bit draw, which chooses where it starts."""
        starts = below(draws, _POOL_STARTS).view(np.int64)
        views = np.zeros((len(starts), 4), dtype=np.uint32)
        views[:, 0] = lengths
        views[:, 1] = self._quads[starts]
        views[:, 3] = starts
        if len(lengths) and lengths.min() <= _INLINE:
            short = np.flatnonzero(lengths <= _INLINE)
            inlined = self._quads[starts[short, None] + np.array([0, 4, 8])]
            views[short, 1:] = inlined & _INLINE_MASKS[lengths[short]]
        array = pa.Array.from_buffers(pa.string_view(), len(starts), [None, pa.py_buffer(views), self._buffer])
        return array.cast(pa.string())

    def texts(self, bits: UInt64s, longest: Sequence[int]) -> list[Any]:
        """For every row of bits, strings of 3 … longest − 1 characters, trimmed, as the reference's."""
        choices = np.array(longest, dtype=np.uint64)[:, None] - np.uint64(_SHORTEST)
        lengths = (below(low(bits), choices) + np.uint64(_SHORTEST)).view(np.int64)
        joined = pc.ascii_trim(self.slices(high(bits).ravel(), lengths.ravel()), " ")
        count = bits.shape[1]
        return [joined.slice(row * count, count) for row in range(len(longest))]


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Everything that depends on the seed alone."""

    letters: Pool
    text: Pool
    channels: Any
    urls: Any
    people: Any
    people_starts: UInt64s
    people_sizes: UInt64s

    def persons(self, bits: UInt64s) -> list[Any]:
        """Names, cities, states and emails, from five columns of one table, so that it takes one look-up."""
        draws = np.stack([high(bits[0]), low(bits[0]), high(bits[1]), high(bits[2]), low(bits[2])])
        index = below(draws, self.people_sizes) + self.people_starts
        found = rows(self.people, index.ravel())
        count = bits.shape[1]
        name, city, state, user, host = (found.slice(column * count, count) for column in range(5))
        return [name, city, state, pc.binary_join_element_wise(user, host, "@")]


@lru_cache(maxsize=4)
def tables(seed: int) -> Tables:
    channels = [*HOT_CHANNELS, *(f"channel-{index}" for index in range(COLD_CHANNELS))]
    text = Pool(seed, 91, " ")
    users, hosts = text.texts(words(keys(seed, (97, 98)), np.arange(_EMAIL_PARTS, dtype=np.int64)), (7, 5))
    names = pa.array([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES])
    columns = [names, pa.array(CITIES), pa.array(STATES), users, pc.binary_join_element_wise(hosts, "com", ".")]
    sizes = np.array([[len(column)] for column in columns], dtype=np.uint64)
    return Tables(
        letters=Pool(seed, 90),
        text=text,
        channels=pa.array(channels),
        urls=_urls(seed, len(channels)),
        people=pa.concat_arrays(columns),
        people_starts=np.cumsum(sizes, axis=0) - sizes,
        people_sizes=sizes,
    )


def _urls(seed: int, count: int) -> Any:
    """One url per channel, with a channel id in nine of ten cold ones."""
    pool = Pool(seed, 92, "_")
    bits = words(keys(seed, (93, 94, 95, 96)), np.arange(count, dtype=np.int64))
    parts = pool.texts(bits[:3], (5, 5, 5))
    tagged = below(high(bits[3]), 10) > 0
    tagged[: len(HOT_CHANNELS)] = False
    ids = pc.binary_join_element_wise("&channel_id=", pa.array(low(bits[3]) >> np.uint64(1)).cast(pa.string()), "")
    suffixes = pc.if_else(pa.array(tagged), ids, "")
    base = pc.binary_join_element_wise("https://www.nexmark.com", *parts, "item.htm?query=1", "/")
    return pc.binary_join_element_wise(base, suffixes, "")


def rows(table: Any, index: UInt64s) -> Any:
    """Rows of a small table of strings."""
    return table.take(pa.array(index.view(np.int64)))


def lengths(strings: Any) -> Int64s:
    """Bytes of each string; read from the offsets."""
    offsets = np.frombuffer(strings.buffers()[1], dtype=np.int32)[strings.offset :][: len(strings) + 1]
    return (offsets[1:] - offsets[:-1]).astype(np.int64)


def digits(numbers: UInt64s) -> Any:
    """Credit cards: four groups of four digits from an array of shape (4, n) of numbers below 10,000."""
    count = numbers.shape[1]
    cards = np.full((count, 4, 5), ord(" "), dtype=np.uint8)
    left = numbers.T.astype(np.uint16)
    for place in (3, 2, 1, 0):
        cards[:, :, place] = left % 10 + ord("0")
        left = left // 10
    offsets = np.arange(0, count * CARD_BYTES + 1, CARD_BYTES, dtype=np.int32)
    data = np.ascontiguousarray(cards.reshape(count, 20)[:, :CARD_BYTES])
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))


@lru_cache(maxsize=1)
def _price_tables() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Factors of 100 · 10^(6U) for the upper and the lower half of U's bits.

    Made with decimals and multiplied in IEEE arithmetic, so that prices are the same on every machine: a library's
    power function may differ in the last bit from one processor to the next.
    """
    with localcontext() as context:
        context.prec = 50
        coarse_step = Decimal(10) ** (Decimal(6) / _PRICE_STEPS)
        fine_step = Decimal(10) ** (Decimal(6) / _PRICE_STEPS**2)
        coarse, fine = [Decimal(100)], [fine_step.sqrt()]
        for _ in range(_PRICE_STEPS - 1):
            coarse.append(coarse[-1] * coarse_step)
            fine.append(fine[-1] * fine_step)
        return np.array([float(value) for value in coarse]), np.array([float(value) for value in fine])


def prices(bits: UInt64s) -> Int64s:
    """Cents, log-uniform from 100 to 10⁸, from 24-bit draws."""
    coarse, fine = _price_tables()
    upper = (bits >> np.uint64(_PRICE_BITS)).view(np.int64)
    lower = (bits & np.uint64(_PRICE_STEPS - 1)).view(np.int64)
    return np.rint(coarse[upper] * fine[lower]).astype(np.int64)
