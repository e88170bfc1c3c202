"""From run directories to one tidy frame: the first step of every figure, table, claim and report.

A directory that cannot be read is listed with its reason and left out; it never stops the others.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pandas as pd
import yaml
from pyarrow import ArrowException
from pyarrow.parquet import read_schema

from analysis.finding import DAMAGE, FILES, Found, Unreadable, first_line
from runners.manifest import PENDING, RUNNING
from runners.rundir import RunDirectory, RunDirectoryError

METRICS = ("emit", "visible", "paper")
# What may differ between two repetitions of one cell.
REPETITION_KEYS = ("seed", "source.seed", "failure.seed", "repetition", "quiet", "keep_log", "keep_samples")
# What asked for a run, how it was shown and where it was kept: none of it reaches the measured system.
ASIDE = ("experiment.", "log.path", "force", "scale")
_HISTOGRAM = ("directory", "metric", "value_us", "count")
_UNIT = "_ms"
# Swept settings that have a column of their own, or are part of `fault`.
_NAMED = ("query", "protocol", "rate", "failure", "flush", "flush_interval_ms", *REPETITION_KEYS)


@dataclass(frozen=True, kw_only=True)
class Results:
    """Everything that was found below some directories.

    `frame` has a row for each run; `histograms` the rows of their measured parts (directory, metric, value_us, count),
    to be merged at will; `configs` the flattened configuration by directory; `log_latency` one row for each append
    rate; `manifests` the content of every manifest by its directory.

    Columns of the frame that are not run.json's: `sweep`, the directory of the manifest above a run, if any, and
    `unfinished`, whether its repetition is; `cell`, equal for repetitions; `series`, what may be compared: the query,
    and how it ran where a sweep ran it in several ways; `fault`, what was asked to go wrong.
    """

    frame: pd.DataFrame
    histograms: pd.DataFrame
    configs: Mapping[str, Mapping[str, Any]]
    environments: Mapping[str, Mapping[str, Any]]
    log_latency: pd.DataFrame
    manifests: Mapping[Path, Mapping[str, Any]]
    unreadable: tuple[Unreadable, ...]

    @cached_property
    def _by_run(self) -> dict[tuple[str, str], pd.DataFrame]:
        parts = self.histograms.groupby(["directory", "metric"])
        return {(str(directory), str(metric)): part for (directory, metric), part in parts}

    def histogram(self, directory: str, metric: str) -> pd.DataFrame:
        """The measured part of one run as (value_us, count); empty if it has no such values."""
        part = self._by_run.get((directory, metric))
        return self.histograms.iloc[:0] if part is None else part


def load(*roots: Path) -> Results:
    """All runs below the given directories, at any depth. Raises `RunDirectoryError` if a root does not exist."""
    rows, configs, environments, histograms = [], {}, {}, []
    unreadable: list[Unreadable] = []
    found = Found(unreadable)
    known: dict[tuple[str, bytes], Path] = {}
    for path in found.walk(roots):
        try:
            row, config, environment, histogram = _load_one(path)
            original = known.setdefault((row["cell"], (path / "run.json").read_bytes()), path)
        except DAMAGE as error:
            reason = str(error) if isinstance(error, RunDirectoryError) else f"{path} is damaged: {first_line(error)}"
            unreadable.append(Unreadable(path=path, reason=reason))
            continue
        if original != path:
            unreadable.append(Unreadable(path=path, reason=f"a copy of {original}, which counts once"))
            continue
        rows.append({**row, "sweep": found.sweep_of(path)})
        histograms.append(histogram)
        configs[str(path)], environments[str(path)] = config, environment
    return Results(
        frame=_as_compared(pd.DataFrame(rows), found.manifests, configs) if rows else pd.DataFrame(),
        histograms=pd.concat(histograms, ignore_index=True) if histograms else pd.DataFrame(columns=_HISTOGRAM),
        configs=configs,
        environments=environments,
        log_latency=pd.DataFrame(found.log_latency),
        manifests=found.manifests,
        unreadable=tuple(unreadable),
    )  # fmt: skip


def _as_compared(
    frame: pd.DataFrame, manifests: Mapping[Path, Mapping[str, Any]], configs: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """Runs in order, each with its series; latency hangs on flushes even where nobody swept them."""
    ways = {"flush_interval_ms": frame["flush_interval_ms"].map(lambda value: f"{value:g} ms flushes")}
    for name in sorted(swept(manifests) - set(_NAMED)):
        if not name.startswith(("protocol.", "failure.")):
            values = frame[name] if name in frame else [configs[path].get(name) for path in frame["directory"]]
            ways[name] = pd.Series([f"{name}={value}" for value in values], index=frame.index)
    series = frame["query"]
    for way in ways.values():
        several = way.groupby(frame["query"]).transform("nunique") > 1
        series = series.where(~several, series + ", " + way)
    ongoing = {
        (str(place), cell.get("repetition"))
        for place, manifest in manifests.items()
        for cell in manifest["cells"]
        if cell["state"] in (PENDING, RUNNING)
    }
    keys = zip(frame["sweep"], frame["repetition"], strict=True)
    frame = frame.assign(series=series, unfinished=[key in ongoing for key in keys])
    return frame.sort_values(["series", "protocol", "rate_offered", "repetition", "directory"], ignore_index=True)


def swept(manifests: Mapping[Path, Mapping[str, Any]]) -> set[str]:
    """Settings and groups that a manifest's cells override with more than one value."""
    values: dict[str, set[str]] = {}
    for manifest in manifests.values():
        for cell in manifest["cells"]:
            for override in cell.get("overrides", []):
                name, _, value = str(override).lstrip("+").partition("=")
                values.setdefault(name, set()).add(value)
    return {name for name, used in values.items() if len(used) > 1}


