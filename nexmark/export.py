"""Writing a workload as files that `nexmark.replay` (or anybody else) reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet

from nexmark import events
from nexmark.errors import WorkloadError
from nexmark.files import KINDS
from nexmark.workload import Workload

Format = Literal["jsonl", "parquet"]

_BLOCK = 50_000
_TAKE = {"persons": events.persons, "auctions": events.auctions, "bids": events.bids}


def export(
    workload: Workload, directory: Path, format: Format, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Path]:
    """One file per kind, rows in emission order. Files appear under their names only when they are complete."""
    directory.mkdir(parents=True, exist_ok=True)
    targets = {kind: directory / f"{kind}.{format}" for kind in KINDS}
    taken = [path.name for path in directory.iterdir() if path.stem.split("-")[0] in KINDS]
    if taken:
        raise WorkloadError(f"export: {directory} already holds {', '.join(sorted(taken))}; choose an empty directory")
    drafts = {kind: path.with_name(path.name + ".draft") for kind, path in targets.items()}
    write = _write_parquet if format == "parquet" else _write_jsonl
    try:
        write(workload, drafts, progress)
        for kind, draft in drafts.items():
            draft.rename(targets[kind])
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
    return targets


def _write_parquet(workload: Workload, paths: dict[str, Path], progress: Callable[[int], None]) -> None:
    writers: dict[str, Any] = {}
    try:
        for kind, path in paths.items():
            writers[kind] = pyarrow.parquet.ParquetWriter(path, KINDS[kind], compression="zstd")
        for kind, rows in _rows(workload, progress):
            writers[kind].write_batch(rows)
    finally:
        for writer in writers.values():
            writer.close()


def _write_jsonl(workload: Workload, paths: dict[str, Path], progress: Callable[[int], None]) -> None:
    import polars  # only here: polars that was used before a fork hangs the child

    outputs = {kind: path.open("wb") for kind, path in paths.items()}
    try:
        for kind, rows in _rows(workload, progress):
            polars.DataFrame(pa.Table.from_batches([rows])).write_ndjson(outputs[kind])
    finally:
        for output in outputs.values():
            output.close()


def _rows(workload: Workload, progress: Callable[[int], None]) -> Any:
    for start in range(0, workload.total, _BLOCK):
        stop = min(start + _BLOCK, workload.total)
        batch = workload.events(start, stop)
        for kind, take in _TAKE.items():
            rows = take(batch)
            if rows.num_rows:
                yield kind, rows
        progress(stop)
