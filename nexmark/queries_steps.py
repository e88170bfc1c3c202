"""The first steps of the queries: from a batch of events to the few columns that travel on, and no row more."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataflow.columns import Latency, batch_of, ints, schema_of
from dataflow.index import group
from dataflow.operators.join import Columns
from dataflow.state import UPSERT
from nexmark.events import auctions, bids, persons

CONVERTED = schema_of(ints=("number", "auction", "bidder", "price", "ts"), strings=("extra",))
SELECTED = schema_of(ints=("number", "auction", "price"))
LOCAL_PERSONS = schema_of(ints=("person",), strings=("name", "city", "state"))
SELLERS = schema_of(ints=("auction", "seller"))
LOCAL_ITEMS = schema_of(ints=("auction",), strings=("name", "city", "state"), revisions=True)
PRICED_BIDS = schema_of(ints=("auction", "price", "ts"))
BID_COUNTS = schema_of(ints=("pane", "auction"))
WINDOWED_BIDS = schema_of(ints=("window", "number", "price", "auction", "bidder", "ts"))
NEW_PERSONS = schema_of(ints=("window", "person"), strings=("name",))
NEW_SELLERS = schema_of(ints=("window", "seller"))


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Q1: prices in another currency, as integers."""

    rate_numerator: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = bids(batch)
        return _project(CONVERTED, rows, {"price": pa.array(ints(rows, "price") * self.rate_numerator)})


@dataclass(frozen=True, kw_only=True)
class Select:
    """Q2: bids on some auctions."""

    modulus: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = bids(batch).select(["number", "ts", "auction", "price"])
        rows = rows.take(pa.array(np.flatnonzero(ints(rows, "auction") % self.modulus == 0)))
        return _project(SELECTED, rows, {})


@dataclass(frozen=True, kw_only=True)
class LocalPersons:
    """Q3: persons of some states."""

    states: tuple[str, ...]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = persons(batch).select(["ts", "id", "name", "city", "state"])
        rows = rows.filter(pc.is_in(rows.column("state"), pa.array(self.states)))
        return _project(LOCAL_PERSONS, rows, {"person": rows.column("id")})


@dataclass(frozen=True, kw_only=True)
class SellersOf:
    """Q3: auctions of one category, with their sellers."""

    category: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = auctions(batch).select(["ts", "id", "seller", "category"])
        rows = rows.filter(pa.array(ints(rows, "category") == self.category))
        return _project(SELLERS, rows, {"auction": rows.column("id")})


def local_items(pairs: Columns) -> pa.RecordBatch:
    """Q3: the result. An auction has one seller and never changes, so there are upserts only."""
    return batch_of(LOCAL_ITEMS, {"op": np.full(pairs["auction"].size, UPSERT, np.int8), **pairs})


def priced_bids(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Q4, Q6: what decides an auction."""
    return _project(PRICED_BIDS, bids(batch), {})


@dataclass(frozen=True, kw_only=True)
class OpenAuctions:
    """Q4, Q6: auctions with their end, and with what their prices are averaged by."""

    kept: str

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = auctions(batch)
        return _project(schema_of(ints=("auction", "expires", self.kept)), rows, {"auction": rows.column("id")})


@dataclass(frozen=True, kw_only=True)
class CountBids:
    """Q5: bids per auction and pane, counted within the batch. Exact, for counts add up; `events` is the count."""

    slide_us: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = bids(batch)
        pane, auction = ints(rows, "ts") // self.slide_us, ints(rows, "auction")
        groups, last = group([pane, auction])
        latency = Latency.at(ints(rows, "ts")).fold(groups, last.size)
        keys = {"pane": pane[last] * self.slide_us, "auction": auction[last]}
        return batch_of(BID_COUNTS, {**keys, **latency.columns()})


@dataclass(frozen=True, kw_only=True)
class WindowedBids:
    """Q7: bids with their window."""

    window_us: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = bids(batch)
        return _project(WINDOWED_BIDS, rows, {"window": _window(rows, self.window_us)})


@dataclass(frozen=True, kw_only=True)
class NewPersons:
    """Q8: persons with the window in which they joined."""

    window_us: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = persons(batch)
        return _project(NEW_PERSONS, rows, {"window": _window(rows, self.window_us), "person": rows.column("id")})


@dataclass(frozen=True, kw_only=True)
class NewSellers:
    """Q8: sellers with the window in which they opened an auction."""

    window_us: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = auctions(batch)
        return _project(NEW_SELLERS, rows, {"window": _window(rows, self.window_us)})


def _window(rows: pa.RecordBatch, window_us: int) -> pa.Array:
    return pa.array(ints(rows, "ts") // window_us * window_us)


def _project(schema: pa.Schema, rows: pa.RecordBatch, computed: dict[str, pa.Array]) -> pa.RecordBatch:
    """Rows that answer one event each, in another schema; columns that are only passed on are not copied."""
    ts = rows.column("ts")
    known = {**computed, "oldest_us": ts, "newest_us": ts, "events": pa.array(np.ones(rows.num_rows, np.int64))}
    arrays = [known[name] if name in known else rows.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
