"""The seeded event stream: the first step of the data's way.

An event is a pure function of (parameters, event number), so any block of positions is one vectorised call, and any
number of sources, any block size and any restart give the same stream. The rules are the reference's; the choices of
ours are listed in `nexmark/README.md`.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nexmark import text
from nexmark.disorder import Disorder, largest_prime_up_to
from nexmark.draws import UInt64s, below, high, keys, low, split, words
from nexmark.errors import ParameterError, require_int
from nexmark.events import AUCTION, BID, PERSON, pack
from nexmark.rates import Constant, Rate
from nexmark.workload import END_OF_TIME, UNBOUNDED, Int64s, Workload

FIRST_ID = 1000
FIRST_CATEGORY = 10
CATEGORIES = 5
EPOCH = 50
AUCTIONS_PER_EPOCH = 3
BIDS_FROM = 1 + AUCTIONS_PER_EPOCH
HOT_BATCH = 100

_PERSON_DRAWS, _AUCTION_DRAWS, _BID_DRAWS = range(6), range(10, 16), range(20, 23)


class _Part(NamedTuple):
    """The rows of one kind but for the padding: the draws for it, and how many bytes are missing on average."""

    schema: pa.Schema
    columns: list[Any]
    bits: UInt64s
    missing: Int64s


@dataclass(frozen=True, kw_only=True)
class Generator(Workload):
    """Parameters of a stream, with the reference's defaults.

    A hot ratio r sends all but one of r choices to the hot key. `late_fraction` f makes one event in round(1/f) late,
    by at most `late_max_us`. Sizes are averages; `extra` pads up to them.
    """

    seed: int = 0
    total: int = UNBOUNDED
    base_time_us: int = 1_436_918_400_000_000
    rate: Rate = field(default_factory=Constant)
    hot_auction_ratio: int = 2
    hot_seller_ratio: int = 4
    hot_bidder_ratio: int = 4
    in_flight_auctions: int = 100
    active_people: int = 1000
    auction_lead: int = 10
    person_lead: int = 10
    person_bytes: int = 200
    auction_bytes: int = 500
    bid_bytes: int = 100
    out_of_order_group: int = 1
    late_fraction: float = 0.0
    late_max_us: int = 0

    def __post_init__(self) -> None:
        require_int("generator", "seed", self.seed, 0)
        for name in ("total", "base_time_us", "auction_lead", "person_lead", "late_max_us"):
            require_int("generator", name, getattr(self, name), 0)
        for name in (
            "hot_auction_ratio",
            "hot_seller_ratio",
            "hot_bidder_ratio",
            "in_flight_auctions",
            "active_people",
        ):
            require_int("generator", name, getattr(self, name), 1, 10**6)
        for name in ("person_bytes", "auction_bytes", "bid_bytes"):
            require_int("generator", name, getattr(self, name), 0, 50_000)
        require_int("generator", "out_of_order_group", self.out_of_order_group, 1, 10**6)
        if self.out_of_order_group % 953 == 0:
            raise ParameterError("generator: out_of_order_group must not be a multiple of 953, the permutation's step")
        if not isinstance(self.rate, Rate):
            raise ParameterError(f"generator: rate must be a schedule of nexmark.rates, got {self.rate!r}")
        fraction: object = self.late_fraction
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 0.5:
            raise ParameterError(f"generator: late_fraction must be from 0 to 0.5, got {fraction!r}")
        if fraction and self._strata < 1:
            events = 2 * self._stratum + self.out_of_order_group
            least_us = -(-events * 1_000_000 // self.rate.least)
            raise ParameterError(
                f"generator: late_max_us={self.late_max_us} is too short for late_fraction={fraction} at "
                f"{self.rate.least} events/s; set late_max_us to at least {least_us}"
            )

    @property
    def timestamps_are_intended(self) -> bool:
        return self._disorder.in_order

    def events(self, start: int, stop: int) -> pa.RecordBatch:
        if not 0 <= start <= stop <= self.total:
            raise ValueError(f"events: need 0 <= start <= stop <= total={self.total}, got start={start} stop={stop}")
        numbers = np.arange(start, stop, dtype=np.int64)
        if not self._disorder.in_order:
            numbers = self._disorder.numbers(numbers)
        inside = numbers % EPOCH
        is_bid = inside >= BIDS_FROM
        others = numbers[~is_bid]
        is_person = others % EPOCH == 0
        parts = (
            self._persons(others[is_person]),
            self._auctions(others[~is_person]),
            self._bids(numbers[is_bid]),
        )
        # One call pads all kinds: at the sizes of a flush, most of the time goes into the number of calls.
        extra = self._extra(np.concatenate([part.bits for part in parts]), [part.missing for part in parts])
        ends = np.cumsum([len(part.missing) for part in parts]).tolist()
        paddings = [
            extra.slice(end - len(part.missing), len(part.missing)) for part, end in zip(parts, ends, strict=True)
        ]
        return pack(
            *(
                pa.RecordBatch.from_arrays([*p.columns, e], schema=p.schema)
                for p, e in zip(parts, paddings, strict=True)
            )
        )

    def offset_us(self, positions: Int64s) -> Int64s:
        return self.rate.offset_us(positions if self._disorder.in_order else self._disorder.clock(positions))

    def count_before(self, offset_us: int) -> int:
        return self._disorder.count_clock_below(self.rate.count_before(offset_us))

    def watermark_after(self, stop: int) -> int:
        if stop >= self.total:
            return END_OF_TIME
        least = stop if self._disorder.in_order else self._disorder.least_from(stop)
        return self.base_time_us + int(self.rate.offset_us(np.array([least], dtype=np.int64))[0])

    def times_us(self, numbers: Int64s) -> Int64s:
        """Event times of event *numbers* (not positions)."""
        return self.rate.offset_us(numbers) + self.base_time_us

    @property
    def _stratum(self) -> int:
        return round(1 / self.late_fraction) if self.late_fraction else 0

    @property
    def _strata(self) -> int:
        """Strata per round. A delay is below two rounds, and stays inside late_max_us even at the lowest rate."""
        if not self._stratum:
            return 1
        events = self.late_max_us * self.rate.least // 1_000_000 - self.out_of_order_group
        return events // (2 * self._stratum)

    @cached_property
    def _disorder(self) -> Disorder:
        return Disorder(
            seed=self.seed,
            total=self.total,
            group=self.out_of_order_group,
            stratum=self._stratum,
            strata=largest_prime_up_to(self._strata),
        )

    @cached_property
    def _keys(self) -> tuple[UInt64s, UInt64s, UInt64s]:
        persons, auctions, bids = (keys(self.seed, draws) for draws in (_PERSON_DRAWS, _AUCTION_DRAWS, _BID_DRAWS))
        return persons, auctions, bids

    def _persons(self, numbers: Int64s) -> _Part:
        tables = text.tables(self.seed)
        bits = words(self._keys[0], numbers)
        name, city, state, email = tables.persons(bits[:3])
        card = text.digits(below(np.stack([high(bits[3]), low(bits[3]), high(bits[4]), low(bits[4])]), 10_000))
        strings = text.lengths(name) + text.lengths(email) + text.lengths(city) + (text.CARD_BYTES + text.STATE_BYTES)
        ids = numbers // EPOCH + FIRST_ID
        columns = [numbers, self.times_us(numbers), ids, name, email, card, city, state]
        return _Part(PERSON, columns, bits[5], self.person_bytes - 8 - strings)

    def _auctions(self, numbers: Int64s) -> _Part:
        tables = text.tables(self.seed)
        bits = words(self._keys[1], numbers)
        epoch = numbers // EPOCH
        ids = epoch * AUCTIONS_PER_EPOCH + (numbers - epoch * EPOCH - 1) + FIRST_ID
        seller = self._person(epoch, high(bits[0]), self.hot_seller_ratio, 0)
        category = below(low(bits[0]), CATEGORIES).view(np.int64) + FIRST_CATEGORY
        initial_bid = text.prices(bits[1] >> np.uint64(40))
        reserve = initial_bid + text.prices(bits[1] & np.uint64(0xFFFFFF))
        times = self.times_us(numbers)
        events_ahead = self.in_flight_auctions * EPOCH // AUCTIONS_PER_EPOCH
        horizon = self.times_us(numbers + events_ahead) - times
        expires = times + 1 + ((bits[2] >> np.uint64(1)).view(np.int64) % np.maximum(2 * horizon, 1))
        item_name, description = tables.text.texts(bits[3:5], (20, 100))
        strings = text.lengths(item_name) + text.lengths(description)
        columns = [numbers, times, ids, item_name, description, initial_bid, reserve, expires, seller, category]
        return _Part(AUCTION, columns, bits[5], self.auction_bytes - 48 - strings)

    def _bids(self, numbers: Int64s) -> _Part:
        tables = text.tables(self.seed)
        bits = words(self._keys[2], numbers)
        epoch = numbers // EPOCH
        newest = epoch * AUCTIONS_PER_EPOCH + (AUCTIONS_PER_EPOCH - 1)
        is_hot, rest = split(high(bits[0]), self.hot_auction_ratio)
        oldest = np.maximum(newest - self.in_flight_auctions, 0)
        choices = (newest - oldest + (1 + self.auction_lead)).view(np.uint64)
        cold = oldest + below(rest, choices).view(np.int64)
        auction = np.where(is_hot, newest // HOT_BATCH * HOT_BATCH, cold) + FIRST_ID
        bidder = self._person(epoch, low(bits[0]), self.hot_bidder_ratio, 1)
        price = text.prices(bits[1] >> np.uint64(40))
        is_hot, rest = split(low(bits[1]), 2)
        hot = len(text.HOT_CHANNELS)
        channel = np.where(is_hot, below(rest, hot), below(rest, text.COLD_CHANNELS) + np.uint64(hot))
        size = np.full(len(numbers), self.bid_bytes - 32, dtype=np.int64)
        channels, urls = text.rows(tables.channels, channel), text.rows(tables.urls, channel)
        columns = [numbers, self.times_us(numbers), auction, bidder, price, channels, urls]
        return _Part(BID, columns, bits[2], size)

    def _person(self, newest: Int64s, draws: UInt64s, ratio: int, hot_offset: int) -> Int64s:
        """A seller or bidder: the hot person, or any of the active ones and of the few that are to come."""
        is_hot, rest = split(draws, ratio)
        active = np.minimum(newest + 1, self.active_people)
        cold = newest + 1 - active + below(rest, (active + self.person_lead).view(np.uint64)).view(np.int64)
        return np.where(is_hot, newest // HOT_BATCH * HOT_BATCH + hot_offset, cold) + FIRST_ID

    def _extra(self, bits: UInt64s, missing: list[Int64s]) -> pa.Array:
        """Padding of ±20% around the missing bytes; none where nothing is missing."""
        least = np.maximum(np.concatenate(missing), 0)
        swing = (2 * least + 5) // 10
        size = least - swing + below(high(bits), (2 * swing).view(np.uint64)).view(np.int64)
        return text.tables(self.seed).letters.slices(low(bits), size)
