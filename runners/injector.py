"""Faults that are real: signals to processes, a log that is slow or full on purpose; and the proof that they happened.

The injector has a thread of its own on the driver, because a fault must end in time even when the supervisor is itself
waiting for the log. A target is first stopped, looked at while it stands still, and only then killed: so what was
destroyed is known exactly. A target that had nothing to lose is let go and stopped again a little later.
"""

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from protocols.base import Guarantee, Phase
from runners.faults import CONDITIONS, Failure, Fault
from runners.plan import SINK
from runners.strike import Strike, await_stopped, born_s, executor_of, is_stopped, signalled
from runners.vitals import Seen, Ward
from runners.worker import RunSpec, wall_us
from sharedlog.errors import LogFull, Trimmed
from sharedlog.log import Entry, Header, Kind, SharedLog

IDLE_S = 0.005
LOOK_AGAIN_S = 0.003
LOOK_AGAIN_AT_MOST_S = 0.1
STOP_S = 1.0
CONDITION_S = 20.0
LAG_S = 1.0
PROBE = "probe"


@dataclass
class Lasting:
    """A fault that is still on, and what ends it."""

    until_us: int
    end: Callable[[], None]


class Injector:
    """Carries out the faults of one run. `start` when the clock is known, `end` when the run is over."""

    def __init__(
        self, spec: RunSpec, failure: Failure, ward: Ward, log: SharedLog, record: Callable[..., None]
    ) -> None:
        self._spec = spec
        self._failure = failure
        self._ward = ward
        self._log = log
        self._record = record
        self._rng = random.Random(failure.seed)
        self._coordinators = tuple(spec.protocol.coordinators(spec.job))
        self._lasting: list[Lasting] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._pending: list[Fault] = []
        self.strikes: list[Strike] = []
        self.replaced: dict[tuple[str, int], int] = {}  # (role, instance) → when the supervisor called it hung
        self.guarded: Sequence[int] = ()  # processes that the guard of the log's lock killed
        self.trouble: list[str] = []

    def start(self, start_us: int, duration_s: float) -> None:
        self._start_us = start_us
        self._pending = self._failure.schedule(duration_s)
        self._thread = threading.Thread(target=self._run, name="injector", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Nobody stays paused after a run, and the log is as it was."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(CONDITION_S)
        for lasting in self._lasting:
            lasting.end()
        self._lasting.clear()
        for role in self._spec.roles():  # whoever stopped in a phase that nobody came to
            for instance in self._ward.instances(role):
                seen = self._ward.look(role, instance)
                if is_stopped(seen.pid):
                    signalled(seen.pid, signal.SIGCONT)
        self._follow()

    def missing(self) -> list[str]:
        """Why the faults of this run do not count, if they do not."""
        reasons = list(self.trouble)
        for strike in self.strikes:
            if why := strike.unproven():
                reasons.append(f"the {strike.fault.kind} of {strike.role or 'the log'} is not proven: {'; '.join(why)}")
        if self._pending:
            reasons.append(f"{len(self._pending)} faults were never injected")
        return reasons

    def _run(self) -> None:
        try:
            while not self._over.wait(IDLE_S):
                now_us = wall_us()
                self._release(now_us)
                while self._pending and now_us >= self._start_us + self._pending[0].at_s * 1e6:
                    self._strike(self._pending.pop(0))
                self._follow()
        except Exception as error:  # a fault that failed to happen must not look like one that never was planned
            self.trouble.append(f"the injector failed: {type(error).__name__}: {error}")
            self._record("injector_failed", error=repr(error))

    def _release(self, now_us: int) -> None:
        for lasting in [lasting for lasting in self._lasting if now_us >= lasting.until_us]:
            self._lasting.remove(lasting)
            lasting.end()

    def _wait(self, seconds: float) -> None:
        """A fault that lasts ends in time, also while the next one waits for its moment."""
        time.sleep(seconds)
        self._release(wall_us())

    # Who, and when.

    def _strike(self, fault: Fault) -> None:
        if fault.kind in ("slow_log", "full_log"):
            self._stress(fault)
        elif fault.kind == "log_stall":
            self._stall(fault)
        elif fault.kind == "kill_executor":
            self._kill_executor(fault)
        else:
            targets = fault.candidates(self._spec.job, self._coordinators)
            chosen = self._rng.sample(targets, fault.targets or len(targets))
            self._strike_roles(fault, [self._aim(fault, role) for role in chosen])

    def _aim(self, fault: Fault, role: str) -> Strike:
        seen = self._living(role)
        task = role in self._spec.job.tasks
        return Strike(
            fault=fault,
            role=role,
            pid=seen.pid,
            instance=seen.instance,
            born_s=born_s(seen.pid),
            must_work=fault.when != "time",
            must_lag=task and self._spec.protocol.guarantee is Guarantee.NONE and fault.when != "time",
        )

    def _living(self, role: str) -> Seen:
        """The newest instance, once it has recovered: a fault at the wrong moment would be another fault."""
        deadline = time.monotonic() + CONDITION_S
        while not self._over.is_set() and time.monotonic() < deadline:
            seen = self._ward.newest(role)
            if seen is not None and seen.restored_us and born_s(seen.pid):
                return seen
            self._wait(LOOK_AGAIN_S)
        seen = self._ward.newest(role)
        if seen is None:
            raise RuntimeError(f"{role} never started")
        return seen

    def _strike_roles(self, fault: Fault, strikes: Sequence[Strike]) -> None:
        phase = CONDITIONS[fault.when]
        if phase is None or phase is Phase.RECOVERY:
            ready = self._stop_at_work(strikes)
        elif self._spec.protocol.guarantee is Guarantee.NONE:
            ready = False  # who promises nothing commits nothing; waiting for it would only delay what comes next
        else:
            ready = self._stop_in_phase(strikes[0], phase)
        if not ready:
            self._give_up(strikes)
            return
        self._finish(strikes)
        if phase is Phase.RECOVERY:
            self._strike_recovery(strikes[0])

    def _strike_recovery(self, first: Strike) -> None:
        """The successor is stopped by itself where its state is restored and nothing has been done with it."""
        seen = self._successor(first)
        second = Strike(
            fault=first.fault, role=first.role, instance=seen.instance, pid=seen.pid, born_s=born_s(seen.pid)
        )
        if self._stop_in_phase(second, Phase.RECOVERY, armed=True):
            self._finish([second])
        else:
            self._give_up([second])

    def _give_up(self, strikes: Sequence[Strike]) -> None:
        """The moment never came. Of a repeated fault that is one less; a single one was what the run was for."""
        for strike in strikes:
            signalled(strike.pid, signal.SIGCONT)
            self._record("missed", kind=strike.fault.kind, when=strike.fault.when, role=strike.role)
        if not self._failure.every_s:
            names = ", ".join(strike.role for strike in strikes)
            fault = strikes[0].fault
            self.trouble.append(f"the {fault.kind} of {names} never found its moment ({fault.when})")

    def _successor(self, strike: Strike) -> Seen:
        deadline = time.monotonic() + CONDITION_S
        while time.monotonic() < deadline and not self._over.is_set():
            seen = self._ward.newest(strike.role)
            if seen is not None and seen.instance > strike.instance:
                return seen
            self._wait(LOOK_AGAIN_S)
        raise RuntimeError(f"{strike.role} has no successor within {CONDITION_S:.0f} s")

    def _stop_at_work(self, strikes: Sequence[Strike]) -> bool:
        """All stopped in one moment in which there is something to lose, and nobody holds the log's lock."""
        deadline = time.monotonic() + CONDITION_S
        between_s = LOOK_AGAIN_S  # longer and longer: looking again and again must not keep the targets from working
        while True:
            for strike in strikes:
                signalled(strike.pid, signal.SIGSTOP)
            for strike in strikes:
                strike.stopped = await_stopped(strike.pid, STOP_S)
                self._look(strike)
            if self._worth_it(strikes):
                return True
            if time.monotonic() > deadline or self._over.is_set():
                return False
            for strike in strikes:
                signalled(strike.pid, signal.SIGCONT)
            self._wait(between_s * self._rng.uniform(1, 3))
            between_s = min(1.2 * between_s, LOOK_AGAIN_AT_MOST_S)

    def _worth_it(self, strikes: Sequence[Strike]) -> bool:
        pauses = strikes[0].fault.kind == "pause"
        holder = self._log.write_lock_holder()
        if pauses and any(strike.pid == holder for strike in strikes):
            return False  # everybody would be waiting: that is another fault, log_stall
        for strike in strikes:
            if strike.must_work and not (strike.entries if strike.role in self._spec.job.tasks else strike.job_entries):
                return False
        return self._await_lag([strike for strike in strikes if strike.must_lag])

    def _await_lag(self, strikes: Sequence[Strike]) -> bool:
        """Until one of those who are struck together has unread input; whether one has.

        All of them at once stand still, so only those who read from somebody else can still get some. And not for
        long: who stands still beyond the heartbeat timeout gets a successor.
        """
        deadline = time.monotonic() + LAG_S
        while strikes and not any(strike.lag_entries for strike in strikes) and time.monotonic() < deadline:
            self._wait(LOOK_AGAIN_S)
            for strike in strikes:
                self._look(strike)
        for strike in strikes:
            strike.shared_lag_entries = sum(other.lag_entries for other in strikes)
        return not strikes or strikes[0].shared_lag_entries > 0

    def _stop_in_phase(self, strike: Strike, phase: Phase, *, armed: bool = False) -> bool:
        """The target stops itself on entering the phase; whoever plays the role then is the one who is struck."""
        if not armed:
            self._ward.arm(strike.role, phase)
        deadline = time.monotonic() + CONDITION_S
        while time.monotonic() < deadline and not self._over.is_set():
            seen = self._ward.newest(strike.role)
            if seen is not None and seen.phase == phase and await_stopped(seen.pid, 0.001):
                strike.pid, strike.instance, strike.born_s = seen.pid, seen.instance, born_s(seen.pid)
                strike.stopped, strike.phase = True, int(phase)
                self._look(strike)
                return True
            self._wait(0.0005)
        self._ward.disarm(strike.role)
        return False

    def _look(self, strike: Strike) -> None:
        """What the target, standing still, would lose now."""
        seen = self._ward.look(strike.role, strike.instance)
        strike.entries, strike.bytes = seen.entries, seen.bytes
        others = [self._ward.newest(task) for task in self._spec.job.tasks]
        strike.job_entries = sum(other.entries for other in others if other is not None)
        plan = self._spec.job.tasks.get(strike.role)
        strike.lag_entries = self._unread(dict(zip(plan.inputs, seen.positions, strict=False))) if plan else 0

    def _unread(self, positions: Mapping[str, int]) -> int:
        """Entries behind these positions; of a target that has not read yet, those that are still there."""
        first = self._log.first()
        count = 0
        for tag, after in positions.items():
            with contextlib.suppress(Trimmed):  # just now: what was cut was read by whoever matters
                count += len(self._log.read(tag, max(after, first - 1), max_bytes=1 << 20))
        return count

    # What is done.

    def _finish(self, strikes: Sequence[Strike]) -> None:
        """Strike all of them, now that they stand still. The second death in a recovery is armed before the first."""
        for strike in strikes:
            if strike.fault.when == "recovery" and strike.phase is None:
                self._ward.arm(strike.role, Phase.RECOVERY)
            strike.time_us = wall_us()
            if strike.kills:
                signalled(strike.pid, signal.SIGKILL)
            else:
                until_us = strike.time_us + int(strike.fault.for_s * 1e6)
                self._lasting.append(Lasting(until_us, lambda strike=strike: self._resume(strike)))  # type: ignore[misc]
        for strike in strikes:
            self.strikes.append(strike)
            self._record("injection", **strike.injection())

    def _resume(self, strike: Strike) -> None:
        if born_s(strike.pid) != strike.born_s and strike.pid in self.guarded:
            strike.facts["ended_by"] = "the guard of the log's lock"
        elif not signalled(strike.pid, signal.SIGCONT):
            strike.trouble.append("the paused process was gone before it could be continued")
        strike.resumed_us = wall_us()
        self._record("resumed", role=strike.role, pid=strike.pid, instance=strike.instance)

    def _kill_executor(self, fault: Fault) -> None:
        """The executor of the first fitting role that does not host the sink; all its roles die with it."""
        hosts = {role: executor_of(self._living(role).pid) for role in self._spec.roles()}
        wanted = fault.candidates(self._spec.job, self._coordinators)
        executor = next((hosts[role] for role in wanted if hosts[role] and hosts[role] != hosts[SINK]), None)
        if executor is None:
            self.trouble.append("kill_executor: no executor hosts a target without hosting the sink")
            return
        strikes = [self._aim(fault, role) for role, host in hosts.items() if host == executor and role != SINK]
        for strike in strikes:
            self._look(strike)
            strike.facts["executor_pid"] = executor
        now_us = wall_us()
        signalled(executor, signal.SIGKILL)
        for strike in strikes:
            strike.time_us = now_us
            self.strikes.append(strike)
            self._record("injection", **strike.injection())

    def _stress(self, fault: Fault) -> None:
        """The driver's own appends show that the log is slow or full."""
        strike = Strike(fault=fault)
        strike.facts["append_ms_before"] = self._probe()
        stress = self._spec.log.stress()
        stress.set(append_delay_ms=round(fault.delay_ms), full=fault.kind == "full_log")
        strike.time_us = wall_us()
        self.strikes.append(strike)
        self._record("injection", **strike.injection())
        during = self._probe()
        strike.facts["append_ms_during"] = during
        refused = during is None
        if refused != (fault.kind == "full_log") or (during is not None and during < fault.delay_ms):
            strike.trouble.append(f"an append took {during} ms while the fault was on")

        def relieve() -> None:
            stress.clear()
            strike.resumed_us = wall_us()
            self._record("resumed", kind=fault.kind)

        self._lasting.append(Lasting(strike.time_us + int(fault.for_s * 1e6), relieve))

    def _probe(self) -> float | None:
        """How long an append takes now, in ms; None when it is refused."""
        began = time.monotonic()
        try:
            self._log.append([Entry((PROBE,), Header(Kind.REPORT, PROBE, 1, time_us=wall_us()), b"")])
        except LogFull:
            return None
        return (time.monotonic() - began) * 1000

    def _stall(self, fault: Fault) -> None:
        """Stop whoever holds the write lock, and see that it still holds it while it stands still."""
        pids = {seen.pid: seen for role in self._spec.roles() if role != SINK and (seen := self._ward.newest(role))}
        deadline = time.monotonic() + CONDITION_S
        while time.monotonic() < deadline and not self._over.is_set():
            holder = self._log.write_lock_holder()
            if holder not in pids or holder is None:
                continue
            signalled(holder, signal.SIGSTOP)
            if await_stopped(holder, STOP_S) and self._log.write_lock_holder() == holder:
                strike = Strike(fault=fault, role=pids[holder].role, pid=holder, instance=pids[holder].instance)
                strike.stopped, strike.born_s = True, born_s(holder)
                self._finish([strike])
                return
            signalled(holder, signal.SIGCONT)
            self._wait(LOOK_AGAIN_S)
        self.trouble.append("log_stall: nobody was caught holding the log's write lock")

    # What came of it.

    def _follow(self) -> None:
        """Look for the end of the killed, and for who came after them."""
        for strike in self.strikes:
            if strike.kills and not strike.gone:
                strike.gone = born_s(strike.pid) != strike.born_s
            if strike.role and not strike.restored_us:
                self._follow_successor(strike)

    def _follow_successor(self, strike: Strike) -> None:
        later = [number for number in self._ward.instances(strike.role) if number > strike.instance]
        if not later:
            return
        seen = self._ward.look(strike.role, later[0])
        hung_us = self.replaced.get((strike.role, strike.instance), 0)
        strike.successor, strike.begun_us = seen.instance, seen.begun_us
        strike.detected_by = "heartbeat" if hung_us else "spark"
        strike.detected_us = hung_us or seen.born_us
        if seen.restored_us:
            strike.restored_us = seen.restored_us
            strike.entries_read, strike.changes_applied = seen.entries_read, seen.changes_applied
