"""One fault as it really happened to one target: what is known of it, and whether that is proof."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from protocols.base import Phase
from runners.faults import Fault


@dataclass(kw_only=True)
class Strike:
    """A fault and its target. Faults of the log have no target role; their `facts` are the proof."""

    fault: Fault
    role: str = ""
    pid: int = 0
    instance: int = 0
    time_us: int = 0
    born_s: float = 0.0
    must_work: bool = False  # uncommitted work of the target is part of the proof
    must_lag: bool = False  # and so is input that it, or another that was struck with it, had not read yet
    phase: int | None = None  # where it was struck, if that was asked for
    entries: int = 0  # processed, but not committed, when it was struck
    bytes: int = 0
    job_entries: int = 0  # the same for all tasks together
    lag_entries: int = 0  # in the log, but not read
    shared_lag_entries: int = 0  # the same for all who were struck together
    gone: bool = False
    stopped: bool = False
    resumed_us: int = 0
    detected_us: int = 0
    detected_by: str = ""
    successor: int = 0
    begun_us: int = 0
    restored_us: int = 0
    caught_up_us: int = 0
    entries_read: int = 0
    changes_applied: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)

    @property
    def kills(self) -> bool:
        return self.fault.kind in ("kill", "kill_executor")

    def unproven(self) -> list[str]:
        """What is missing for a proof, in words."""
        missing = list(self.trouble)
        if self.kills:
            if not self.gone:
                missing.append("the process is still there")
            if not self.successor:
                missing.append("no new instance took over")
        elif self.role and not (self.stopped and self.resumed_us):
            missing.append("it was not seen stopped and continued")
        if self.must_work and not (self.entries or self.job_entries):
            missing.append("nothing was uncommitted")
        if self.must_lag and not (self.lag_entries or self.shared_lag_entries):
            missing.append("it had read all its input")
        return missing

    def split_ms(self) -> dict[str, float | None]:
        """Injection → detection → restart → restored → caught up; null from where it is not known."""
        times = [self.time_us, self.detected_us, self.begun_us, self.restored_us, self.caught_up_us]
        names = ("detect", "restart", "restore", "catch_up")
        split: dict[str, float | None] = {
            name: max(0, after - before) / 1000 if before and after else None
            for name, before, after in zip(names, times[:-1], times[1:], strict=True)
        }
        whole = bool(self.caught_up_us and self.time_us)
        return {**split, "total": (self.caught_up_us - self.time_us) / 1000 if whole else None}

    def proof(self) -> dict[str, Any]:
        """What run.json says of it."""
        return {
            "kind": self.fault.kind,
            "when": self.fault.when,
            "role": self.role or None,
            "pid": self.pid or None,
            "time_ms": self.time_us / 1000,
            "instance_before": self.instance or None,
            "instance_after": self.successor or None,
            "phase": Phase(self.phase).name.lower() if self.phase is not None else None,
            "uncommitted_entries": self.entries,
            "uncommitted_bytes": self.bytes,
            "job_uncommitted_entries": self.job_entries,
            "lag_entries": self.lag_entries,
            "shared_lag_entries": self.shared_lag_entries,
            "resumed_ms": self.resumed_us / 1000 if self.resumed_us else None,
            "detected_by": self.detected_by or None,
            "recovery_ms": self.split_ms(),
            "entries_read": self.entries_read,
            "changes_applied": self.changes_applied,
            **self.facts,
            "proven": not self.unproven(),
            "unproven": self.unproven(),
        }

    def injection(self) -> dict[str, Any]:
        """What events.jsonl says at the moment of the fault."""
        proof = self.proof()
        names = ("kind", "when", "role", "pid", "phase", "uncommitted_entries", "uncommitted_bytes", "lag_entries")
        return {**{name: proof[name] for name in names}, "instance": self.instance, "at_ms": proof["time_ms"]}


def born_s(pid: int) -> float:
    """When the process with this pid began; 0 if there is none (or only its ashes)."""
    try:
        process = psutil.Process(pid)
        return 0.0 if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return 0.0


def signalled(pid: int, number: signal.Signals) -> bool:
    """Whether there was a process to send it to."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def is_stopped(pid: int) -> bool:
    """Whether all of the process stands still, as the kernel sees it."""
    try:
        states = [task.read_text().rsplit(")", 1)[1].split()[0] for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (OSError, IndexError):
        return False
    return bool(states) and all(state == "T" for state in states)


def await_stopped(pid: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if is_stopped(pid):
            return True
        time.sleep(0.0002)
    return is_stopped(pid)


def executor_of(pid: int) -> int | None:
    """The JVM that started this Python worker, if it is an executor of its own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for parent in psutil.Process(pid).parents():
            if any("CoarseGrainedExecutorBackend" in word for word in parent.cmdline()):
                return parent.pid
    return None
