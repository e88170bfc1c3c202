"""The columnar keyed store: int64 keys, int64 and string values, change capture, expiry.

Operators address rows by number: `find` or `put` a batch of keys, then work on `column(name)[rows]`. Row numbers hold
until the next write to the table. Deleted rows keep their number until the table is rebuilt, so a key that comes back
soon finds its place again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.index import HashIndex, Ints
from dataflow.state import DELETE, EXPIRE, UPSERT, StateError, Store

Column = npt.NDArray[Any]  # int64, or str objects

NEVER = 2**63 - 1
_SMALLEST = 64
_STRING_BYTES = 64


class Table(Store):
    """Last value per key.

    `expiry` names an integer column; `expire(horizon)` removes the rows in which it is smaller than the horizon. The
    horizon is part of the state, so that whoever recovers knows which rows come too late.
    """

    def __init__(
        self, *, keys: Sequence[str], ints: Sequence[str] = (), strings: Sequence[str] = (), expiry: str | None = None
    ) -> None:
        self.key_names = tuple(keys)
        self.ints = tuple(ints)
        self.strings = tuple(strings)
        self.horizon = -NEVER
        self._expiry = expiry
        self._names = (*self.key_names, *self.ints, *self.strings)
        self.schema = pa.schema(
            [("op", pa.int8())] + [(name, pa.string() if name in self.strings else pa.int64()) for name in self._names]
        )
        self._dirty: list[Ints] | None = None
        self._earliest: int = NEVER
        self._lowered = False  # whether a row's expiry has become smaller since changes were last taken
        self._reset(_SMALLEST)

    def find(self, keys: Sequence[Ints]) -> Ints:
        """The row of every key, −1 where there is none."""
        rows = self._index.find(keys)
        rows[~self._live[rows]] = -1
        return rows

    def put(self, keys: Sequence[Ints], values: Mapping[str, Column]) -> Ints:
        """Insert or overwrite; of equal keys the last one stays. Values not given keep what they were, first 0."""
        rows = self._rows_for(keys)
        if self._dirty is not None and self._expiry is not None and self._expiry in values:
            lower = self._columns[self._expiry][rows] > values[self._expiry]
            self._lowered = self._lowered or bool(lower.any())
        for name, value in values.items():
            self._columns[name][rows] = value
        self._note(rows)
        return rows

    def add(self, keys: Sequence[Ints], deltas: Mapping[str, Ints]) -> Ints:
        """Add to integer values, which are 0 at first; equal keys add up."""
        rows = self._rows_for(keys)
        for name, delta in deltas.items():
            np.add.at(self._columns[name], rows, delta)
        self._note(rows)
        return rows

    def delete(self, rows: Ints) -> None:
        """Remove rows: each a living one, and named once."""
        self._remove(rows)
        if self._dirty is not None:
            self._dirty.append(rows)

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """An integer column by row number. To be read: writes go through `put`, `add` and `delete`."""
        column: npt.NDArray[np.int64] = self._columns[name]
        return column

    def values(self, name: str) -> Column:
        """A column of either kind by row number."""
        column: Column = self._columns[name]
        return column

    def all(self) -> Ints:
        """The numbers of all rows."""
        return np.flatnonzero(self._live[: self._index.size])

    def due(self, horizon: int) -> Ints:
        """The rows that `expire(horizon)` would remove. Costs nothing while the oldest row is younger than that;
        otherwise it is one scan of the expiry column."""
        if horizon <= self._earliest:
            return _NONE
        size = self._index.size
        expiry = self._expiry_column()[:size]
        live = self._live[:size]
        due = np.flatnonzero((expiry < horizon) & live)
        if not due.size:
            self._earliest = int(expiry[live].min(initial=NEVER))
        return due

    def expire(self, horizon: int) -> None:
        """Remove what is due. One change row says so, however many rows leave."""
        if horizon <= self.horizon:
            return
        self._remove(self.due(horizon))
        self.horizon = horizon
        self._horizon_changed = True

    def take_changes(self) -> pa.RecordBatch | None:
        if self._dirty is None or not (self._dirty or self._horizon_changed):
            return None
        rows = self._dirty_rows()
        self._dirty = []
        horizon = self._horizon_changed
        self._horizon_changed = False
        if horizon and rows.size and not self._lowered:
            # The horizon takes these away in the replay too: rows that came and expired since are never written. But a
            # row whose expiry was lowered is still there with the higher one, and needs its delete.
            rows = rows[self._live[rows] | (self._expiry_column()[rows] >= self.horizon)]
        self._lowered = False
        return self._batch(rows, horizon)

    def apply(self, changes: pa.RecordBatch) -> None:
        if self._dirty:
            raise StateError(
                "changes are replayed onto a state with pending changes of its own; take or clear them first"
            )
        capturing, self._dirty = self._dirty, None
        changed = self._horizon_changed
        operations = changes.column(0).to_numpy()
        if operations.size and operations[0] == EXPIRE:
            self.expire(changes.column(self._expiry)[0].as_py())
            changes, operations = changes.slice(1), operations[1:]
        gone = operations == DELETE
        if gone.any():
            rows = self.find([key[gone] for key in self._keys_of(changes)])
            self.delete(rows[rows >= 0])
            changes = changes.filter(pa.array(~gone))
        if changes.num_rows:
            self.put(self._keys_of(changes), {name: values_of(changes, name) for name in (*self.ints, *self.strings)})
        self._dirty = capturing
        self._horizon_changed = changed

    def snapshot(self) -> pa.RecordBatch:
        return self._batch(self.all(), self.horizon > -NEVER)

    def clear(self) -> None:
        self.horizon = -NEVER
        self._dirty = None if self._dirty is None else []
        self._lowered = False
        self._reset(_SMALLEST)

    def capture(self, on: bool) -> None:
        self._dirty = [] if on else None
        self._lowered = False
        self._horizon_changed = False

    @property
    def rows(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        columns: int = sum(self._columns[name].nbytes for name in (*self.ints, *self.strings))
        return self._index.nbytes + columns + self._count * _STRING_BYTES * len(self.strings)

    def _reset(self, capacity: int) -> None:
        self._index = HashIndex(len(self.key_names), capacity)
        self._columns: dict[str, Any] = dict(zip(self.key_names, self._index.keys, strict=True))
        self._columns |= {name: np.zeros(capacity, np.int64) for name in self.ints}
        self._columns |= {name: np.full(capacity, "", object) for name in self.strings}
        # The last element stands for row −1: an unknown key is not live.
        self._live = np.zeros(capacity + 1, np.bool_)
        self._capacity = capacity
        self._count = 0
        self._earliest = NEVER
        self._horizon_changed = False

    def _rows_for(self, keys: Sequence[Ints]) -> Ints:
        wanted = keys[0].size
        if self._index.size + wanted > self._capacity:
            self._rebuild(wanted)
        before = self._index.size
        rows = self._index.insert(keys)
        fresh = rows[~self._live[rows]]
        if fresh.size:
            revived = fresh[fresh < before]
            self._count += self._index.size - before + (np.unique(revived).size if revived.size else 0)
            self._live[fresh] = True
            # The expiry that a revived row had is forgotten here, so the new one may be a lower one.
            self._lowered = self._lowered or (revived.size > 0 and self._expiry in self.ints)
            for name in self.ints:
                self._columns[name][fresh] = 0
        return rows

    def _note(self, rows: Ints) -> None:
        if self._expiry is not None and rows.size:
            self._earliest = min(self._earliest, int(self._columns[self._expiry][rows].min()))
        if self._dirty is not None:
            self._dirty.append(rows)

    def _remove(self, rows: Ints) -> None:
        if not rows.size:
            return
        self._live[rows] = False
        self._count -= rows.size
        for name in self.strings:
            self._columns[name][rows] = ""

    def _rebuild(self, wanted: int) -> None:
        """Leave the dead behind, and make room for at least as many rows again."""
        keep = self._live[: self._index.size].copy()
        dirty = self._dirty_rows()
        keep[dirty] = True  # A deleted row whose delete has not been taken yet is still needed for its key.
        kept = np.flatnonzero(keep)
        old, old_live, earliest = self._columns, self._live, self._earliest
        horizon_changed = self._horizon_changed
        self._reset(_power_of_two(2 * (kept.size + wanted)))
        rows = self._index.insert([old[name][kept] for name in self.key_names])
        for name in (*self.ints, *self.strings):
            self._columns[name][rows] = old[name][kept]
        self._live[rows] = old_live[kept]
        self._count = int(np.count_nonzero(self._live))
        self._earliest = earliest
        self._horizon_changed = horizon_changed
        if dirty.size:
            renumbered = np.empty(keep.size, np.int64)
            renumbered[kept] = rows
            self._dirty = [renumbered[dirty]]

    def _dirty_rows(self) -> Ints:
        if not self._dirty:
            return _NONE
        flags = np.zeros(self._index.size, np.bool_)
        for rows in self._dirty:
            flags[rows] = True
        return np.flatnonzero(flags)

    def _batch(self, rows: Ints, horizon: bool) -> pa.RecordBatch:
        """These rows as changes: upserts of the living, deletes of the dead."""
        op = np.where(self._live[rows], UPSERT, DELETE).astype(np.int8)
        arrays = [pa.array(np.append(np.int8(EXPIRE), op) if horizon else op)]
        for name in self._names:
            column = self._columns[name][rows]
            if horizon:
                blank = self.horizon if name == self._expiry else "" if name in self.strings else 0
                column = np.append(np.array([blank], column.dtype), column)
            arrays.append(pa.array(column, pa.string() if name in self.strings else pa.int64()))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _expiry_column(self) -> npt.NDArray[np.int64]:
        if self._expiry is None:
            raise ValueError(f"the table with the keys {self.key_names} has no expiry column")
        return self.column(self._expiry)

    def _keys_of(self, batch: pa.RecordBatch) -> list[Ints]:
        return [batch.column(name).to_numpy() for name in self.key_names]


_NONE = np.empty(0, np.int64)


def values_of(batch: pa.RecordBatch, name: str) -> Column:
    """A column for NumPy: integers without a copy, strings as objects."""
    column = batch.column(name)
    values: Column = column.to_numpy(zero_copy_only=not pa.types.is_string(column.type))
    return values


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()
