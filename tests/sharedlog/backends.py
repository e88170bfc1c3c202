"""The backends that the conformance suite runs against. A new one is one line in `BACKENDS`."""

import atexit
import functools
import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sharedlog.embedded import EmbeddedLogSpec
from sharedlog.log import LogSpec
from sharedlog.memory import MemoryLog, MemoryLogSpec

WORKERS = 4
KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Backend:
    """`spec` makes a fresh log, `small_spec` one that holds `small_bytes` of payload at most.

    `workers` is where concurrent users of one log run: real processes, unless the log lives in one.
    """

    name: str
    spec: Callable[[Path], LogSpec]
    small_spec: Callable[[Path], LogSpec]
    workers: Callable[[], Executor]
    small_bytes: int = 512 * KIB


@functools.cache
def processes() -> Executor:
    """Fresh interpreters, never forks of one that has a log open. One pool for all tests, as they start slowly."""
    pool = ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn"))
    atexit.register(pool.shutdown)
    return pool


@functools.cache
def threads() -> Executor:
    return ThreadPoolExecutor(WORKERS)


def embedded(path: Path, *, durability: str = "process", max_bytes: int | None = None) -> EmbeddedLogSpec:
    return EmbeddedLogSpec(
        path=str(path / "log"),
        durability=durability,  # type: ignore[arg-type]
        segment_bytes=64 * KIB,
        max_bytes=max_bytes,
        map_bytes=256 * KIB * KIB,
    )


BACKENDS = [
    Backend(
        name="memory",
        spec=lambda path: MemoryLogSpec(),
        small_spec=lambda path: MemoryLogSpec(log=MemoryLog(max_bytes=512 * KIB)),
        workers=threads,
    ),
    Backend(
        name="embedded",
        spec=embedded,
        small_spec=lambda path: embedded(path, max_bytes=512 * KIB),
        workers=processes,
    ),
    Backend(
        name="embedded-group",
        spec=lambda path: embedded(path, durability="group"),
        small_spec=lambda path: embedded(path, durability="group", max_bytes=512 * KIB),
        workers=processes,
    ),
    Backend(
        name="embedded-always",
        spec=lambda path: embedded(path, durability="always"),
        small_spec=lambda path: embedded(path, durability="always", max_bytes=512 * KIB),
        workers=processes,
    ),
]
