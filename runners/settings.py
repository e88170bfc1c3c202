"""One run, as a value: checked on the driver before anything starts."""

import math
from dataclasses import dataclass, fields
from typing import Any

from nexmark.parameters import Query
from nexmark.workload import UNBOUNDED, Workload
from protocols.base import Protocol
from runners.faults import Failure
from sharedlog.log import LogSpec


class ConfigError(ValueError):
    """A configuration that cannot run. Its message is all that the user sees."""


def check_number(name: str, value: Any, least: float, most: float, *, whole: bool = False) -> float:
    """The value, if it is a number in this range. Raises `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a {'whole ' if whole else ''}number, got {value!r}")
    if not least <= value <= most:
        raise ConfigError(f"{name} must be from {least:g} to {most:g}, got {value!r}")
    return value


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `run.py` makes of its configuration."""

    query: Query
    protocol: Protocol
    workload: Workload
    log: LogSpec
    failure: Failure
    names: dict[str, str]  # of the chosen config files: query, protocol, log, cluster, failure
    rate: int
    duration_s: float
    warmup_s: float
    seed: int
    sources: int
    parallelism: int
    flush_interval_ms: float
    flush_bytes: int
    report_interval_ms: float
    heartbeat_timeout_ms: float
    log_lock_timeout_ms: float
    drain_timeout_s: float
    spare_slots: int
    trim: bool
    verify: bool
    keep_log: bool
    keep_samples: bool = False
    repetition: int = 0  # of the same run in a sweep

    def __post_init__(self) -> None:
        for name in ("sources", "parallelism"):  # names of roles are made before slots are counted
            check_number(name, getattr(self, name), 1, 4096, whole=True)
        check_number("flush_bytes", self.flush_bytes, 1, 1 << 30, whole=True)
        for name in ("rate", "seed", "spare_slots", "repetition"):
            check_number(name, getattr(self, name), 0, 1 << 62, whole=True)
        for name in (
            "duration_s",
            "flush_interval_ms",
            "report_interval_ms",
            "heartbeat_timeout_ms",
            "log_lock_timeout_ms",
            "drain_timeout_s",
        ):
            check_number(name, getattr(self, name), 1e-3, 1e7)
        check_number("warmup_s", self.warmup_s, 0, 1e7)
        for name in ("trim", "verify", "keep_log", "keep_samples"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if self.warmup_s >= self.duration_s:
            raise ConfigError(
                f"warmup_s={self.warmup_s} leaves nothing to measure of duration_s={self.duration_s}; shorten it"
            )
        if self.heartbeat_timeout_ms < 3 * self.report_interval_ms:
            raise ConfigError(
                f"heartbeat_timeout_ms={self.heartbeat_timeout_ms} would call healthy roles hung; use at least three"
                f" times report_interval_ms={self.report_interval_ms}"
            )
        if not isinstance(self.failure, Failure):
            raise ConfigError(f"failure must be a list of faults, got {self.failure!r}")
        if not 1 <= self.total < UNBOUNDED:
            raise ConfigError(f"the input has {self.total} events; raise rate or duration_s")

    @property
    def total(self) -> int:
        return self.workload.total

    @property
    def commit_interval_ms(self) -> float | None:
        """The protocol's, if it has one."""
        if "commit_interval_ms" in {field.name for field in fields(self.protocol)}:
            return float(getattr(self.protocol, "commit_interval_ms"))  # noqa: B009 (not every protocol has it)
        return None
