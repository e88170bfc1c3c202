"""Rows that wait for a partner: many per key, found by key, expired by time. What the joins keep their streams in."""

from collections.abc import Mapping, Sequence

import numpy as np

from dataflow.index import Ints, group, ordinals
from dataflow.state import Store
from dataflow.table import NEVER, Column, Table


class Waiting:
    """Two tables: how many rows a key has, and the rows themselves, numbered per key. So a key's rows are found
    without an index of their own, and both tables capture their changes as any table does.

    `expiry` names the key or integer value by which rows leave; without it they stay.
    """

    def __init__(
        self, *, keys: Sequence[str], ints: Sequence[str] = (), strings: Sequence[str] = (), expiry: str | None = None
    ) -> None:
        self._keys = tuple(keys)
        self._expiry = expiry
        self._expires_by_value = expiry is not None and expiry not in keys
        kept = [expiry] if expiry is not None and self._expires_by_value else []
        self._counts = Table(keys=keys, ints=["count", *kept], expiry=expiry)
        self.rows = Table(keys=[*keys, "ordinal"], ints=ints, strings=strings, expiry=expiry)

    def stores(self, name: str) -> dict[str, Store]:
        return {name: self.rows, f"{name}_counts": self._counts}

    def append(self, keys: Sequence[Ints], values: Mapping[str, Column]) -> None:
        groups, last = group(keys)
        distinct = [key[last] for key in keys]
        found = self._counts.find(distinct)
        count = np.where(found >= 0, self._counts.column("count")[found], 0)
        self.rows.put([*keys, count[groups] + ordinals(groups)], values)
        totals: dict[str, Column] = {"count": count + np.bincount(groups, minlength=last.size)}
        if self._expires_by_value and self._expiry is not None:
            # The count has to stay as long as the last of its rows does.
            until = np.where(found >= 0, self._counts.column(self._expiry)[found], -NEVER)
            np.maximum.at(until, groups, values[self._expiry])
            totals[self._expiry] = until
        self._counts.put(distinct, totals)

    def fetch(self, keys: Sequence[Ints]) -> tuple[Ints, Ints]:
        """(position in `keys`, row) of every waiting row of these keys."""
        found = self._counts.find(keys)
        count = np.where(found >= 0, self._counts.column("count")[found], 0)
        total = int(count.sum())
        position = np.repeat(np.arange(count.size), count)
        if not total:
            return position, position
        ordinal = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
        rows = self.rows.find([*(key[position] for key in keys), ordinal])
        there = rows >= 0
        return (position, rows) if there.all() else (position[there], rows[there])

    def remove(self, keys: Sequence[Ints], rows: Ints) -> None:
        """Forget these keys, all of whose rows are the given ones. Keys must be distinct."""
        self.rows.delete(rows)
        found = self._counts.find(keys)
        self._counts.delete(found[found >= 0])

    def expire(self, horizon: int) -> None:
        """Remove what is older. Where nothing is, nothing is written either."""
        for table in (self.rows, self._counts):
            if table.due(horizon).size:
                table.expire(horizon)
