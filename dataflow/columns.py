"""From Arrow to NumPy and back, and the three latency columns that every stream after the first stage carries.

`oldest_us` and `newest_us` are the intended times of the events that a row answers since its key's last revision,
`events` is how many those are. `docs/dataflow.md` states the rule.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.index import Ints
from dataflow.table import Column

LATENCY = ("oldest_us", "newest_us", "events")


def schema_of(
    *, ints: Sequence[str] = (), strings: Sequence[str] = (), revisions: bool = False, latency: bool = True
) -> pa.Schema:
    """The schema of a stream: `op` if its rows are revisions, integers, strings, latency columns."""
    fields = [("op", pa.int8())] if revisions else []
    fields += [(name, pa.int64()) for name in ints]
    fields += [(name, pa.string()) for name in strings]
    fields += [(name, pa.int64()) for name in LATENCY] if latency else []
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])


def batch_of(schema: pa.Schema, columns: Mapping[str, Column | pa.Array]) -> pa.RecordBatch:
    """A batch from columns by name; more than the schema has may be given."""
    arrays = []
    for field in schema:
        column = columns[field.name]
        arrays.append(column if isinstance(column, pa.Array) else pa.array(column, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def ints(batch: pa.RecordBatch, name: str) -> Ints:
    """An integer column, without a copy."""
    column: Ints = batch.column(name).to_numpy()
    return column


def operations(batch: pa.RecordBatch) -> npt.NDArray[np.int8]:
    column: npt.NDArray[np.int8] = batch.column("op").to_numpy()
    return column


class Latency(NamedTuple):
    """The latency columns of some rows."""

    oldest_us: Ints
    newest_us: Ints
    events: Ints

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "Latency":
        return cls(*(ints(batch, name) for name in LATENCY))

    @classmethod
    def at(cls, ts: Ints) -> "Latency":
        """Rows that answer one event each."""
        return cls(ts, ts, np.ones(ts.size, np.int64))

    def take(self, rows: Ints | npt.NDArray[np.bool_]) -> "Latency":
        return Latency(*(column[rows] for column in self))

    def after(self, time: Ints) -> "Latency":
        """The same causes, for rows that could not be known before these times."""
        return Latency(np.maximum(self.oldest_us, time), np.maximum(self.newest_us, time), self.events)

    def fold(self, groups: Ints, count: int) -> "Latency":
        """What each of `count` groups of rows answers together. Rows that answer no event carry zeros and add none."""
        answering = (self.events != 0) | (self.newest_us != 0)
        if not answering.all():
            kept = self.take(answering).fold(groups[answering], count)
            idle = np.bincount(groups[answering], minlength=count) == 0
            return Latency(*(np.where(idle, 0, column) for column in kept))
        oldest = np.full(count, 2**63 - 1)
        newest = np.full(count, -(2**63))
        events = np.zeros(count, np.int64)
        np.minimum.at(oldest, groups, self.oldest_us)
        np.maximum.at(newest, groups, self.newest_us)
        np.add.at(events, groups, self.events)
        return Latency(oldest, newest, events)

    def columns(self) -> dict[str, Column]:
        return {"oldest_us": self.oldest_us, "newest_us": self.newest_us, "events": self.events}
