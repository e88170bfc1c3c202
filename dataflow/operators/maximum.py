"""The members of each window that rank highest, all ties included, and the local filter that spares most of the way.

Ranks of a member only rise (counts grow, a bid's price stays), so a member below the window's best can be forgotten:
it comes back with a revision if it ever catches up. State is the present winners and nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dataflow.columns import Latency, batch_of, ints, schema_of
from dataflow.graph import Logic, Operator, Output
from dataflow.index import Ints, group
from dataflow.operators.base import KeyedOperator, first_open
from dataflow.operators.stateless import Step
from dataflow.state import DELETE, UPSERT
from dataflow.table import Table

_LOWEST = -(2**63)


@dataclass(frozen=True, kw_only=True)
class WindowMaximum(Logic):
    """Keyed by (window, member): an upsert for every winner, a delete for every former one. `values` travel along."""

    output: str
    member: str
    rank: str
    values: tuple[str, ...] = ()
    window_us: int
    slide_us: int
    grace_us: int = 0

    @property
    def schema(self) -> pa.Schema:
        return schema_of(ints=("window", self.member, self.rank, *self.values), revisions=True)

    def build(self) -> Operator:
        return _WindowMaximum(self)


class _WindowMaximum(KeyedOperator):
    def __init__(self, logic: WindowMaximum) -> None:
        self._logic = logic
        self._schema = logic.schema
        self._names = (logic.rank, *logic.values)
        self._winners = Table(keys=["window", logic.member], ints=self._names, expiry="window")
        self._best: dict[int, int] = {}
        super().__init__({"winners": self._winners})

    def process(self, stream: str, batch: pa.RecordBatch) -> Iterable[Output]:
        late = ints(batch, "window") < self._winners.horizon
        if late.any():
            self.drop_late(int(ints(batch, "events")[late].sum()))
            batch = batch.filter(pa.array(~late))
        if not batch.num_rows:
            return
        # Revisions of one member in one batch are one revision, and answer the events of all of them.
        by_member, last = group([ints(batch, "window") // self._logic.slide_us, ints(batch, self._logic.member)])
        window, rank = ints(batch, "window")[last], ints(batch, self._logic.rank)[last]
        by_window, one = group([window // self._logic.slide_us])
        windows = window[one].tolist()
        before = np.array([self._best.get(start, _LOWEST) for start in windows], np.int64)
        best = before.copy()
        np.maximum.at(best, by_window, rank)
        wins = np.flatnonzero(rank == best[by_window])
        if not wins.size:
            return
        self._best.update(zip(windows, best.tolist(), strict=True))
        rows = last[wins]
        won = {name: ints(batch, name)[rows] for name in ("window", self._logic.member, *self._names)}
        self._winners.put([won["window"], won[self._logic.member]], {name: won[name] for name in self._names})
        causes = Latency.of(batch).fold(by_member, last.size).take(wins)
        raised = (best > before) & (before > _LOWEST)
        yield self._revisions(won, causes, [windows[at] for at in np.flatnonzero(raised)])

    def _revisions(self, won: dict[str, Ints], causes: Latency, raised: list[int]) -> Output:
        """Upserts of the winners, and deletes of those whom they dethroned in the windows whose best was raised."""
        ops, columns, latencies = [np.full(won["window"].size, UPSERT, np.int8)], [won], [causes]
        table = self._winners
        rows = table.all() if raised else np.empty(0, np.int64)
        for window in raised:
            mine = rows[table.column("window")[rows] == window]
            lost = mine[table.column(self._logic.rank)[mine] < self._best[window]]
            lost = lost[np.argsort(table.column(self._logic.member)[lost])]
            columns.append({name: table.column(name)[lost] for name in won})
            by = won["window"] == window
            # A delete is due to the same events as the upserts that caused it, and those count them.
            cause = np.array([causes.oldest_us[by].min(), causes.newest_us[by].max(), 0])
            latencies.append(Latency(*(np.repeat(value, lost.size) for value in cause)))
            ops.append(np.full(lost.size, DELETE, np.int8))
            table.delete(lost)
        joined = {name: np.concatenate([part[name] for part in columns]) for name in won}
        latency = Latency(*(np.concatenate(parts) for parts in zip(*latencies, strict=True)))
        batch = batch_of(self._schema, {"op": np.concatenate(ops), **joined, **latency.columns()})
        return Output(self._logic.output, batch)

    def advance(self, watermark_us: int) -> Iterable[Output]:
        logic = self._logic
        horizon = first_open(watermark_us, window_us=logic.window_us, slide_us=logic.slide_us, grace_us=logic.grace_us)
        if horizon > self._winners.horizon:
            self._winners.expire(horizon)
            self._best = {window: best for window, best in self._best.items() if window >= horizon}
        return ()

    def rebuild(self) -> None:
        rows = self._winners.all()
        windows, ranks = (self._winners.column(name)[rows].tolist() for name in ("window", self._logic.rank))
        self._best = dict(zip(windows, ranks, strict=True))


@dataclass(frozen=True, kw_only=True)
class LocalMaximum(Logic):
    """Lets rows pass that reach the highest rank which this task has seen in their window: no other row can be among
    the winners, wherever the windows are put together. The first step prepares the rows of the stream."""

    output: str
    schema: pa.Schema
    prepare: Step
    rank: str
    window_us: int
    grace_us: int = 0

    def build(self) -> Operator:
        return _LocalMaximum(self)


class _LocalMaximum(KeyedOperator):
    def __init__(self, logic: LocalMaximum) -> None:
        self._logic = logic
        self._best = Table(keys=["window"], ints=["rank"], expiry="window")
        super().__init__({"best": self._best})

    def process(self, stream: str, batch: pa.RecordBatch) -> Iterable[Output]:
        rows = self._logic.prepare(batch)
        window, rank = ints(rows, "window"), ints(rows, self._logic.rank)
        late = window < self._best.horizon
        if late.any():
            self.drop_late(int(np.count_nonzero(late)))
        for start in _distinct(window):
            if start < self._best.horizon:
                continue
            inside = window == start
            key = [np.array([start])]
            known = self._best.find(key)
            best = int(rank.max(where=inside, initial=_LOWEST))
            if known[0] >= 0:
                best = max(best, int(self._best.column("rank")[known[0]]))
            passes = np.flatnonzero(inside & (rank == best))
            if passes.size:
                self._best.put(key, {"rank": np.array([best])})
                yield Output(self._logic.output, rows.take(pa.array(passes)))

    def advance(self, watermark_us: int) -> Iterable[Output]:
        width, grace = self._logic.window_us, self._logic.grace_us
        self._best.expire(first_open(watermark_us, window_us=width, slide_us=width, grace_us=grace))
        return ()


def _distinct(values: Ints) -> list[int]:
    """Sorted and without repetition; a batch seldom spans more than one window."""
    low, high = int(values.min(initial=2**62)), int(values.max(initial=-(2**62)))
    return [low] if low == high else np.unique(values).tolist() if low < high else []
