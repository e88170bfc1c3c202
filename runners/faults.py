"""Faults that are real: signals to the processes of chosen roles, at chosen times, and the proof that they happened."""

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import psutil

from runners.reports import Report


class FaultError(ValueError):
    """A fault that cannot be injected as configured."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Strike the first role whose name fits `role` (a pattern such as `count/*`), `at_s` seconds into the input.

    `kill` ends the process with SIGKILL. `pause` stops it with SIGSTOP for `pause_s` and lets it go on with SIGCONT:
    when that is longer than the heartbeat timeout, it wakes up beside its successor.
    """

    kind: str
    role: str
    at_s: float
    pause_s: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("kill", "pause"):
            raise FaultError(f"fault kind is {self.kind!r}; use kill or pause")
        if not self.role:
            raise FaultError("a fault needs a role pattern, such as count/0 or coordinator/*")
        if not 0 <= self.at_s < 1e6:
            raise FaultError(f"fault at_s is {self.at_s}; use a time inside the run")
        if (self.kind == "pause") != (self.pause_s > 0):
            raise FaultError(f"a {self.kind} has pause_s={self.pause_s}; a pause needs pause_s > 0, a kill none")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The faults of one run; a value from configs/failure/<name>.yaml."""

    faults: tuple[Fault, ...] = ()

    def check(self, roles: tuple[str, ...], duration_s: float) -> None:
        """Every fault has a target in this job and a time inside the input."""
        for fault in self.faults:
            if not any(fnmatchcase(role, fault.role) for role in roles):
                raise FaultError(f"no role fits {fault.role!r}; this job has {', '.join(roles)}")
            if fault.at_s >= duration_s:
                raise FaultError(f"fault at_s={fault.at_s} is after the end of the input at {duration_s} s")


@dataclass
class Strike:
    """One fault as it really happened."""

    fault: Fault
    role: str
    pid: int
    instance: int
    time_us: int
    born_s: float
    resumed_us: int | None = None
    gone: bool = False
    successor: int | None = None
    successor_us: int | None = None

    def proof(self) -> dict[str, Any]:
        return {
            "kind": self.fault.kind,
            "role": self.role,
            "pid": self.pid,
            "time_ms": self.time_us / 1000,
            "instance_before": self.instance,
            "instance_after": self.successor,
            "restart_ms": (self.successor_us - self.time_us) / 1000 if self.successor_us else None,
            "resumed_ms": self.resumed_us / 1000 if self.resumed_us else None,
            "proven": self.proven,
        }

    @property
    def proven(self) -> bool:
        """A kill: the process is gone and a new instance took over. A pause: it was stopped, and continued."""
        if self.fault.kind == "kill":
            return self.gone and self.successor is not None
        return self.resumed_us is not None


@dataclass
class Injector:
    """Strikes when the time has come; called by the supervisor in every round."""

    failure: Failure
    record: Callable[..., None]
    strikes: list[Strike] = field(default_factory=list)
    _next: int = 0

    def step(self, elapsed_s: float, now_us: int, newest: Mapping[str, Report]) -> None:
        due = sorted(self.failure.faults, key=lambda fault: fault.at_s)
        while self._next < len(due) and elapsed_s >= due[self._next].at_s:
            self._strike(due[self._next], now_us, newest)
            self._next += 1
        for strike in self.strikes:
            self._follow(strike, now_us, newest)

    def _strike(self, fault: Fault, now_us: int, newest: Mapping[str, Report]) -> None:
        role = next(role for role in sorted(newest) if fnmatchcase(role, fault.role))
        report = newest[role]
        pid = int(report.content["pid"])
        strike = Strike(fault, role, pid, report.instance, now_us, _born_s(pid))
        self.strikes.append(strike)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
        self.record("injection", kind=fault.kind, role=role, pid=pid, instance=report.instance)

    def _follow(self, strike: Strike, now_us: int, newest: Mapping[str, Report]) -> None:
        if strike.fault.kind == "kill" and not strike.gone:
            strike.gone = _born_s(strike.pid) != strike.born_s
        paused_s = (now_us - strike.time_us) / 1e6
        if strike.fault.kind == "pause" and strike.resumed_us is None and paused_s >= strike.fault.pause_s:
            self._resume(strike, now_us)
        report = newest.get(strike.role)
        if strike.successor is None and report is not None and report.instance > strike.instance:
            strike.successor, strike.successor_us = report.instance, report.time_us

    def _resume(self, strike: Strike, now_us: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(strike.pid, signal.SIGCONT)
        strike.resumed_us = now_us
        self.record("resumed", role=strike.role, pid=strike.pid, instance=strike.instance)

    def end(self, now_us: int) -> None:
        """Nobody stays paused after a run."""
        for strike in self.strikes:
            if strike.fault.kind == "pause" and strike.resumed_us is None:
                self._resume(strike, now_us)

    def missing(self) -> list[str]:
        """Why the faults of this run do not count, if they do not."""
        reasons = [f"the {s.fault.kind} of {s.role} (pid {s.pid}) is not proven" for s in self.strikes if not s.proven]
        if self._next < len(self.failure.faults):
            reasons.append(f"{len(self.failure.faults) - self._next} faults were never injected")
        return reasons


def _born_s(pid: int) -> float:
    """When the process with this pid began; 0 if there is none (or only its ashes)."""
    try:
        process = psutil.Process(pid)
        return 0.0 if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return 0.0


def kill(role: str, at_s: float) -> Failure:
    """configs/failure/kill.yaml: one SIGKILL."""
    return Failure(faults=(Fault(kind="kill", role=role, at_s=at_s),))


def pause(role: str, at_s: float, pause_s: float) -> Failure:
    """configs/failure/pause.yaml: one SIGSTOP and its SIGCONT."""
    return Failure(faults=(Fault(kind="pause", role=role, at_s=at_s, pause_s=pause_s),))
