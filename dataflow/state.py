"""Keyed state of one task, with change capture.

Protocols see a task's state as opaque buffers: they take changes, append them, and hand them back after a crash.
`dataflow.table` holds the columnar store of the operators; here are the contract, the whole and the smallest store.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

UPSERT, DELETE, EXPIRE = 0, 1, 2


class StateError(ValueError):
    """A buffer that does not belong to this state."""


class Store(ABC):
    """One named, typed part of a task's state."""

    schema: pa.Schema
    """Of changes and of snapshots. The first column, `op`, is int8: 0 upsert, 1 delete by key, and for stores with an
    expiry column 2, which removes every row whose expiry is smaller than this row's and comes before all others."""

    @abstractmethod
    def take_changes(self) -> pa.RecordBatch | None:
        """Net upserts and deletes since the last call; None if there are none. Only meaningful while capturing."""

    @abstractmethod
    def apply(self, changes: pa.RecordBatch) -> None:
        """Replay changes in the order in which they were taken. Is not captured again."""

    @abstractmethod
    def snapshot(self) -> pa.RecordBatch:
        """All of the store as upserts; an independent copy that later writes do not touch."""

    @abstractmethod
    def clear(self) -> None:
        """Back to the empty state, pending changes forgotten."""

    @abstractmethod
    def capture(self, on: bool) -> None:
        """Whether changes are recorded at all. Off costs nothing; what happened while off is never taken."""

    @property
    @abstractmethod
    def rows(self) -> int: ...

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """An estimate of the memory held, for reports."""


class TaskState:
    """All stores of one task, whole or not at all.

    A buffer is a table of contents (names and lengths) and, for each store in it, one Arrow IPC record batch message.
    """

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self.stores: dict[str, Store] = dict(stores)

    def add(self, name: str, store: Store) -> None:
        """Let the runtime keep something of its own together with the operator's state."""
        if name in self.stores:
            raise StateError(f"state has a store named {name!r} already; choose another name")
        self.stores[name] = store

    def take_changes(self) -> pa.Buffer | None:
        """The changes of all stores since the last call, None if there are none."""
        taken = {name: store.take_changes() for name, store in self.stores.items()}
        changed = {name: batch for name, batch in taken.items() if batch is not None}
        return _pack(changed) if changed else None

    def apply(self, changes: pa.Buffer) -> int:
        """Replay one buffer of changes; returns the number of rows in it."""
        applied = 0
        for name, message in _unpack(changes):
            store = self._store(name)
            batch = pa.ipc.read_record_batch(message, store.schema)
            store.apply(batch)
            applied += batch.num_rows
        return applied

    def snapshot(self) -> pa.Buffer:
        """A copy of everything. Changes taken before are in it, pending ones are too and stay pending."""
        return _pack({name: store.snapshot() for name, store in self.stores.items()})

    def restore(self, snapshot: pa.Buffer | None) -> int:
        """Replace everything by the snapshot, or by nothing; returns the number of rows restored."""
        for store in self.stores.values():
            store.clear()
        return 0 if snapshot is None else self.apply(snapshot)

    def capture(self, on: bool) -> None:
        for store in self.stores.values():
            store.capture(on)

    @property
    def rows(self) -> int:
        return sum(store.rows for store in self.stores.values())

    @property
    def nbytes(self) -> int:
        return sum(store.nbytes for store in self.stores.values())

    def _store(self, name: str) -> Store:
        try:
            return self.stores[name]
        except KeyError:
            raise StateError(f"state has the stores {sorted(self.stores)} and the buffer holds {name!r}") from None


class CounterStore(Store):
    """Counts and hash sums by name: what went over an edge, kept inside the state so that it recovers with it."""

    schema = pa.schema([("op", pa.int8()), ("name", pa.string()), ("count", pa.int64()), ("hash", pa.uint64())])

    def __init__(self) -> None:
        self._values: dict[str, tuple[int, int]] = {}
        self._dirty: set[str] | None = None

    def add(self, name: str, count: int, hash_sum: int = 0) -> None:
        """Both only grow; the hash sum wraps around at 64 bits."""
        old_count, old_hash = self._values.get(name, (0, 0))
        self._values[name] = (old_count + count, (old_hash + hash_sum) & 0xFFFF_FFFF_FFFF_FFFF)
        if self._dirty is not None:
            self._dirty.add(name)

    def set(self, name: str, count: int, hash_sum: int) -> None:
        """Replace a value: for counts that somebody else made."""
        self._values[name] = (count, hash_sum)
        if self._dirty is not None:
            self._dirty.add(name)

    def __getitem__(self, name: str) -> tuple[int, int]:
        """(count, hash sum); (0, 0) for a name never added to."""
        return self._values.get(name, (0, 0))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def items(self) -> Mapping[str, tuple[int, int]]:
        return dict(self._values)

    def take_changes(self) -> pa.RecordBatch | None:
        if not self._dirty:
            return None
        changes = self._batch(sorted(self._dirty))
        self._dirty.clear()
        return changes

    def apply(self, changes: pa.RecordBatch) -> None:
        for row in changes.to_pylist():
            self._values[row["name"]] = (row["count"], row["hash"])

    def snapshot(self) -> pa.RecordBatch:
        return self._batch(sorted(self._values))

    def clear(self) -> None:
        self._values.clear()
        if self._dirty is not None:
            self._dirty.clear()

    def capture(self, on: bool) -> None:
        self._dirty = set() if on else None

    @property
    def rows(self) -> int:
        return len(self._values)

    @property
    def nbytes(self) -> int:
        return 64 * len(self._values)

    def _batch(self, names: list[str]) -> pa.RecordBatch:
        values = [self._values[name] for name in names]
        counts = np.array([count for count, _ in values], np.int64)
        hashes = np.array([hash_sum for _, hash_sum in values], np.uint64)
        op = np.full(len(names), UPSERT, np.int8)
        arrays = [pa.array(op), pa.array(names, pa.string()), pa.array(counts), pa.array(hashes)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


_COUNT = struct.Struct("<4sI")
_ENTRY = struct.Struct("<IQ")
_MAGIC = b"TMS1"
_ALIGNMENT = 64


def _pack(batches: Mapping[str, pa.RecordBatch]) -> pa.Buffer:
    messages = [(name.encode(), batch.serialize()) for name, batch in batches.items()]
    sink = pa.BufferOutputStream()
    sink.write(_COUNT.pack(_MAGIC, len(messages)))
    for name, message in messages:
        sink.write(_ENTRY.pack(len(name), message.size))
        sink.write(name)
    for _, message in messages:
        sink.write(bytes(-sink.tell() % _ALIGNMENT))
        sink.write(message)
    return sink.getvalue()


def _unpack(buffer: pa.Buffer) -> Iterator[tuple[str, pa.Buffer]]:
    view = memoryview(buffer)
    if len(view) < _COUNT.size or bytes(view[:4]) != _MAGIC:
        raise StateError(f"a state buffer begins with {_MAGIC!r}, got {bytes(view[:4])!r} ({len(view)} bytes)")
    _, count = _COUNT.unpack_from(view, 0)
    at = _COUNT.size
    contents: list[tuple[str, int]] = []
    for _ in range(count):
        name_size, message_size = _ENTRY.unpack_from(view, at)
        at += _ENTRY.size
        contents.append((bytes(view[at : at + name_size]).decode(), message_size))
        at += name_size
    for name, size in contents:
        at += -at % _ALIGNMENT
        yield name, buffer.slice(at, size)
        at += size
