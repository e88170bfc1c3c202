"""Recorded events as a workload: a directory of persons, auctions and bids that this project need not have made.

Everything is checked and put into emission order once, before anything starts, and kept as memory-mapped Arrow files
in a cache directory. So a source pays for neither parsing nor sorting during a run, and workers on other hosts, which
have the directory but not the cache, make their own.

Rows of a kind are emitted in the order of their files. A row is due at the latest time that it or a row before it in
its files has (it was recorded after them), and the kinds are merged by that time. What is then still out of order is
disorder of the data, and the watermark is computed from it exactly.
"""

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from nexmark import files
from nexmark.errors import ParameterError, ReplayError, require_int
from nexmark.events import pack
from nexmark.rates import Constant
from nexmark.workload import END_OF_TIME, Int64s, Workload

_FORMAT = 1
_ROWS_PER_BATCH = 16_384


@dataclass(frozen=True, kw_only=True)
class Replay(Workload):
    """`speed`: "recorded" keeps the recorded times, "fixed" emits `events_per_s`, "unlimited" as fast as possible.

    Event times are the recorded ones at any speed, so answers do not depend on it. Creating a Replay reads and checks
    all files, and raises `ReplayError` for the first bad row.
    """

    directory: str
    speed: Literal["recorded", "fixed", "unlimited"] = "recorded"
    events_per_s: int = 10_000
    cache: str | None = None
    signature: str = field(init=False, default="")
    total: int = field(init=False, default=0)
    base_time_us: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.speed not in ("recorded", "fixed", "unlimited"):
            raise ParameterError(f"replay: speed must be recorded, fixed or unlimited, got {self.speed!r}")
        require_int("replay", "events_per_s", self.events_per_s, 1, 1_000_000_000)
        path = Path(self.directory).resolve()
        object.__setattr__(self, "directory", str(path))
        object.__setattr__(self, "cache", str(Path(self.cache or tempfile.gettempdir()).resolve()))
        object.__setattr__(self, "signature", _signature(path))
        prepared = _open(self.directory, str(self.cache), self.signature)
        object.__setattr__(self, "total", len(prepared.due_us))
        object.__setattr__(self, "base_time_us", prepared.base_time_us)

    @property
    def timestamps_are_intended(self) -> bool:
        return self.speed == "recorded" and self._prepared.in_order

    def events(self, start: int, stop: int) -> pa.RecordBatch:
        if not 0 <= start <= stop <= self.total:
            raise ValueError(f"events: need 0 <= start <= stop <= total={self.total}, got start={start} stop={stop}")
        parts = []
        for kind, schema in files.KINDS.items():
            first, last = np.searchsorted(self._prepared.positions[kind], [start, stop])
            rows = self._prepared.rows[kind].slice(first, last - first).combine_chunks().to_batches()
            parts.append(rows[0] if rows else pa.RecordBatch.from_pylist([], schema=schema))
        return pack(*parts)

    def offset_us(self, positions: Int64s) -> Int64s:
        if self.speed == "recorded":
            return np.asarray(self._prepared.due_us[positions])
        return self._rate.offset_us(positions) if self.speed == "fixed" else np.zeros_like(positions)

    def count_before(self, offset_us: int) -> int:
        if offset_us <= 0:
            return 0
        if self.speed == "recorded":
            return int(np.searchsorted(self._prepared.due_us, offset_us))
        return min(self._rate.count_before(offset_us), self.total) if self.speed == "fixed" else self.total

    def watermark_after(self, stop: int) -> int:
        return int(self._prepared.watermarks[stop]) if stop < self.total else END_OF_TIME

    @property
    def disorder_us(self) -> int:
        """How much later than its time an event is due at most: the least grace with which nothing is dropped."""
        return self._prepared.disorder_us

    @property
    def _rate(self) -> Constant:
        return Constant(events_per_s=self.events_per_s)

    @property
    def _prepared(self) -> "_Prepared":
        # Not kept in the instance: memory maps must not be pickled.
        prepared = _open(self.directory, str(self.cache), self.signature)
        if len(prepared.due_us) != self.total:
            raise ReplayError(
                f"replay: {self.directory} holds {len(prepared.due_us)} events here and {self.total} where the run was "
                f"started; copy the same files to every host"
            )
        return prepared


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """The cache, memory-mapped."""

    rows: dict[str, Any]
    positions: dict[str, Int64s]
    due_us: Int64s
    watermarks: Int64s
    base_time_us: int
    disorder_us: int

    @property
    def in_order(self) -> bool:
        return self.disorder_us == 0


