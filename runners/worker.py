"""A role inside a process: open the log, take an instance number, step until the job is done.

This is the function that Spark runs. Whatever goes wrong is returned as a result, because Spark would run a function
that raises again and again; only the death of the process is left for Spark to notice.
"""

import json
import os
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nexmark.workload import Workload
from protocols.base import Channel, Context, Guarantee, Job, Protocol, TaskContext
from runners.channel import SocketChannel
from runners.coordination import CoordinatorRole
from runners.plan import REPORTS, SINK, Layout
from runners.reports import Reporter
from runners.role import Role
from runners.sink import Sink
from runners.source import Share, Source
from runners.task import Task
from runners.uploads import ThreadUploads
from runners.vitals import SharedVitals
from sharedlog.errors import Fenced, LogFull, Trimmed
from sharedlog.log import Entry, Header, Kind, LogSpec, SharedLog

START_KEY = "job/start"
START_TIMEOUT_S = 120
EXIT_TO_BE_RESTARTED = 3  # Spark starts what it sees dying
# Sources and sink are instruments; on a cluster they would have hosts of their own. Where they share cores with what
# they measure, they go first, so that a shortage shows as lag and latency and not as a source that is late.
SUBJECT_NICENESS = 10


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Everything a role needs to know, on whatever host it wakes up."""

    layout: Layout
    protocol: Protocol
    log: LogSpec
    workload: Workload
    total: int
    block: int
    vitals: str
    report_interval_ms: float = 200

    @property
    def job(self) -> Job:
        return self.layout.job

    def roles(self) -> tuple[str, ...]:
        """All roles, in the order of the data's way; coordinators last."""
        return (*self.job.sources, *self.job.tasks, SINK, *self.protocol.coordinators(self.job))


@dataclass(kw_only=True)
class RoleResult:
    """What a role leaves behind. `status` is done, fenced, aborted or failed."""

    role: str
    instance: int
    status: str
    error: str = ""
    report: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)


def run_role(spec: RunSpec, name: str) -> RoleResult:
    """Run one role from recovery to the end of the job."""
    log = spec.log.open()
    instance = 0
    ctx: Context | None = None
    try:
        instance = log.increment(f"instance/{name}")
        role, ctx = _build(spec, name, _contexts(spec, log, name, instance))
        status = _drive(spec, log, role, ctx)
        report, result = _final(role, ctx), role.result()
        return RoleResult(role=name, instance=ctx.instance, status=status, report=report, result=result)
    except Fenced as fenced:
        return RoleResult(role=name, instance=instance, status="fenced", error=str(fenced))
    except LogFull:
        # The outcome is known (nothing was written) but this instance's buffers are not: die, and be restarted.
        time.sleep(0.2)
        os._exit(EXIT_TO_BE_RESTARTED)
    except Exception as exception:
        error = traceback.format_exc()
        instance = ctx.instance if ctx is not None else instance  # some protocols renew it in place
        if log.get(f"instance/{name}") > instance:
            # A successor is at work, and the log may have been trimmed under this one: nobody needs it any more.
            return RoleResult(role=name, instance=instance, status="fenced", error=error)
        if isinstance(exception, Trimmed) and spec.protocol.guarantee is Guarantee.NONE:
            # Bounds follow what is committed. Who commits nothing may find that a zombie of it had the log trimmed.
            os._exit(EXIT_TO_BE_RESTARTED)
        # The job's result comes when all roles have ended; the supervisor must know at once.
        header = Header(Kind.REPORT, name, instance, time_us=wall_us())
        body = json.dumps({"pid": os.getpid(), "bound": 0, "failed": error}).encode()
        log.append([Entry((REPORTS,), header, body)])
        return RoleResult(role=name, instance=instance, status="failed", error=error)
    finally:
        log.close()


def wall_us() -> int:
    return time.time_ns() // 1000


def _contexts(spec: RunSpec, log: SharedLog, name: str, instance: int) -> dict[str, Any]:
    snapshots = spec.log.snapshots()
    written: dict[str, list[int]] = {}
    vitals = SharedVitals(Path(spec.vitals), name, instance)
    return {
        "job": spec.job,
        "name": name,
        "instance": instance,
        "log": log,
        "snapshots": snapshots,
        "uploads": ThreadUploads(snapshots, written, vitals),
        "vitals": vitals,
        "channel": SocketChannel(name, snapshots, instance),
        "now_us": wall_us,
        "written": written,
    }


