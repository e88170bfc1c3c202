"""The three kinds of events, and the one physical stream that carries them all.

A flush makes a batch of **one row**: three lists, its persons, auctions and bids; batches put together have several
rows, and read the same. So a kind is taken out without a copy, nothing is stored for what a row is not, and one batch
is one message of the log. Chosen by measurement (`docs/nexmark.md`) over a dense union and over sparse columns. Rows
of a kind keep the order in which they were emitted; across the kinds the event number tells the order.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

PERSON = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("ts", pa.int64(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("email", pa.string(), nullable=False),
        pa.field("credit_card", pa.string(), nullable=False),
        pa.field("city", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("extra", pa.string(), nullable=False),
    ]
)

AUCTION = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("ts", pa.int64(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("item_name", pa.string(), nullable=False),
        pa.field("description", pa.string(), nullable=False),
        pa.field("initial_bid", pa.int64(), nullable=False),
        pa.field("reserve", pa.int64(), nullable=False),
        pa.field("expires", pa.int64(), nullable=False),
        pa.field("seller", pa.int64(), nullable=False),
        pa.field("category", pa.int64(), nullable=False),
        pa.field("extra", pa.string(), nullable=False),
    ]
)

BID = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("ts", pa.int64(), nullable=False),
        pa.field("auction", pa.int64(), nullable=False),
        pa.field("bidder", pa.int64(), nullable=False),
        pa.field("price", pa.int64(), nullable=False),
        pa.field("channel", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("extra", pa.string(), nullable=False),
    ]
)

_KINDS = (("person", PERSON), ("auction", AUCTION), ("bid", BID))


def _list_of(schema: pa.Schema) -> pa.DataType:
    return pa.list_(pa.field("item", pa.struct(list(schema)), nullable=False))


_FIELDS = [list(schema) for _, schema in _KINDS]
_LISTS = [_list_of(schema) for _, schema in _KINDS]

EVENTS = pa.schema([pa.field(name, kind, nullable=False) for (name, _), kind in zip(_KINDS, _LISTS, strict=True)])


def persons(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The persons of a batch of the stream, without a copy."""
    return _kind(batch, 0)


def auctions(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The auctions of a batch of the stream, without a copy."""
    return _kind(batch, 1)


def bids(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The bids of a batch of the stream, without a copy."""
    return _kind(batch, 2)


def numbers(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Event numbers of all kinds, in no particular order."""
    parts = [_items(batch, index).field(0).to_numpy() for index in range(len(_KINDS))]
    return np.concatenate(parts)


def count(batch: pa.RecordBatch) -> int:
    """How many events the batch carries (`batch.num_rows` counts flushes)."""
    return sum(len(_items(batch, index)) for index in range(len(_KINDS)))


def cut(batch: pa.RecordBatch, parts: int) -> list[pa.RecordBatch]:
    """The same events in several batches of about equal size, without a copy. Any event may go to any of them."""
    if parts == 1:
        return [batch]
    lists = []
    for index, kind in enumerate(_LISTS):
        items = _items(batch, index)
        offsets = pa.array([len(items) * edge // parts for edge in range(parts + 1)], pa.int32())
        lists.append(pa.ListArray.from_arrays(offsets, items, type=kind))
    rows = pa.RecordBatch.from_arrays(lists, schema=EVENTS)
    return [rows.slice(part, 1) for part in range(parts)]


def pack(persons: pa.RecordBatch, auctions: pa.RecordBatch, bids: pa.RecordBatch) -> pa.RecordBatch:
    """One batch of the stream from the rows of each kind. Columns are matched by position and must fit the schemas."""
    lists = []
    for fields, rows, kind in zip(_FIELDS, (persons, auctions, bids), _LISTS, strict=True):
        items = pa.StructArray.from_arrays(rows.columns, fields=fields)
        lists.append(pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), items, type=kind))
    return pa.RecordBatch.from_arrays(lists, schema=EVENTS)


def _items(batch: pa.RecordBatch, index: int) -> Any:
    """The structs of one kind, as `flatten` gives them, which goes through a slower way."""
    lists = batch.column(index)
    if not len(lists):
        return lists.values[:0]
    offsets = lists.offsets.to_numpy()
    return lists.values[int(offsets[0]) : int(offsets[-1])]


def _kind(batch: pa.RecordBatch, index: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(_items(batch, index))