def _signature(directory: Path) -> str:
    found = [(path.name, path.stat()) for paths in files.find(directory).values() for path in paths]
    described = [str(directory), _FORMAT, *((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]


@lru_cache(maxsize=8)
def _open(directory: str, cache: str, signature: str) -> _Prepared:
    target = Path(cache) / f"tidemark-replay-{os.getuid()}-{signature}"
    if not target.is_dir():
        _prepare(Path(directory), target)
    facts = json.loads((target / "facts.json").read_text())
    return _Prepared(
        rows={kind: pa.ipc.open_file(pa.memory_map(str(target / f"{kind}.arrow"))).read_all() for kind in files.KINDS},
        positions={kind: _load(target, f"{kind}_positions") for kind in files.KINDS},
        due_us=_load(target, "due_us"),
        watermarks=_load(target, "watermarks"),
        base_time_us=facts["base_time_us"],
        disorder_us=facts["disorder_us"],
    )


def _load(target: Path, name: str) -> Int64s:
    array: Int64s = np.load(target / f"{name}.npy")
    return array


def _prepare(directory: Path, target: Path) -> None:
    """Check, merge and write; the rename makes the cache visible whole or not at all."""
    tables = _checked(directory)
    positions = _merge(tables)
    total = sum(table.num_rows for table in tables.values())
    times = np.empty(total, dtype=np.int64)
    for kind, table in tables.items():
        times[positions[kind]] = table["ts"].to_numpy()
    base = int(times.min()) if total else 0
    due = np.maximum.accumulate(times)
    facts = {"base_time_us": base, "disorder_us": int((due - times).max()) if total else 0}
    draft = Path(tempfile.mkdtemp(prefix="tidemark-replay-draft-", dir=target.parent))
    for kind, table in tables.items():
        if files.OPTIONAL not in table.column_names:
            table = table.add_column(0, files.KINDS[kind].field(0), pa.array(positions[kind]))
        table = table.select(files.KINDS[kind].names)
        with pa.ipc.new_file(str(draft / f"{kind}.arrow"), files.KINDS[kind]) as writer:
            writer.write_table(table.cast(files.KINDS[kind]), max_chunksize=_ROWS_PER_BATCH)
        np.save(draft / f"{kind}_positions.npy", positions[kind])
    np.save(draft / "due_us.npy", due - base)
    np.save(draft / "watermarks.npy", np.minimum.accumulate(times[::-1])[::-1])
    (draft / "facts.json").write_text(json.dumps(facts))
    try:
        draft.rename(target)
    except OSError:  # another process was faster
        shutil.rmtree(draft)
        if not target.is_dir():
            raise


def _checked(directory: Path) -> dict[str, Any]:
    """All rows of each kind: ids unique inside their kind, numbers unique over all kinds, or nowhere given."""
    found = [(kind, path) for kind, paths in files.find(directory).items() for path in paths]
    parts = [(kind, path, files.read(path, kind)) for kind, path in found]
    for name, kinds in (("id", ["persons"]), ("id", ["auctions"]), (files.OPTIONAL, list(files.KINDS))):
        files.require_unique(name, [(path, table) for kind, path, table in parts if kind in kinds and table.num_rows])
    tables = {}
    for kind, schema in files.KINDS.items():
        filled = [table for part, _, table in parts if part == kind and table.num_rows]
        tables[kind] = pa.concat_tables(filled) if filled else schema.empty_table()
    return tables


def _merge(tables: dict[str, Any]) -> dict[str, Int64s]:
    """Position of every row of every kind."""
    arrivals, ties, kinds = [], [], []
    for index, table in enumerate(tables.values()):
        arrivals.append(np.maximum.accumulate(table["ts"].to_numpy()))
        rows = table[files.OPTIONAL].to_numpy() if files.OPTIONAL in table.column_names else arrivals[-1] * 0
        ties.append(np.maximum.accumulate(rows))
        kinds.append(np.full(table.num_rows, index))
    order = np.lexsort((np.concatenate(kinds), np.concatenate(ties), np.concatenate(arrivals)))
    positions = np.empty(len(order), dtype=np.int64)
    positions[order] = np.arange(len(order))
    ends = np.cumsum([0, *(table.num_rows for table in tables.values())])
    return {kind: positions[ends[index] : ends[index + 1]] for index, kind in enumerate(tables)}