def _build(spec: RunSpec, name: str, parts: dict[str, Any]) -> tuple[Role, Context]:
    """The role by its name. Sources and the sink wait for the common start time."""
    job, layout = spec.job, spec.layout
    if name not in job.sources and name != SINK:
        os.nice(SUBJECT_NICENESS)
    if name in job.tasks:
        stage = next(stage for stage in layout.graph.stages if stage.name == layout.stage_of(name))
        operator = stage.logic.build()
        task_ctx = TaskContext(plan=job.tasks[name], state=operator.state, **parts)
        return Task(task_ctx, layout, operator, spec.protocol), task_ctx
    ctx = Context(**parts)
    if name not in job.sources and name != SINK:
        return CoordinatorRole(spec.protocol.coordinator(ctx)), ctx
    if name in job.sources:
        spec.workload.events(0, 1)  # makes the tables of the seed; the clock must not wait for them
    start_us = await_start(spec, ctx)
    if name == SINK:
        return Sink(ctx, layout, spec.protocol, start_us=start_us, base_us=spec.workload.base_time_us), ctx
    index = job.sources.index(name)
    share = Share(index=index, sources=len(job.sources), total=spec.total, block=spec.block)
    return Source(ctx, layout, spec.workload, share, start_us), ctx


class Waiting(Role):
    """Stands in until the clock starts: alive, and in need of everything."""

    def recover(self) -> None: ...
    def step(self, now_ms: float) -> bool:
        return False

    def inputs(self) -> dict[str, int]:
        return {}

    def bound(self) -> int:
        return 0

    def finished(self) -> bool:
        return False

    def report(self) -> dict[str, object]:
        return {}


def await_start(spec: RunSpec, ctx: Context) -> int:
    """The wall time of offset 0, once the supervisor has set it: when all roles have reported."""
    reporter = Reporter(ctx, Waiting(), os.getpid(), spec.report_interval_ms)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        reporter.step(time.monotonic_ns() / 1e6)
        if (start := ctx.snapshots.get(START_KEY)) is not None:
            return int(json.loads(start.to_pybytes())["start_us"])
        if ctx.log.get("abort"):
            return wall_us()
        time.sleep(0.005)
    raise TimeoutError(f"no start time within {START_TIMEOUT_S} s: the driver is gone, or not all roles have started")


def _drive(spec: RunSpec, log: SharedLog, role: Role, ctx: Context) -> str:
    """Step, report, sleep; until DONE or ABORT. Returns how it ended."""
    reporter = Reporter(ctx, role, os.getpid(), spec.report_interval_ms)
    vitals = ctx.vitals
    assert isinstance(vitals, SharedVitals)
    checked_ms = 0.0
    restored = False
    role.recover()
    while True:
        now_ms = time.monotonic_ns() / 1e6
        moved = role.step(now_ms)
        if not restored and role.ready():
            restored = True
            vitals.restored(wall_us(), **_cost(role))
        if moved or now_ms - checked_ms >= 20:
            vitals.beat(wall_us(), role.watermark(), tuple(role.inputs().values()))
        reporter.step(now_ms, cpu_s=time.process_time())
        if now_ms - checked_ms >= 20:
            checked_ms = now_ms
            if log.get("abort"):
                return "aborted"
            # DONE means that every END is visible: nothing that this role has not done yet is missed by anybody.
            if log.get("done"):
                return "done"
        if not moved:
            _sleep(log, role, role.due_ms(now_ms), ctx.channel)


def _cost(role: Role) -> dict[str, int]:
    """What recovery cost, as far as a role counts it."""
    found = role.report()
    return {name: int(str(found.get(name, 0))) for name in ("entries_read", "changes_applied")}


def _sleep(log: SharedLog, role: Role, due_ms: float, channel: Channel) -> None:
    inputs = role.inputs()
    wake_fd = channel.fileno() if isinstance(channel, SocketChannel) else None
    if inputs or wake_fd is not None:
        log.wait(inputs, due_ms, wake_fd=wake_fd)
    else:
        time.sleep(min(due_ms, 20) / 1000)


def _final(role: Role, ctx: Context) -> dict[str, Any]:
    return {"written": ctx.written, "measured": ctx.measured, "cpu_s": time.process_time(), **role.report()}
