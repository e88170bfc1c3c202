"""The driver's part in a run: start the clock, watch the roles, trim the log, replace the hung, end in order."""

import contextlib
import json
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocols.base import Guarantee
from runners.display import Display, Status
from runners.faults import Failure
from runners.guard import LockGuard
from runners.injector import Injector
from runners.plan import SINK
from runners.recovery import caught_up_us
from runners.reports import Report, Reports
from runners.resources import Resources, Usage
from runners.spark import SparkJobs
from runners.strike import born_s
from runners.vitals import Ward
from runners.worker import START_KEY, RoleResult, RunSpec, wall_us
from sharedlog.log import SharedLog

POLL_S = 0.05
TRIM_S = 0.5
GRACE_S = 3.0
START_TIMEOUT_S = 90.0


class RunFailed(RuntimeError):
    """A run that could not go on; the message is for the user."""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What the supervisor must know beside the run itself."""

    duration_s: float
    drain_timeout_s: float
    heartbeat_timeout_ms: float
    log_lock_timeout_ms: float
    trim: bool
    failure: Failure


@dataclass
class Outcome:
    """All that is known when the clock has stopped."""

    complete: bool = False
    reasons: list[str] = field(default_factory=list)
    start_us: int = 0
    end_us: int = 0
    restarts: int = 0
    results: dict[str, RoleResult] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    lag: list[tuple[float, int]] = field(default_factory=list)  # (seconds since the start, rows), once a second
    pulse: list[tuple[int, float, int]] = field(default_factory=list)  # (time in µs, ms a reader is behind, rows)
    usage: list[Usage] = field(default_factory=list)
    log_peak_bytes: int = 0
    instances: dict[str, int] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)


class Recorder:
    """events.jsonl: what happened, each with wall-clock milliseconds. Written to by several threads."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 (closed by close)
        self._lock = threading.Lock()

    def __call__(self, event: str, **details: Any) -> None:
        line = json.dumps({"time_ms": wall_us() / 1000, "event": event, **details}) + "\n"
        with self._lock:
            self._file.write(line)

    def close(self) -> None:
        self._file.close()


