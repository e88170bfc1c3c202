"""One run from settings to run directory: lay out, start on Spark, watch, verify, write down."""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataflow.graph import Graph, GraphError
from nexmark.queries import build
from runners.display import Display
from runners.faults import FaultError
from runners.plan import lay_out
from runners.rundir import RunDirectory, environment
from runners.settings import ConfigError, Settings
from runners.spark import SparkJobs, interruptible
from runners.summary import Findings, lag_frame, latency_frame, resources_frame, summarise, tasks_frame
from runners.supervisor import Outcome, Recorder, Supervisor, Watch
from runners.verify import Verification, verify
from runners.worker import RunSpec


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Everything checked, nothing started."""

    settings: Settings
    graph: Graph
    spec: RunSpec
    slots_needed: int


def prepare(settings: Settings, slots: int, *, vitals: Path, executors: int = 0) -> Prepared:
    """Lay the query out and see that it fits the cluster. Raises `ConfigError`."""
    try:
        graph = build(settings.query, settings.parallelism)
    except GraphError as error:
        raise ConfigError(f"query: {error}") from error
    layout = lay_out(
        graph,
        sources=settings.sources,
        flush_interval_ms=settings.flush_interval_ms,
        flush_bytes=settings.flush_bytes,
    )
    spec = RunSpec(
        layout=layout,
        protocol=settings.protocol,
        log=settings.log,
        workload=settings.workload,
        total=settings.total,
        block=_block(settings),
        vitals=str(vitals),
        report_interval_ms=settings.report_interval_ms,
    )
    needed = len(spec.roles()) + settings.spare_slots
    if needed > slots:
        raise ConfigError(
            f"query {settings.query.name!r} needs {needed} Spark slots ({len(spec.roles())} roles and"
            f" {settings.spare_slots} spare) and the cluster has {slots};"
            f" set cluster.slots={needed} or lower parallelism"
        )
    try:
        coordinators = settings.protocol.coordinators(layout.job)
        settings.failure.check(layout.job, coordinators, settings.duration_s, executors=executors)
    except FaultError as error:
        raise ConfigError(f"failure: {error}") from error
    return Prepared(settings=settings, graph=graph, spec=spec, slots_needed=needed)


def _block(settings: Settings) -> int:
    """Events that a source makes at once: a flush's worth, because a small call costs as much as a large one."""
    return max(64, min(16_384, int(settings.rate * settings.flush_interval_ms / 1000)))


def execute(prepared: Prepared, spark: Any, directory: Path, config_yaml: str, display: Display) -> dict[str, Any]:
    """Run, verify, and leave a complete run directory. Returns run.json's content."""
    settings, spec = prepared.settings, prepared.spec
    folder = RunDirectory(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(config_yaml)
    folder.write_json("environment.json", environment(settings.seed, input_hash(settings)))
    record = Recorder(directory / "events.jsonl")
    log = spec.log.open()
    try:
        _publish_streams(prepared)
        watch = Watch(
            duration_s=settings.duration_s,
            drain_timeout_s=settings.drain_timeout_s,
            heartbeat_timeout_ms=settings.heartbeat_timeout_ms,
            log_lock_timeout_ms=settings.log_lock_timeout_ms,
            trim=settings.trim and not settings.keep_log,
            failure=settings.failure,
        )
        jobs = SparkJobs(spark, spec, group=f"tidemark-{directory.name}-{time.time_ns()}")
        outcome = Supervisor(spec, jobs, log, record, display, watch).run()
        verification = _verify(prepared, spark, outcome, display)
        findings = Findings(settings=settings, outcome=outcome, verification=verification)
        folder.write_parquet("latency.parquet", latency_frame(outcome))
        folder.write_parquet("tasks.parquet", tasks_frame(outcome))
        folder.write_parquet("lag.parquet", lag_frame(outcome))
        folder.write_parquet("resources.parquet", resources_frame(outcome))
        run = summarise(findings)
        folder.write_json("run.json", run)
        return run
    finally:
        display.close()
        record.close()
        log.close()


def _verify(prepared: Prepared, spark: Any, outcome: Outcome, display: Display) -> Verification | None:
    """None when it was not wanted, or when there is no complete result to look at."""
    sink = outcome.results.get("sink")
    if not prepared.settings.verify or not outcome.complete or sink is None or not sink.result:
        return None
    display.say("verifying against the oracle …")
    settings = prepared.settings
    with interruptible():
        return verify(spark, settings.query, settings.workload, prepared.graph.answer, sink.result)


def _publish_streams(prepared: Prepared) -> None:
    """Beside the log, what its entries do not say: schemas, writers and the protocol. A notebook will ask."""
    from runners.datasource import publish  # imports Spark, which configuration errors must not wait for

    publish(prepared.spec.layout, prepared.settings.protocol, prepared.spec.log.snapshots())


def input_hash(settings: Settings) -> str:
    """Of the workload's description and of its first and last events: two runs with equal hashes had one input."""
    digest = hashlib.sha256(repr(settings.workload).encode())
    total = settings.total
    for start in (0, max(0, total - 1000)):
        digest.update(settings.workload.events(start, min(start + 1000, total)).serialize())
    return digest.hexdigest()
