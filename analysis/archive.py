"""A finished sweep, small enough to keep in a repository or to send to somebody.

    python -m analysis.archive results/recovery-small results/reference/recovery.zip

Everything that a frame, a figure, a claim or the report reads stays. A run keeps one histogram of its measured part,
in buckets of 0.4% instead of 0.1%; the visible latency of a run with a fault is kept by second, for the time line, in
buckets of 0.8%. Of the samples of roles each one's last counts stay, of resources none, of an experiment's grid none:
it is in the manifest, so the sweep can go on from such a copy, unpacked. `analysis.load` reads it as it is.
"""

import argparse
import json
import math
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from analysis.finding import ARCHIVE
from analysis.load import measured
from runners.rundir import RunDirectory, RunDirectoryError

CONFIG = "config.yaml"
WHOLE = ("run.json", "environment.json", "events.jsonl", "log_latency.json", "search.json")
MANIFEST = "manifest.json"
HISTOGRAM = ["second", "metric", "value_us", "count"]
BY_SECOND = "visible"
BITS, SECONDS_BITS = 9, 8  # of a latency: 256 or 128 steps in every power of two
KEPT_OF_TASKS = ("role", "rows_in", "rows_out", "cpu_s")


def archive(source: Path, target: Path) -> int:
    """Copy a sweep; returns the number of runs. Raises `RunDirectoryError` where there is none, or one already."""
    if not (source / MANIFEST).is_file():
        raise RunDirectoryError(f"{source} has no {MANIFEST}; name the directory of a sweep")
    if target.suffix != ARCHIVE:
        raise RunDirectoryError(f"{target} does not end in {ARCHIVE}; an archive is one file")
    if target.exists():
        raise RunDirectoryError(f"{target} exists already; remove it, or name another place")
    target.parent.mkdir(parents=True, exist_ok=True)
    cells = [cell for cell in json.loads((source / MANIFEST).read_text())["cells"] if cell["state"] == "done"]
    with TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(source / MANIFEST, folder / MANIFEST)
        places = sorted({place for cell in cells for place in _with_files(source / cell["directory"])})
        runs = sum(_copy(place, folder / place.relative_to(source)) for place in places)
        _pack(folder, target)
    return runs


def _pack(folder: Path, target: Path) -> None:
    """Equal content makes equal bytes: names in order, no times."""
    partial = target.with_name(f".{target.name}.partial")
    with ZipFile(partial, "w") as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = ZipInfo(path.relative_to(folder).as_posix())
                file.writestr(name, path.read_bytes(), ZIP_DEFLATED, compresslevel=9)
    partial.replace(target)


def _with_files(cell: Path) -> list[Path]:
    """A cell's own directory, and those of a search's probes."""
    return [cell, *(path.parent for path in cell.rglob("run.json"))]


def _copy(source: Path, target: Path) -> bool:
    target.mkdir(parents=True, exist_ok=True)
    for name in WHOLE:
        if (source / name).is_file():
            shutil.copy(source / name, target / name)
    if (source / CONFIG).is_file():
        (target / CONFIG).write_text(_without_grid(source / CONFIG))
    if not (source / "run.json").is_file():
        return False
    directory = RunDirectory(source)
    run = directory.run()
    latency = directory.latency()
    kept = measured(latency, float(run["warmup_s"]), float(run["duration_s"]))
    kept["second"] = math.ceil(run["warmup_s"])
    if run["faults"]:
        _write(target / "lag.parquet", directory.lag().round({"elapsed_s": 2, "behind_ms": 0}))
        shown = _coarse(latency[latency["metric"] == BY_SECOND], SECONDS_BITS)
        kept = pd.concat([shown, kept[kept["metric"] != BY_SECOND]])
    _write(target / "latency.parquet", _coarse(kept, BITS))
    last = directory.tasks().groupby("role", as_index=False).last()
    _write(target / "tasks.parquet", last[[name for name in KEPT_OF_TASKS if name in last]])
    return True


def _without_grid(path: Path) -> str:
    """The resolved configuration, less the other cells of its experiment."""
    config = yaml.safe_load(path.read_text())
    experiment = config.get("experiment") or {}
    config["experiment"] = {name: value for name, value in experiment.items() if name not in ("axes", "at")}
    return str(yaml.safe_dump(config, sort_keys=False))


def _coarse(latency: pd.DataFrame, bits: int) -> pd.DataFrame:
    """In wider buckets: only the leading bits of each value. Negative values mirror the positive ones."""
    values = latency["value_us"].to_numpy()
    magnitude = np.abs(values)
    shift = np.maximum(np.frexp(magnitude.astype(float))[1].astype(np.int64) - bits, 0)
    wider = latency.assign(value_us=np.sign(values) * ((magnitude >> shift) << shift))
    return wider.groupby(HISTOGRAM[:-1])["count"].sum().reset_index()


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
    parser.add_argument("target", type=Path, help="a .zip that does not exist yet")
    options = parser.parse_args(argv)
    try:
        runs = archive(options.source, options.target)
    except RunDirectoryError as error:
        print(f"archive: {error}", file=sys.stderr)
        return 2
    print(f"{runs} runs in {options.target}, {options.target.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
