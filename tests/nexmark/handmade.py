"""Inputs small enough to work out their answers on paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from nexmark.events import AUCTION, BID, PERSON, pack
from nexmark.workload import END_OF_TIME, Int64s, Workload


@dataclass(frozen=True, kw_only=True)
class Handmade(Workload):
    """Rows given in full, due one microsecond after the other."""

    persons: tuple[dict[str, Any], ...] = ()
    auctions: tuple[dict[str, Any], ...] = ()
    bids: tuple[dict[str, Any], ...] = ()
    base_time_us: int = 0

    @property
    def total(self) -> int:
        return len(self.persons) + len(self.auctions) + len(self.bids)

    @property
    def timestamps_are_intended(self) -> bool:
        return False

    def events(self, start: int, stop: int) -> pa.RecordBatch:
        kinds = ((self.persons, PERSON), (self.auctions, AUCTION), (self.bids, BID))
        return pack(
            *(
                pa.RecordBatch.from_pylist([row for row in rows if start <= row["number"] < stop], schema=schema)
                for rows, schema in kinds
            )
        )

    def offset_us(self, positions: Int64s) -> Int64s:
        return positions

    def count_before(self, offset_us: int) -> int:
        return min(max(offset_us, 0), self.total)

    def watermark_after(self, stop: int) -> int:
        rows = (*self.persons, *self.auctions, *self.bids)
        return min((row["ts"] for row in rows if row["number"] >= stop), default=END_OF_TIME)


def handmade(
    persons: Sequence[dict[str, Any]] = (), auctions: Sequence[dict[str, Any]] = (), bids: Sequence[dict[str, Any]] = ()
) -> Handmade:
    """Rows with only the fields that matter; the others are filled in, and numbers given in order of appearance."""
    blank_person = dict.fromkeys(PERSON.names, "") | {"ts": 0}
    blank_auction = dict.fromkeys(AUCTION.names, 0) | {"item_name": "", "description": "", "extra": ""}
    blank_bid = dict.fromkeys(BID.names, 0) | {"channel": "", "url": "", "extra": ""}
    numbers = iter(np.arange(len(persons) + len(auctions) + len(bids)).tolist())
    return Handmade(
        persons=tuple(blank_person | row | {"number": next(numbers)} for row in persons),
        auctions=tuple(blank_auction | row | {"number": next(numbers)} for row in auctions),
        bids=tuple(blank_bid | row | {"number": next(numbers)} for row in bids),
    )
