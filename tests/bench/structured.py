"""What a user would pick instead: Spark Structured Streaming on Q1 and Q5, over the same events, checkpoint on.

    python -m tests.bench.structured --query q5 --rate 400000 --events 6000000

A process of its own with a plain session on two cores, so that no setting made for our runtime slows it down. What was
decided in Spark's favour: the events lie ready as Parquet files, so making and writing them is not in its time, and it
reads no column that the query does not need; its sink throws the rows away (`noop`); there are as many shuffle
partitions as cores, not 200; the first micro-batch is not counted. Q5 stops at the count per (window, auction) in
update mode: the maximum per window would be a second aggregation, which update mode does not chain. Micro-batches of
half a million events are good for throughput and cost latency, which is not measured here.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from infra import java
from nexmark.generator import Generator
from nexmark.parameters import Q1, Q5
from nexmark.rates import Constant
from nexmark.sql import sql
from tests.bench.bench_nexmark import pack_sparse, take_lists

CORES = 2
QUERIES = ("q1", "q5")


def measure(query: str, *, rate: int, events: int, batch: int, seed: int, timeout_s: float = 900) -> dict[str, Any]:
    """Run it in a child process and return its numbers."""
    command = [sys.executable, "-m", "tests.bench.structured", "--query", query, "--rate", str(rate)]
    command += ["--events", str(events), "--batch", str(batch), "--seed", str(seed)]
    # A plain session: nothing that our own session has put into the environment may reach it.
    environ = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    environ |= {"JAVA_HOME": str(java.home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environ.pop("SPARK_HOME", None)
    for name in [name for name in environ if name.startswith(("PYSPARK_GATEWAY", "PYSPARK_DRIVER", "SPARK_ENV"))]:
        del environ[name]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise RuntimeError(f"Structured Streaming on {query} ended with {done.returncode}: {done.stderr[-2000:]}")
    numbers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def write_events(directory: Path, *, rate: int, events: int, file_events: int, seed: int) -> None:
    """The generator's events in order, a nullable struct for each kind; one file after the other."""
    generator = Generator(seed=seed, rate=Constant(events_per_s=rate), total=events)
    directory.mkdir(parents=True)
    for number, start in enumerate(range(0, events, file_events)):
        kinds = take_lists(generator.events(start, min(start + file_events, events)))
        packed = pack_sparse(*(rows.cast(pa.schema([f.with_nullable(True) for f in rows.schema])) for rows in kinds))
        path = directory / f"{number:06}.parquet"
        pq.write_table(pa.Table.from_batches([packed]), path, compression="snappy")
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))  # the file source goes by this order


def session(directory: Path) -> Any:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("structured-streaming")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(CORES))
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )


def stream(spark: Any, query: str, files: Path, files_per_batch: int) -> tuple[Any, str]:
    """The query as a streaming DataFrame, and its output mode."""
    from pyspark.sql import functions as F

    schema = spark.read.parquet(str(files)).schema
    events = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch).parquet(str(files))
    bids = events.where("bid IS NOT NULL").select("bid.*")
    if query == "q1":
        bids.createOrReplaceTempView("bid")
        return spark.sql(sql(Q1())), "append"
    params = Q5()
    timed = bids.select("auction", F.timestamp_micros("ts").alias("time")).withWatermark("time", "0 seconds")
    window = F.window("time", f"{params.window_us} microseconds", f"{params.slide_us} microseconds")
    return timed.groupBy(window, "auction").count(), "update"


def execute(spark: Any, query: str, directory: Path, files_per_batch: int) -> list[dict[str, Any]]:
    """Run over all files, and return the progress reports of the micro-batches that had input."""
    frame, mode = stream(spark, query, directory / "events", files_per_batch)
    running = (
        frame.writeStream.format("noop")
        .outputMode(mode)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    reports = [json.loads(progress.json) for progress in running.recentProgress]
    return [report for report in reports if report["numInputRows"]]


def rates(reports: list[dict[str, Any]]) -> dict[str, float]:
    """Events/s of the micro-batches after the first, and of the later half of these, when the JIT has settled."""
    later = reports[1:]
    return {"events_per_s": _rate(later), "events_per_s_later_half": _rate(later[len(later) // 2 :])}


def _rate(reports: list[dict[str, Any]]) -> float:
    began = datetime.fromisoformat(reports[0]["timestamp"])
    last = reports[-1]
    seconds = (datetime.fromisoformat(last["timestamp"]) - began).total_seconds()
    seconds += last["durationMs"]["triggerExecution"] / 1000
    return float(sum(report["numInputRows"] for report in reports) / seconds)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Spark Structured Streaming on a NEXMark query; prints JSON.")
    parser.add_argument("--query", choices=QUERIES, required=True)
    parser.add_argument("--rate", type=int, default=400_000, help="of the event times; input is as fast as Spark takes")
    parser.add_argument("--events", type=int, default=6_000_000)
    parser.add_argument("--batch", type=int, default=500_000, help="events in a micro-batch")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(argv)
    if options.events < 3 * options.batch:
        parser.error(f"--events must be at least three times --batch={options.batch}: the first one is not counted")
    with tempfile.TemporaryDirectory(prefix="tidemark-structured-") as name:
        directory = Path(name)
        write_events(
            directory / "events",
            rate=options.rate,
            events=options.events,
            file_events=options.batch // CORES,
            seed=options.seed,
        )
        spark = session(directory)
        try:
            reports = execute(spark, options.query, directory, CORES)
        finally:
            spark.stop()
    durations = sorted(report["durationMs"]["triggerExecution"] for report in reports[1:])
    numbers = {"query": options.query, "events": sum(report["numInputRows"] for report in reports)}
    numbers |= {"micro_batches": len(reports), "micro_batch_ms_median": durations[len(durations) // 2]}
    print(json.dumps({**numbers, **rates(reports)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