class Supervisor:
    """Watches one run. `run` returns when all roles are gone, also after an interrupt."""

    def __init__(
        self, spec: RunSpec, jobs: SparkJobs, log: SharedLog, record: Recorder, display: Display, watch: Watch
    ) -> None:
        self._spec = spec
        self._jobs = jobs
        self._log = log
        self._record = record
        self._display = display
        self._watch = watch
        self._reports = Reports(log)
        self._roles = spec.roles()
        self._first_stage = {
            name for name, plan in spec.job.tasks.items() if set(plan.inputs) & set(spec.job.source_tags)
        }
        self._ward = Ward(Path(spec.vitals))
        self._injector = Injector(spec, watch.failure, self._ward, log, record)
        self._guard = LockGuard(log, watch.log_lock_timeout_ms, record)
        self._injector.guarded = self._guard.killed
        self._resources = Resources()
        self._replaced: set[tuple[str, int]] = set()
        self._begun_us: dict[tuple[str, int], int] = {}  # when an instance without a report was first noticed
        self._pids: set[int] = set()
        self._trimmed_s = self._sampled_s = 0.0
        self.outcome = Outcome()

    def run(self) -> Outcome:
        outcome = self.outcome
        self._jobs.submit(self._roles)
        self._guard.start()
        try:
            self._await_roles()
            self._start_clock()
            self._watch_until_done()
            outcome.complete = True
        except KeyboardInterrupt:
            outcome.reasons.append("interrupted")
            self._record("interrupted")
        except RunFailed as failure:
            outcome.reasons.append(str(failure))
            self._record("failed", reason=str(failure))
        finally:
            self._end()
        self._collect()
        return outcome

    def _await_roles(self) -> None:
        """All roles have an instance number and have reported."""
        self._record("start", roles=len(self._roles))
        deadline = time.monotonic() + START_TIMEOUT_S
        while missing := [role for role in self._roles if role not in self._reports.newest]:
            if time.monotonic() > deadline:
                raise RunFailed(f"{len(missing)} roles did not start within {START_TIMEOUT_S:.0f} s: {missing[:5]}")
            self._check_jobs()
            self._poll()
            time.sleep(0.01)

    def _start_clock(self) -> None:
        # A little ahead, so that sources and sink know the start before it comes.
        self.outcome.start_us = wall_us() + 100_000
        content = json.dumps({"start_us": self.outcome.start_us}).encode()
        self._spec.log.snapshots().put(START_KEY, [content])
        self._record("clock", start_us=self.outcome.start_us)
        self._injector.start(self.outcome.start_us, self._watch.duration_s)

    def _watch_until_done(self) -> None:
        moved_at, moved_rows = time.monotonic(), -1
        while self._jobs.running:
            time.sleep(POLL_S)
            self._poll()
            self._check_jobs()
            self._replace_hung()
            now = time.monotonic()
            status = self._status()
            self._take_pulse(status)
            if now - self._sampled_s >= 1.0:
                self._sampled_s = now
                self.outcome.lag.append((status.elapsed_s, status.lag_rows))
                log_bytes = self._log.size_bytes()
                self.outcome.log_peak_bytes = max(self.outcome.log_peak_bytes, log_bytes)
                self.outcome.usage.append(self._resources.sample(status.elapsed_s, self._pids, log_bytes))
            if self._watch.trim and now - self._trimmed_s >= TRIM_S:
                self._trimmed_s = now
                self._reports.trim(self._roles)
            self._display.update(status)
            if status.rows != moved_rows or status.elapsed_s < self._watch.duration_s:
                moved_at, moved_rows = now, status.rows
            elif now - moved_at > self._watch.drain_timeout_s:
                raise RunFailed(
                    f"no progress for {self._watch.drain_timeout_s:.0f} s after the end of input; rows or ENDs are lost"
                )

    def _take_pulse(self, status: Status) -> None:
        """How far behind the present the sink is: the present, less the event time that it may act on."""
        sink = self._ward.newest(SINK)
        if sink is None or not sink.watermark:
            return
        reached_us = sink.watermark - self._spec.workload.base_time_us
        behind_ms = max(0.0, min(status.elapsed_s, self._watch.duration_s) * 1000 - reached_us / 1000)
        self.outcome.pulse.append((wall_us(), behind_ms, status.lag_rows))

    def _check_jobs(self) -> None:
        if self._jobs.errors:
            raise RunFailed(f"Spark gave up a job: {self._jobs.errors[0]}")

    def _poll(self) -> None:
        """Take in reports; a new instance number of a known role is a restart."""
        for report in self._reports.poll():
            self._pids.add(report.content["pid"])
            if failure := report.content.get("failed"):
                raise RunFailed(f"role {report.role} failed: {failure.strip().splitlines()[-1]}\n{failure}")
            known = self.outcome.instances.get(report.role, 0)
            if report.instance > known:
                self.outcome.instances[report.role] = report.instance
                if known:
                    self.outcome.restarts += 1
                    self._record(
                        "restart", role=report.role, instance=report.instance, pid=report.content["pid"],
                        at_ms=report.time_us / 1000,
                    )  # fmt: skip

    def _replace_hung(self) -> None:
        """Spark will not restart what it sees running; a silent role gets a successor in a job of its own."""
        if self._guard.stalled:
            return
        now_us = wall_us()
        for role, report in self._reports.newest.items():
            if role == SINK:  # the instrument: a second one could not go on where the first was
                continue
            seen = self._ward.newest(role)
            beat_us = seen.beat_us if seen is not None and seen.instance >= report.instance else 0
            silent_ms = (now_us - max(report.time_us, beat_us)) / 1000
            if silent_ms < self._watch.heartbeat_timeout_ms or (role, report.instance) in self._replaced:
                continue
            instance = self._log.get(f"instance/{role}")
            if instance > report.instance:
                # One has begun and has not reported yet: it has as long for that as others have between two reports.
                silent_ms = (now_us - self._begun_us.setdefault((role, instance), now_us)) / 1000
                if silent_ms < self._watch.heartbeat_timeout_ms or (role, instance) in self._replaced:
                    continue
            if self._ended(role):
                continue
            if seen is not None and not born_s(seen.pid):
                continue  # dead, not hung: Spark starts the next one
            self._replaced.add((role, instance))
            self._injector.replaced[role, instance] = now_us
            pid = seen.pid if seen is not None else report.content["pid"]
            self._record("hung", role=role, instance=instance, silent_ms=silent_ms, pid=pid)
            self._jobs.submit([role])

    def _ended(self, role: str) -> bool:
        return any(result.role == role and result.status == "done" for result in self._jobs.results)

    def _status(self) -> Status:
        newest = self._reports.newest
        elapsed_s = max(0.0, (wall_us() - self.outcome.start_us) / 1e6)
        due = min(self._spec.workload.count_before(int(elapsed_s * 1e6)), self._spec.total)
        taken = sent = later = 0
        for role, report in newest.items():
            content = report.content
            if role in self._first_stage:
                taken += content.get("rows_in", 0)
            elif role not in self._spec.job.sources:
                later += content.get("rows_in", 0)
            if role in self._spec.job.tasks:
                sent += content.get("rows_out", 0)
        sink = newest[SINK].content
        return Status(
            elapsed_s=elapsed_s,
            duration_s=self._watch.duration_s,
            offered=due,
            processed=taken,
            rows=taken + later,
            lag_rows=max(0, due - taken) + max(0, sent - later),
            visible_p50_us=sink.get("visible_p50_us"),
            visible_p99_us=sink.get("visible_p99_us"),
            commits=self._commits(),
            restarts=self.outcome.restarts,
        )

    def _commits(self) -> int:
        """Of the tasks' present instances, as they tell; what a commit is, the protocol knows."""
        seen = [self._ward.newest(name) for name in self._spec.job.tasks]
        return sum(one.commits for one in seen if one is not None)

    def _end(self) -> None:
        """Everyone gone: by their own will, else by Spark's, else by ours. A second Ctrl-C does not stop this."""
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._injector.end()
            if not self.outcome.complete:
                self._log.increment("abort")
            if not self._jobs.join(GRACE_S):
                self._jobs.cancel()
                for pid in self._pids:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGCONT)
                        os.kill(pid, signal.SIGKILL)
                self._jobs.join(GRACE_S)
            self._guard.end()
            self.outcome.end_us = wall_us()
            with contextlib.suppress(RunFailed):
                self._poll()
        finally:
            signal.signal(signal.SIGINT, previous)

    def _collect(self) -> None:
        """The newest instance's result of every role."""
        for result in sorted(self._jobs.results, key=lambda result: result.instance):
            if result.status in ("done", "aborted") or result.role not in self.outcome.results:
                self.outcome.results[result.role] = result
        self.outcome.reports = self._reports.history
        self._judge_recovery()
        if self.outcome.complete:
            self.outcome.reasons += [*self._injector.missing(), *self._unexplained()]
        self.outcome.faults = [strike.proof() for strike in self._injector.strikes]
        self._record("end", complete=self.outcome.complete, restarts=self.outcome.restarts)

    def _unexplained(self) -> list[str]:
        """A start that no fault accounts for is a fault that nobody planned. A full log may end a role many times."""
        strikes = self._injector.strikes
        if self._guard.killed or any(strike.fault.kind == "full_log" for strike in strikes):
            return []
        if self._replaced and self._spec.protocol.guarantee is Guarantee.NONE:
            return []  # a zombie may have had the log trimmed under its successor, which then starts once more
        reasons = []
        for role in self._roles:
            starts = len(self._ward.instances(role))
            kills = sum(strike.kills and strike.role == role for strike in strikes)
            hung = sum(replaced == role for replaced, _ in self._replaced)
            if starts != 1 + kills + hung:
                reasons.append(
                    f"{role} was started {starts} times; {kills} kills and {hung} hang-ups explain {1 + kills + hung}"
                )
        return reasons

    def _judge_recovery(self) -> None:
        """Every strike's way back, written down as events too."""
        samples = [(time_us, behind_ms) for time_us, behind_ms, _ in self.outcome.pulse]
        strikes = sorted(self._injector.strikes, key=lambda strike: strike.time_us)
        for strike in strikes:
            later = [other.time_us for other in strikes if other.time_us > strike.restored_us > 0]
            until_us = min(later, default=self.outcome.end_us)
            strike.caught_up_us = caught_up_us(samples, strike.time_us, strike.restored_us, until_us) or 0
            moments = (
                ("detection", strike.detected_us),
                ("restored", strike.restored_us),
                ("caught_up", strike.caught_up_us),
            )
            for event, moment_us in moments:
                if moment_us:
                    self._record(event, role=strike.role, instance=strike.successor, at_ms=moment_us / 1000)
