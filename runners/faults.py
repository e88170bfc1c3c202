"""Which faults a run shall have: what is done to whom, and when. Values from configs/failure/<name>.yaml.

`runners.injector` carries them out.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from protocols.base import Job, Phase
from runners.plan import SINK

LASTING = ("pause", "slow_log", "full_log", "log_stall")
KINDS = {
    "kill": "SIGKILL of the processes of the targets, at the same moment",
    "pause": "SIGSTOP of the target, and SIGCONT after for_s; beyond the heartbeat timeout it meets its successor",
    "kill_executor": "SIGKILL of the Spark executor that hosts the target, with all roles on it",
    "slow_log": "every append takes delay_ms longer, for for_s",
    "full_log": "every append finds the disk full, for for_s",
    "log_stall": "SIGSTOP of whoever holds the log's write lock, for for_s",
}
OF_THE_LOG = ("slow_log", "full_log", "log_stall")
CONDITIONS = {
    "time": None,  # whatever the target is doing
    "uncommitted": None,  # as soon as the target has work that is not committed
    "commit": Phase.COMMIT,
    "snapshot": Phase.SNAPSHOT,
    "recovery": Phase.RECOVERY,  # kill, and kill the successor while it recovers
}
LAST_S = 1.0  # a repeated fault keeps this distance from the end of the input, so that there is something to strike


class FaultError(ValueError):
    """A fault that cannot be injected as configured."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault. `role` is a role (count/0), a pattern (count/*), or a group (tasks, sources, coordinators).

    `targets` says how many of the fitting roles are struck; 0 means all of them. The earliest moment is `at_s` seconds
    into the input; `when` names the condition that is then waited for.
    """

    kind: str
    at_s: float
    role: str = "tasks"
    targets: int = 1
    when: str = "uncommitted"
    for_s: float = 0.0
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        _choice("kind", self.kind, KINDS)
        _choice("when", self.when, CONDITIONS)
        for name, most in (("at_s", 1e6), ("for_s", 3600), ("delay_ms", 60_000), ("targets", 10_000)):
            _number(name, getattr(self, name), most)
        if not isinstance(self.targets, int):
            raise FaultError(f"targets must be a whole number, got {self.targets!r}; 0 means all")
        if not isinstance(self.role, str) or not self.role:
            raise FaultError(f"role must be a name, a pattern such as count/* or a group, got {self.role!r}")
        if (self.kind in LASTING) != (self.for_s > 0):
            raise FaultError(f"a {self.kind} has for_s={self.for_s}; {', '.join(LASTING)} need for_s > 0, others none")
        if (self.kind == "slow_log") != (self.delay_ms > 0):
            raise FaultError(f"a {self.kind} has delay_ms={self.delay_ms}; slow_log needs delay_ms > 0, others none")
        if self.when in ("commit", "snapshot", "recovery") and (
            self.kind not in ("kill", "pause") or self.targets != 1
        ):
            raise FaultError(f"when={self.when} is for a kill or pause of one target, not for this {self.kind}")
        if self.when == "recovery" and self.kind != "kill":
            raise FaultError("when=recovery needs kind=kill: without a death nobody recovers")

    def candidates(self, job: Job, coordinators: Sequence[str]) -> list[str]:
        """The roles that fit. The sink is the measuring instrument and never struck."""
        groups: Mapping[str, Sequence[str]] = {
            "sources": job.sources,
            "tasks": tuple(job.tasks),
            "coordinators": coordinators,
        }
        if self.role in groups:
            return list(groups[self.role])
        roles = [*job.sources, *job.tasks, *coordinators]
        return [role for role in roles if fnmatchcase(role, self.role) and role != SINK]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The faults of one run. With `every_s` each is repeated to the end of the input.

    `seed` decides which of several fitting roles are struck, and how the moments of repeated faults are shaken.
    """

    faults: tuple[Fault, ...] = ()
    every_s: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        _number("every_s", self.every_s, 1e6)
        if not isinstance(self.faults, list | tuple) or not all(isinstance(fault, Fault) for fault in self.faults):
            raise FaultError(f"faults must be a list of faults, got {str(self.faults)[:60]}; failure=kill makes one")
        if 0 < self.every_s < 0.1:
            raise FaultError(f"every_s={self.every_s} leaves no time to recover; use 0.1 or more, or 0 for once")

    def schedule(self, duration_s: float) -> list[Fault]:
        """In order of time, repetitions spelled out. A repeated fault is moved by up to a fifth of its interval."""
        rng = random.Random(self.seed)
        if not self.every_s:
            return sorted(self.faults, key=lambda fault: fault.at_s)
        planned = []
        first = min((fault.at_s for fault in self.faults), default=duration_s)
        for turn in range(math.ceil(max(0.0, duration_s - first) / self.every_s)):
            at_s = first + self.every_s * (turn + rng.uniform(0, 0.2))
            fault = rng.choice(self.faults)
            if at_s < duration_s - LAST_S:
                planned.append(replace(fault, at_s=at_s))
        return planned

    def check(self, job: Job, coordinators: Sequence[str], duration_s: float, *, executors: int) -> None:
        """Every fault has a target in this job, a place to happen and a time inside the input."""
        for fault in self.faults:
            if not self.every_s and fault.at_s >= duration_s:
                raise FaultError(f"at_s={fault.at_s} is after the end of the input at {duration_s} s")
            if fault.kind == "kill_executor" and executors < 2:
                raise FaultError("kill_executor needs a cluster with executors to spare; use cluster=local_cluster")
            found = len(fault.candidates(job, coordinators))
            if fault.kind in OF_THE_LOG:
                continue
            if not found:
                roles = [*job.sources, *job.tasks, *coordinators]
                raise FaultError(f"no role fits {fault.role!r}; this job has {', '.join(roles)}")
            if fault.targets > found:
                raise FaultError(f"targets={fault.targets}, but only {found} roles fit {fault.role!r}")


def one(*, every_s: float = 0.0, seed: int = 1, **fault: Any) -> Failure:
    """configs/failure/<kind>.yaml: one kind of fault, once or again and again."""
    try:
        return Failure(faults=(Fault(**fault),), every_s=every_s, seed=seed)
    except TypeError as error:
        raise FaultError(str(error).replace("Fault.__init__()", "a fault")) from error


def mixed(*, faults: Sequence[Mapping[str, Any]], at_s: float, every_s: float, seed: int) -> Failure:
    """configs/failure/mixed.yaml: a seeded choice among several kinds, again and again."""
    return Failure(faults=tuple(Fault(at_s=at_s, **fault) for fault in faults), every_s=every_s, seed=seed)


def _choice(name: str, value: str, known: Mapping[str, Any]) -> None:
    if value not in known:
        raise FaultError(f"{name} is {value!r}; use one of {', '.join(known)}")


def _number(name: str, value: Any, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FaultError(f"{name} must be a number, got {value!r}")
    if not 0 <= value <= most:
        raise FaultError(f"{name} must be from 0 to {most:g}, got {value}")
