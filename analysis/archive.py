"""A finished sweep, small enough to keep in a repository or to send to somebody.

    python -m analysis.archive results/recovery-small results/reference/recovery

Everything that a frame, a figure, a claim or the report reads stays. Runs keep one histogram of their measured part
instead of one for each second; those with a fault keep the seconds of the visible latency, for the time line, in
buckets of 0.8% instead of 0.1%. Of the samples of roles each one's last counts stay, of resources none. The sweep can
go on from such a copy, because the manifest is part of it.
"""

import argparse
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.load import measured
from runners.rundir import RunDirectory, RunDirectoryError

WHOLE = ("run.json", "config.yaml", "environment.json", "events.jsonl", "log_latency.json", "search.json")
MANIFEST = "manifest.json"
HISTOGRAM = ["second", "metric", "value_us", "count"]
SHOWN_BY_SECOND = "visible"
COARSE_BITS = 8
KEPT_OF_TASKS = ("role", "second", "instance", "rows_in", "rows_out", "cpu_s")


def archive(source: Path, target: Path) -> int:
    """Copy a sweep; returns the number of runs. Raises `RunDirectoryError` where there is none, or one already."""
    if not (source / MANIFEST).is_file():
        raise RunDirectoryError(f"{source} has no {MANIFEST}; name the directory of a sweep")
    if target.exists():
        raise RunDirectoryError(f"{target} exists already; remove it, or name another place")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    shutil.copy(source / MANIFEST, partial / MANIFEST)
    cells = [cell for cell in json.loads((source / MANIFEST).read_text())["cells"] if cell["state"] == "done"]
    runs = 0
    for place in sorted({folder for cell in cells for folder in _with_files(source / cell["directory"])}):
        runs += _copy(place, partial / place.relative_to(source))
    partial.replace(target)
    return runs


def _with_files(cell: Path) -> list[Path]:
    """A cell's own directory, and those of a search's probes."""
    return [cell, *(path.parent for path in cell.rglob("run.json"))]


def _copy(source: Path, target: Path) -> bool:
    target.mkdir(parents=True, exist_ok=True)
    for name in WHOLE:
        if (source / name).is_file():
            shutil.copy(source / name, target / name)
    if not (source / "run.json").is_file():
        return False
    directory = RunDirectory(source)
    run = directory.run()
    latency = directory.latency()
    kept = measured(latency, float(run["warmup_s"]), float(run["duration_s"]))
    kept["second"] = math.ceil(run["warmup_s"])
    if run["faults"]:
        _write(target / "lag.parquet", directory.lag().round({"elapsed_s": 3, "behind_ms": 1}))
        kept = pd.concat([kept[kept["metric"] != SHOWN_BY_SECOND], _coarse_seconds(latency)])
    _write(target / "latency.parquet", kept[HISTOGRAM])
    last = directory.tasks().groupby("role", as_index=False).last()
    _write(target / "tasks.parquet", last[[name for name in KEPT_OF_TASKS if name in last]])
    return True


def _coarse_seconds(latency: pd.DataFrame) -> pd.DataFrame:
    """What a time line shows, warm-up included."""
    shown = latency[latency["metric"] == SHOWN_BY_SECOND]
    shown = shown.assign(value_us=_coarse(shown["value_us"].to_numpy()))
    return shown.groupby(HISTOGRAM[:-1])["count"].sum().reset_index()


def _coarse(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Only the leading bits of each value, as a wider bucket's lower edge; negative values mirror the positive ones."""
    magnitude = np.abs(values)
    shift = np.maximum(np.frexp(magnitude.astype(float))[1].astype(np.int64) - COARSE_BITS, 0)
    edges: npt.NDArray[np.int64] = np.sign(values) * ((magnitude >> shift) << shift)
    return edges


def _write(path: Path, frame: pd.DataFrame) -> None:
    """Half of what the defaults take: a histogram's sorted edges are stored as differences, statistics not at all."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    words = [field.name for field in table.schema if pa.types.is_string(field.type)]
    whole = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    pq.write_table(
        table, path, compression="zstd", compression_level=15, write_statistics=False, use_dictionary=words,
        column_encoding=dict.fromkeys(whole, "DELTA_BINARY_PACKED"),
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Keep a finished sweep in little room.")
    parser.add_argument("source", type=Path, help="the directory of a sweep")
    parser.add_argument("target", type=Path, help="a directory that does not exist yet")
    options = parser.parse_args(argv)
    try:
        runs = archive(options.source, options.target)
    except RunDirectoryError as error:
        print(f"archive: {error}", file=sys.stderr)
        return 2
    size = sum(file.stat().st_size for file in options.target.rglob("*") if file.is_file())
    print(f"{runs} runs in {options.target}, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
