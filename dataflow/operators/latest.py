"""Total and count per group over the latest few members of a table, where members end one day.

State per group: its unfinished members, which may still change their time, and the latest few finished ones. An older
finished member can never come back among the latest, so it is forgotten.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.columns import Latency, batch_of, ints, schema_of
from dataflow.graph import Logic, Operator, Output
from dataflow.index import Ints, group, ordinals
from dataflow.operators.base import KeyedOperator
from dataflow.operators.best import FINAL
from dataflow.state import UPSERT
from dataflow.table import Table

_EARLIEST = -(2**63)


@dataclass(frozen=True, kw_only=True)
class LatestAggregate(Logic):
    """Over the last `rows` members of each group by (time, member). Input: revisions by member, the last one final.

    Every revision of a member that is more than its end gives a revision of its group.
    """

    output: str
    member: str
    group: str
    value: str
    time: str
    rows: int

    @property
    def schema(self) -> pa.Schema:
        return schema_of(ints=(self.group, "total", "count"), revisions=True)

    def build(self) -> Operator:
        return _LatestAggregate(self)


class _LatestAggregate(KeyedOperator):
    def __init__(self, logic: LatestAggregate) -> None:
        self._logic = logic
        self._schema = logic.schema
        self._open = Table(keys=["member"], ints=["group", "value", "time"])
        self._finished = Table(keys=["group", "place"], ints=["member", "value", "time"])
        super().__init__({"open": self._open, "finished": self._finished})

    def process(self, stream: str, batch: pa.RecordBatch) -> Iterable[Output]:
        logic = self._logic
        by_member, last = group([ints(batch, logic.member)])
        names = (logic.member, logic.group, logic.value, logic.time)
        member, owner, value, time = (ints(batch, name)[last] for name in names)
        final = ints(batch, FINAL)[last] != 0
        causes = Latency.of(batch).fold(by_member, last.size)
        rows = self._open.put([member], {"group": owner, "value": value, "time": time})
        revised = np.flatnonzero(causes.events > 0)
        if revised.size:
            yield self._revise(owner[revised], causes.take(revised))
        if final.any():
            self._open.delete(rows[final])
            self._finish(owner[final], np.stack([time[final], member[final], value[final]], axis=1))

    def _revise(self, owner: Ints, causes: Latency) -> Output:
        """The new value of every group in which a member was revised."""
        by_group, last = group([owner])
        groups = owner[last]
        members = self._open.all()
        position = _position(self._open.column("group")[members], groups)
        mine = members[position >= 0]
        unfinished = np.stack([self._open.column(name)[mine] for name in ("time", "member", "value")], axis=1)
        places = np.concatenate([self._places(groups), self._padded(position[position >= 0], unfinished, last.size)], 1)
        latest = self._latest(places)
        value = np.where(latest, places[:, :, 2], 0)
        columns = {self._logic.group: groups, "total": value.sum(axis=1), "count": latest.sum(axis=1)}
        latency = causes.fold(by_group, last.size)
        op = np.full(last.size, UPSERT, np.int8)
        return Output(self._logic.output, batch_of(self._schema, {"op": op, **columns, **latency.columns()}))

    def _finish(self, owner: Ints, ended: Ints) -> None:
        """Let ended members take free places of their group, or those of earlier ones."""
        by_group, last = group([owner])
        groups, width = owner[last], self._logic.rows
        new = self._padded(by_group, ended, last.size)
        latest = self._latest(np.concatenate([self._places(groups), new], axis=1))
        enters = latest[:, width:]
        row, column = np.nonzero(enters)
        # Places that are empty or lost come first in `free`; there are at least as many as members that enter.
        free = np.argsort(latest[:, :width], axis=1, kind="stable")
        place = free[row, np.cumsum(enters, axis=1)[row, column] - 1]
        values = {name: new[row, column, at] for at, name in enumerate(("time", "member", "value"))}
        self._finished.put([groups[row], place], values)

    def _places(self, groups: Ints) -> Ints:
        """(group, place, [time, member, value]) of the finished members; empty places have the earliest time."""
        width = self._logic.rows
        place = np.tile(np.arange(width), groups.size)
        rows = self._finished.find([np.repeat(groups, width), place])
        columns = [self._finished.column(name)[rows] for name in ("time", "member", "value")]
        columns[0] = np.where(rows >= 0, columns[0], _EARLIEST)
        return np.stack(columns, axis=1).reshape(groups.size, width, 3)

    def _padded(self, position: Ints, rows: Ints, count: int) -> Ints:
        """The latest rows of each position, as many as places, in the shape of `_places`."""
        padded = np.zeros((count, self._logic.rows, 3), np.int64)
        padded[:, :, 0] = _EARLIEST
        order = np.lexsort((-rows[:, 1], -rows[:, 0], position))
        ordinal = ordinals(position[order])
        kept = ordinal < self._logic.rows
        padded[position[order][kept], ordinal[kept]] = rows[order][kept]
        return padded

    def _latest(self, places: Ints) -> npt.NDArray[np.bool_]:
        """Which of the candidates of each group are among its latest few."""
        order = np.lexsort((places[:, :, 1], places[:, :, 0]))[:, -self._logic.rows :]
        latest = np.zeros(places.shape[:2], np.bool_)
        np.put_along_axis(latest, order, True, axis=1)
        return latest & (places[:, :, 0] > _EARLIEST)


def _position(values: Ints, wanted: Ints) -> Ints:
    """Where each value is in `wanted` (distinct), −1 if nowhere."""
    if not values.size:
        return values
    order = np.argsort(wanted)
    at = np.minimum(np.searchsorted(wanted[order], values), wanted.size - 1)
    found: Ints = order[at]
    return np.where(wanted[found] == values, found, -1)