def _load_one(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], pd.DataFrame]:
    directory = RunDirectory(path)
    _check_files(path)
    run, environment = directory.run(), directory.environment()
    config = flat(_yaml(path / "config.yaml"), ".")
    try:
        row = {"directory": str(path), **summary_row(run)}
        row |= {
            "cell": cell_id(config),
            "commit": environment.get("commit"),
            "code": environment.get("code", environment.get("commit")),
            "input_hash": environment.get("input_hash"),
            "fault": _fault(str(run["failure"]), config),
        }
        row["flush_interval_ms"] = float(config["flush_interval_ms"])
        row["snapshot_interval_ms"] = config.get("protocol.snapshot_interval_ms", math.nan)
        histogram = measured(directory.latency(), float(run["warmup_s"]), float(run["duration_s"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise RunDirectoryError(f"{path}/run.json lacks or garbles a field ({error!r}); run it again") from error
    return row, config, environment, histogram.assign(directory=str(path))[list(_HISTOGRAM)]


def _fault(failure: str, config: Mapping[str, Any]) -> str:
    """What was asked to go wrong: equal for repetitions, different for another time, place or kind."""
    settings = {name: value for name, value in config.items() if not name.startswith(("failure._", *REPETITION_KEYS))}
    asked = sorted(name for name in settings if name.startswith("failure."))
    return ", ".join([failure, *(f"{name.removeprefix('failure.')}={settings[name]}" for name in asked)])


def _check_files(path: Path) -> None:
    """Every file is there and ends where it should."""
    missing = [name for name in FILES if not (path / name).is_file()]
    if missing:
        raise RunDirectoryError(f"{path} has no {', '.join(missing)}; the run did not finish, so run it again")
    tables = [name for name in ("latency.parquet", "tasks.parquet", "lag.parquet") if (path / name).exists()]
    try:
        for name in tables:
            read_schema(path / name)
        for name in ("events.jsonl",):
            for line in (path / name).read_text().splitlines():
                json.loads(line)
    except (ArrowException, OSError, ValueError) as error:
        raise RunDirectoryError(f"{path}/{name} is damaged ({first_line(error)}); run it again") from error


def summary_row(run: Mapping[str, Any]) -> dict[str, Any]:
    """run.json as one row: latency_ms.visible.p99 becomes visible_p99_ms, log_bytes.input log_bytes_input."""
    row: dict[str, Any] = {"repetition": 0}
    for name, value in run.items():
        if isinstance(value, Mapping):
            row |= {_column(name, inner): item for inner, item in flat(value, "_").items()}
        elif not isinstance(value, list):
            row[name] = value
    faults = run["faults"]
    row["invalid_reasons"] = "; ".join(run["invalid_reasons"])
    struck = sorted({str(fault["role"] or "the log") for fault in faults})
    row |= {"fault_count": len(faults), "fault_role": ", ".join(struck)}
    row["faults_proven"] = all(bool(fault["proven"]) for fault in faults)
    times_s = [fault["time_ms"] / 1000 - run["start_us"] / 1e6 for fault in faults if fault.get("time_ms")]
    row["fault_s"] = min(times_s, default=math.nan)
    for metric in METRICS:
        for percentile in ("p50", "p99"):
            row[f"{metric}_{percentile}_ms"] = _number(run["latency_ms"][metric][percentile])
    for part in ("detect", "restart", "restore", "catch_up", "total"):
        row[f"recovery_{part}_ms"] = _number((run.get("recovery_ms") or {}).get(part))
    for name in ("checked", "lost", "duplicated", "wrong"):
        row[f"verification_{name}"] = _number((run["verification"] or {}).get(name))
    row["verification_edges_ok"] = (run["verification"] or {}).get("edges_ok")
    for name in ("entries_read", "changes_applied"):
        row[f"recovery_{name}"] = _number((run.get("recovery") or {}).get(name))
    row["commit_interval_ms"] = _number(run["commit_interval_ms"])
    return row | {name: run[name] for name in ("query", "protocol", "rate_offered", "failure", "valid", "complete")}


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _column(outer: str, inner: str) -> str:
    if not outer.endswith(_UNIT):
        return f"{outer}_{inner}"
    stem = "" if outer == "latency_ms" else outer.removesuffix(_UNIT) + "_"
    return f"{stem}{inner}" if inner.endswith("count") else f"{stem}{inner}{_UNIT}"


def flat(content: Mapping[str, Any], separator: str) -> dict[str, Any]:
    """Nested mappings as one, names joined."""
    row: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            row |= {f"{name}{separator}{inner}": item for inner, item in flat(value, separator).items()}
        elif not isinstance(value, list):
            row[str(name)] = value
        else:
            row[str(name)] = json.dumps(value)
    return row


def cell_id(config: Mapping[str, Any]) -> str:
    """Runs with equal ids are repetitions: their configurations differ in nothing but seed and repetition.

    Whichever experiment asked for them: two sweeps that share a cell have twice the repetitions of it.
    """
    rest = {name: value for name, value in config.items() if name not in REPETITION_KEYS and not name.startswith(ASIDE)}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, default=str).encode()).hexdigest()[:12]


def measured(latency: pd.DataFrame, warmup_s: float, duration_s: float) -> pd.DataFrame:
    """One run's histogram rows after the warm-up and before the end of the schedule, all seconds merged."""
    inside = latency[(latency["second"] >= warmup_s) & (latency["second"] < math.ceil(duration_s))]
    inside = inside[inside["metric"].isin(METRICS)]
    return inside.groupby(["metric", "value_us"])["count"].sum().reset_index()


def merged(results: Results, metric: str, by: Sequence[str]) -> pd.DataFrame:
    """Histograms added up over all runs that agree in `by`: columns of `by`, value_us, count."""
    groups, names = _groups(results.frame, by)
    rows = results.histograms[results.histograms["metric"] == metric].merge(groups, on="directory")
    total = rows.groupby(["group", "value_us"])["count"].sum().reset_index()
    return _named(total, names)


def merged_by_spark(spark: Any, frame: pd.DataFrame, metric: str, by: Sequence[str]) -> pd.DataFrame:
    """The same as `merged` for more runs than one process should read: only the merged rows come back.

    `frame` needs `directory`, `warmup_s`, `duration_s` and the columns of `by`; latency.parquet is read by Spark.
    """
    from pyspark.sql import functions as f

    groups, names = _groups(frame, by)
    groups = groups.merge(frame[["directory", "warmup_s", "duration_s"]], on="directory")
    table = spark.read.parquet(*[str(Path(path) / "latency.parquet") for path in frame["directory"]])
    # Spark escapes some characters of a path in its own way, so its names are turned back into ours here.
    files = {str(Path(unquote(uri).removeprefix("file://")).parent): uri for uri in table.inputFiles()}
    windows = pd.DataFrame(
        {
            "file": groups["directory"].map(files),
            "group": groups["group"].astype("int64"),
            "from_s": groups["warmup_s"].astype(float),
            "until_s": groups["duration_s"].astype(float).apply(math.ceil),
        }
    )
    total = (
        table.where(f.col("metric") == metric)
        .withColumn("file", f.input_file_name())
        .join(f.broadcast(spark.createDataFrame(windows)), "file")
        .where((f.col("second") >= f.col("from_s")) & (f.col("second") < f.col("until_s")))
        .groupBy("group", "value_us")
        .agg(f.sum("count").alias("count"))
        .toPandas()
    )
    return _named(total, names)


def _groups(frame: pd.DataFrame, by: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A number for each distinct value of `by` (missing values are values too): by directory, and what it means."""
    numbers = frame.groupby(list(by), dropna=False).ngroup()
    groups = pd.DataFrame({"directory": frame["directory"], "group": numbers})
    return groups, frame[list(by)].assign(group=numbers).drop_duplicates("group")


def _named(total: pd.DataFrame, names: pd.DataFrame) -> pd.DataFrame:
    rows = total.merge(names, on="group").sort_values(["group", "value_us"], ignore_index=True)
    columns = [name for name in names.columns if name != "group"]
    return rows[[*columns, "value_us", "count"]].astype({"value_us": "int64", "count": "int64"})


def _yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RunDirectoryError(f"{path} is not YAML ({first_line(error)}); run it again") from error
    if not isinstance(content, dict):
        raise RunDirectoryError(f"{path} holds no settings; the run was cut off, so run it again")
    return content
