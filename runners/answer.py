"""Folding revisions into an answer: the last value of every key, or the multiset of all rows."""

import hashlib
from abc import ABC, abstractmethod
from collections import deque

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from dataflow.graph import Answer
from nexmark.fingerprint import fingerprint

COMPACT_ROWS = 500_000
HASH_ROWS = 8_192
MAX_WAITING_ROWS = 262_144
MAX_NUMBERS = 64_000_000


class Fold(ABC):
    """What the sink makes of the rows it may act on, in the order in which it got them."""

    @abstractmethod
    def add(self, batch: pa.RecordBatch) -> None: ...

    def settle(self) -> bool:
        """A millisecond or two of what `add` put off, for when there is nothing to read; whether there was any."""
        return False

    @abstractmethod
    def result(self) -> pa.Table:
        """The answer so far. Keyed: key and value columns. Multiset: one row (count, hash)."""


class KeyedFold(Fold):
    """Last revision per key. Compacts itself now and then, so memory follows the answer, not the stream."""

    def __init__(self, answer: Answer) -> None:
        self._columns = ["op", *answer.key, *answer.value]
        self._key = list(answer.key)
        self._parts: list[pa.RecordBatch] = []
        self._rows = 0
        self._limit = COMPACT_ROWS

    def add(self, batch: pa.RecordBatch) -> None:
        self._parts.append(batch.select(self._columns))
        self._rows += batch.num_rows
        if self._rows > self._limit:
            folded = self._folded()
            self._parts = folded.to_batches()
            self._rows = folded.num_rows
            self._limit = max(COMPACT_ROWS, 2 * self._rows)

    def _folded(self) -> pa.Table:
        """One row per key, deletes included: a delete must still win over an older upsert."""
        if not self._parts:
            return pa.table({name: pa.array([], pa.int64()) for name in self._columns})
        table = pa.Table.from_batches(self._parts)
        folded = pl.DataFrame(pl.from_arrow(table)).unique(subset=self._key, keep="last", maintain_order=True)
        return folded.to_arrow().cast(table.schema)

    def result(self) -> pa.Table:
        folded = self._folded()
        alive = pa.array(folded["op"].to_numpy() == 0)
        return folded.filter(alive).drop_columns(["op"])


class MultisetFold(Fold):
    """Count and sum of row hashes; and the event numbers, so that a difference can be named."""

    def __init__(self, answer: Answer) -> None:
        self._columns = list(answer.value)
        self.count = 0
        self._hash = 0
        self._waiting: deque[pa.RecordBatch] = deque()
        self._unhashed = 0
        self._numbers: list[npt.NDArray[np.int64]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self.count += batch.num_rows
        self._unhashed += batch.num_rows
        if self._unhashed >= MAX_WAITING_ROWS:  # never idle: memory comes before punctuality
            self._hash_waiting(self._unhashed)

    def settle(self) -> bool:
        if self._unhashed < HASH_ROWS:
            return False
        self._hash_waiting(HASH_ROWS)
        return True

    def _hash_waiting(self, rows: int) -> None:
        """At least so many rows, small batches together: the hash's cost is mostly per call."""
        taken: list[pa.RecordBatch] = []
        while self._waiting and rows > 0:
            taken.append(self._waiting.popleft())
            rows -= taken[-1].num_rows
        if not taken:
            return
        (together,) = pa.Table.from_batches(taken).select(self._columns).combine_chunks().to_batches()
        self._unhashed -= together.num_rows
        self._hash = (self._hash + fingerprint(together, self._columns).digest) % 2**64
        if self.count <= MAX_NUMBERS:
            self._numbers.append(together.column("number").to_numpy())

    @property
    def hash(self) -> int:
        self._hash_waiting(self._unhashed)
        return self._hash

    def result(self) -> pa.Table:
        return pa.table({"count": pa.array([self.count]), "hash": pa.array([self.hash], pa.uint64())})

    def numbers(self) -> npt.NDArray[np.int64] | None:
        """The event numbers of all rows, repeated as they came; None if there were too many to keep."""
        self._hash_waiting(self._unhashed)
        if self.count > MAX_NUMBERS:
            return None
        return np.concatenate(self._numbers) if self._numbers else np.empty(0, np.int64)


def fold_for(answer: Answer) -> Fold:
    return KeyedFold(answer) if answer.key else MultisetFold(answer)


def answer_hash(stream: bytes) -> str:
    """Of an answer as the sink hands it over, whatever the order of its rows: equal answers have equal hashes."""
    table = pl.DataFrame(pl.from_arrow(pa.ipc.open_stream(stream).read_all()))
    return hashlib.sha256(table.sort(table.columns).write_csv().encode()).hexdigest()
