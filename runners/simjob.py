"""One schedule of the simulator: all roles of a job in a world of their own, and the verdict at its end."""

import gc
from dataclasses import dataclass
from typing import Any

from protocols.base import Context, Guarantee, Protocol, TaskContext
from runners.coordination import CoordinatorRole
from runners.plan import SINK, Layout, lay_out
from runners.reports import Reporter, Reports
from runners.role import Role
from runners.simcheck import QUERIES, Query, SimulatedSink, judge
from runners.simplan import BLOCK, JANITOR, Schedule, TinyWorkload
from runners.simproxies import SimulatedChannel, SimulatedLog, SimulatedSnapshots, SimulatedUploads
from runners.simworld import Process, Violation, World
from runners.source import Share, Source
from runners.task import Task
from sharedlog.errors import Trimmed

PATIENCE_MS = 900  # less than what idle roles take to restate anything, so that no restatement hides a wait


@dataclass(frozen=True)
class Outcome:
    """One schedule's end. `failure` is None when the protocol kept its promise; `exact` asks for more than that."""

    schedule: Schedule
    failure: str | None
    exact: bool
    world: World


class Simulation:
    """One schedule: the roles of a job in a world of their own."""

    def __init__(self, protocol: Protocol, query: Query, schedule: Schedule, *, trace: bool = False) -> None:
        self.protocol = protocol
        self.schedule = schedule
        self.workload = TinyWorkload(
            seed=schedule.seed,
            total=schedule.events,
            lull_ms=schedule.lull_ms,
            step_us=schedule.step_us,
            eager_us=query.eager_us,
        )
        self.layout: Layout = lay_out(
            query.graph,
            sources=schedule.sources,
            flush_interval_ms=schedule.flush_interval_ms,
            flush_bytes=schedule.flush_bytes,
            watermark_interval_ms=schedule.watermark_interval_ms,
            max_held_bytes=schedule.max_held_bytes,
        )
        self.world = World(schedule.seed, schedule.faults, schedule.network, self._main, trace=trace)
        self.start_us = self.world.now_us + 2_000
        self.world.last_fault_us = self.start_us + self.workload.duration_us
        self.sink: SimulatedSink | None = None
        self.roles = roles_of(protocol, self.layout)
        self._late_rows: dict[str, int] = {}  # of tasks that have finished

    def run(self) -> SimulatedSink:
        """To the end of the job; raises `Violation`."""
        for name, kind in self.roles.items():
            self.world.launch(name, kind, self.world.random.randrange(3_000))
        self.world.launch(JANITOR, "janitor", 5_000)
        self.world.run(self._done, PATIENCE_MS)
        if self.sink is None:
            raise Violation("the sink never started")
        return self.sink

    def _done(self) -> bool:
        """The sink has it all, and every task knows that it is done: one that died after its END recovers first."""
        if self.sink is None or not self.sink.finished():
            return False
        return self.protocol.guarantee is Guarantee.NONE or self._late_rows.keys() == self.layout.job.tasks.keys()

    @property
    def late_rows(self) -> int:
        """What all tasks have dropped."""
        return sum(self._late_rows.values())

    def _main(self, process: Process) -> None:
        log = SimulatedLog(process)
        if process.kind == "janitor":
            self._tidy(process, log)
        process.instance = log.increment(f"instance/{process.name}")
        parts: dict[str, Any] = {
            "job": self.layout.job,
            "name": process.name,
            "instance": process.instance,
            "log": log,
            "snapshots": SimulatedSnapshots(process),
            "uploads": SimulatedUploads(process),
            "channel": SimulatedChannel(process),
            "now_us": lambda: self.world.now_us,
        }
        role, ctx = self._build(process, parts)
        process.finished = role.finished
        try:
            role.recover()
            self._drive(process, role, Reporter(ctx, role, process.instance, self.schedule.report_interval_ms))
        except Trimmed:
            # Bounds follow what is committed. Who commits nothing may find that its zombie had the log trimmed.
            if self.protocol.guarantee is not Guarantee.NONE:
                raise

    def _build(self, process: Process, parts: dict[str, Any]) -> tuple[Role, Context]:
        job, layout, name = self.layout.job, self.layout, process.name
        if process.kind == "task":
            stage = next(stage for stage in layout.graph.stages if stage.name == layout.stage_of(name))
            operator = stage.logic.build()
            task_ctx = TaskContext(plan=job.tasks[name], state=operator.state, **parts)
            return Task(task_ctx, layout, operator, self.protocol), task_ctx
        ctx = Context(**parts)
        if process.kind == "coordinator":
            return CoordinatorRole(self.protocol.coordinator(ctx)), ctx
        if process.kind == "sink":
            doomed = any(fault.role == SINK for fault in self.schedule.faults)
            self.sink = SimulatedSink(
                ctx, layout, self.protocol, start_us=self.start_us, base_us=0, last=self.sink, save=doomed
            )
            return self.sink, ctx
        share = Share(index=job.sources.index(name), sources=len(job.sources), total=self.schedule.events, block=BLOCK)
        return Source(ctx, layout, self.workload, share, self.start_us), ctx

    def _drive(self, process: Process, role: Role, reporter: Reporter) -> None:
        """What runners.worker does with a real clock."""
        world = self.world
        while True:
            now_ms = world.now_us / 1000
            moved = role.step(now_ms)
            reporter.step(now_ms)
            if isinstance(role, Task) and role.finished():
                self._late_rows[process.name] = role.late_rows
            if isinstance(role, Task) and role.held_bytes > self.layout.job.max_held_bytes:
                raise Violation(f"{process} holds {role.held_bytes} bytes back, more than it may")
            if moved:
                world.pause(process, process.pace_us // 4)
            else:
                world.wait(process, role.inputs(), max(300, int(min(role.due_ms(now_ms), 20.0) * 1000)))

    def _tidy(self, process: Process, log: SimulatedLog) -> None:
        """The supervisor's part: read the reports, cut the log."""
        process.instance = len(self.world.processes[process.name])
        reports = Reports(log, position=log.first() - 1, keep_history=False)
        roles = tuple(self.roles)
        while True:
            reports.poll()
            reports.trim(roles)
            self.world.pause(process, self.world.random.randrange(3_000, 12_000))


def roles_of(protocol: Protocol, layout: Layout) -> dict[str, str]:
    """Every role that a job needs, and its kind."""
    job = layout.job
    coordinators = tuple(protocol.coordinators(job))
    kinds = {"source": job.sources, "task": tuple(job.tasks), "coordinator": coordinators, "sink": (SINK,)}
    return {name: kind for kind, names in kinds.items() for name in names}


def simulate(protocol: Protocol, query: str, schedule: Schedule, *, trace: bool = False) -> Outcome:
    """Run one schedule and judge it."""
    simulation = Simulation(protocol, QUERIES[query], schedule, trace=trace)
    exact, failure = False, None
    gc.disable()  # a world is short-lived, and looking through it again and again for garbage takes a fifth of the time
    try:
        sink = simulation.run()
        exact, failure = judge(protocol.guarantee, QUERIES[query], simulation.workload, sink, simulation.late_rows)
    except Violation as violation:
        failure = str(violation)
    finally:
        gc.enable()
    return Outcome(schedule, failure, exact, simulation.world)
