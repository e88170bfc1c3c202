"""What a faithful stream shows: the table by which a workload is judged, next to the reference's values."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nexmark.events import auctions, bids, persons
from nexmark.generator import AUCTIONS_PER_EPOCH, EPOCH, FIRST_ID, HOT_BATCH
from nexmark.text import lengths
from nexmark.workload import Int64s, Workload

WINDOW = 10_000
"""Distinct keys are counted per this many events."""

_STEADY = 60_000
"""From this number on the active people are complete: 1000 of them need 50,000 events."""

_BLOCK = 50_000


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A statistic of the reference at 10,000 events/s with its defaults; `tolerance` holds from 5 million events on."""

    name: str
    unit: str
    value: float
    tolerance: float


# Half of all bids go to the one auction that is hot, and whether they are in time is decided by its length alone: 5
# million events have only 3000 such lengths, so the shares in time scatter by 0.4 points. Their exact expectation with
# times in microseconds is 71.5 / 4.5 / 24.0.
EXPECTED = (
    Expectation(name="bids on the current hot auction", unit="%", value=50.45, tolerance=0.15),
    Expectation(name="bids on an auction not yet created", unit="%", value=4.50, tolerance=0.06),
    Expectation(name="bids by the hot bidder", unit="%", value=75.02, tolerance=0.10),
    Expectation(name="auctions by the hot seller", unit="%", value=75.02, tolerance=0.40),
    Expectation(name="price mean", unit="cents", value=7_238_234, tolerance=40_000),
    Expectation(name="price median", unit="cents", value=100_000, tolerance=1_500),
    Expectation(name="price below 10⁴", unit="%", value=100 / 3, tolerance=0.12),
    Expectation(name="price from 10⁶ on", unit="%", value=100 / 3, tolerance=0.12),
    Expectation(name="distinct sellers per 10k events", unit="", value=143, tolerance=10),
    Expectation(name="distinct bidders per 10k events", unit="", value=969, tolerance=12),
    Expectation(name="distinct auctions bid on per 10k events", unit="", value=682, tolerance=3),
    Expectation(name="person size", unit="B", value=199.9, tolerance=1.0),
    Expectation(name="auction size", unit="B", value=500.1, tolerance=1.0),
    Expectation(name="bid size", unit="B", value=99.5, tolerance=0.2),
    Expectation(name="auction length mean", unit="ms", value=166.6, tolerance=1.0),
    Expectation(name="bids inside [open, expires]", unit="%", value=72.0, tolerance=1.2),
    Expectation(name="bids before open", unit="%", value=4.5, tolerance=0.1),
    Expectation(name="bids after expiry", unit="%", value=23.5, tolerance=1.2),
)


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """The stream's integers, and the sizes by kind."""

    number: Int64s
    ts: Int64s
    auction: Int64s
    bidder: Int64s
    price: Int64s
    auction_number: Int64s
    auction_id: Int64s
    opens: Int64s
    expires: Int64s
    seller: Int64s
    person_size: Int64s
    auction_size: Int64s
    bid_size: Int64s


def measure(workload: Workload, progress: Callable[[int], None] = lambda done: None) -> dict[str, float]:
    """Every statistic of `EXPECTED` by name. Keeps about 70 bytes per event in memory."""
    columns = _collect(workload, progress)
    if not len(columns.number) or not len(columns.auction_id) or not len(columns.person_size):
        raise ValueError("statistics need at least one event of each kind")
    newest = columns.number // EPOCH * AUCTIONS_PER_EPOCH + AUCTIONS_PER_EPOCH - 1
    newest_person = columns.number // EPOCH
    hot_bidder = newest_person // HOT_BATCH * HOT_BATCH + 1 + FIRST_ID
    hot_seller = columns.auction_number // EPOCH // HOT_BATCH * HOT_BATCH + FIRST_ID
    inside, before, after = _shares_in_time(columns)
    values = (
        _share(columns.auction == newest // HOT_BATCH * HOT_BATCH + FIRST_ID),
        _share(columns.auction > newest + FIRST_ID),
        _share(columns.bidder == hot_bidder),
        _share(columns.seller == hot_seller),
        columns.price.mean(),
        np.median(columns.price),
        _share(columns.price < 10_000),
        _share(columns.price >= 1_000_000),
        _distinct(columns.auction_number, columns.seller),
        _distinct(columns.number, columns.bidder),
        _distinct(columns.number, columns.auction),
        columns.person_size.mean(),
        columns.auction_size.mean(),
        columns.bid_size.mean(),
        (columns.expires - columns.opens).mean() / 1000,
        inside,
        before,
        after,
    )
    return {expected.name: float(value) for expected, value in zip(EXPECTED, values, strict=True)}


def _collect(workload: Workload, progress: Callable[[int], None]) -> _Columns:
    parts: dict[str, list[Int64s]] = {name: [] for name in _Columns.__dataclass_fields__}
    for start in range(0, workload.total, _BLOCK):
        stop = min(start + _BLOCK, workload.total)
        batch = workload.events(start, stop)
        bid, auction, person = bids(batch), auctions(batch), persons(batch)
        for name in ("number", "ts", "auction", "bidder", "price"):
            parts[name].append(bid[name].to_numpy())
        for name, column in (
            ("auction_number", "number"),
            ("auction_id", "id"),
            ("opens", "ts"),
            ("expires", "expires"),
            ("seller", "seller"),
        ):
            parts[name].append(auction[column].to_numpy())
        # The reference counts eight bytes for each of its own integers, and neither channel nor url.
        strings = [lengths(person[name]) for name in ("name", "email", "credit_card", "city", "state", "extra")]
        parts["person_size"].append(np.sum(strings, axis=0) + 8)
        strings = [lengths(auction[name]) for name in ("item_name", "description", "extra")]
        parts["auction_size"].append(np.sum(strings, axis=0) + 48)
        parts["bid_size"].append(lengths(bid["extra"]) + 32)
        progress(stop)
    empty = np.empty(0, dtype=np.int64)
    return _Columns(**{name: np.concatenate(chunks) if chunks else empty for name, chunks in parts.items()})


def _share(hits: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float:
    return 100 * float(hits.mean())


def _distinct(numbers: Int64s, keys: Int64s) -> float:
    """Mean number of distinct keys over whole windows in the steady part (over all windows if there is none)."""
    windows = numbers // WINDOW
    whole = windows < max(int(numbers.max() + EPOCH) // WINDOW, 1)
    steady = whole & (numbers >= _STEADY)
    chosen = steady if steady.any() else whole
    pairs = np.unique(np.stack([windows[chosen], keys[chosen]]), axis=1)
    return int(pairs.shape[1]) / len(np.unique(windows[chosen]))


def _shares_in_time(columns: _Columns) -> tuple[float, float, float]:
    """Bids inside, before and after the life of their auction; bids on auctions behind the stream's end left out."""
    order = np.argsort(columns.auction_id)
    ids = columns.auction_id[order]
    place = np.minimum(np.searchsorted(ids, columns.auction), len(ids) - 1)
    known = ids[place] == columns.auction
    auction, ts = order[place[known]], columns.ts[known]
    before, after = _share(ts < columns.opens[auction]), _share(ts > columns.expires[auction])
    return 100 - before - after, before, after
