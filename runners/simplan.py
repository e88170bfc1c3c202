"""From a seed to a schedule: the input, how fast everything is, and what goes wrong when."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dataflow.columns import batch_of
from dataflow.samples import EVENT
from nexmark.workload import END_OF_TIME, Int64s, Workload
from runners.simfaults import Action, Fault
from runners.simworld import Network

BLOCK = 6
SOURCES = 2
JANITOR = "janitor"
EVENT_INTERVAL_US = 1_000

# Operations that faults aim at, so that rare ones are hit as often as those that happen all the time. The first list
# is of those that a role does when it starts, and so are hit at its first start or while it recovers.
_STARTING: Mapping[str, tuple[str, ...]] = {
    "source": ("increment", "last", "append"),
    "task": ("increment", "last", "snapshot.get", "snapshot.get", "read", "append", "send", "receive", "tail", "first"),
    "coordinator": ("increment", "last", "read", "append", "send", "receive", "get", "first"),
    "sink": ("increment", "read", "append"),
    "janitor": ("first", "read", "trim"),
}
_RUNNING: Mapping[str, tuple[str, ...]] = {
    "source": ("append",),
    "task": (
        "append",
        "append",
        "read",
        "snapshot.list",
        "snapshot.delete",
        "upload.start",
        "upload.poll",
        "send",
        "receive",
    ),
    "coordinator": ("append", "append", "read", "send", "receive", "snapshot.list", "snapshot.delete", "get"),
    "sink": ("read", "append"),
    "janitor": ("first", "read", "trim"),
}
_SKIPS = {"source": 2, "task": 8, "coordinator": 8, "sink": 1, "janitor": 1}
_WEIGHTS = {"source": 3.0, "task": 8.0, "coordinator": 4.0, "sink": 1.0, "janitor": 0.7}


class TinyWorkload(Workload):
    """Integers with a little disorder; a whole stream of them is a few NumPy arrays.

    Half-way nothing comes for a while: everything is committed then, and the idle must not be forgotten. Event time
    goes on by `step_us` from event to event. Watermarks are exact, or `eager_us` ahead of what is still to come.
    """

    def __init__(self, *, seed: int, total: int, lull_ms: float = 0.0, step_us: int = 150, eager_us: int = 0) -> None:
        self._half, self._lull_us = total // 2, int(lull_ms * 1000)
        draws = np.random.default_rng(seed)
        number = np.arange(total, dtype=np.int64)
        self._rows = {
            "number": number,
            "ts": np.maximum(0, number * step_us - draws.integers(0, 900, total)),
            "key": draws.integers(0, 7, total),
            "value": draws.integers(1, 100, total),
        }
        self._batch = batch_of(EVENT, self._rows)
        self._least = np.minimum.accumulate(self._rows["ts"][::-1])[::-1] + eager_us

    @property
    def total(self) -> int:
        return len(self._least)

    @property
    def duration_us(self) -> int:
        return self.total * EVENT_INTERVAL_US + self._lull_us

    @property
    def base_time_us(self) -> int:
        return 0

    @property
    def timestamps_are_intended(self) -> bool:
        return False

    def events(self, start: int, stop: int) -> pa.RecordBatch:
        return self._batch.slice(start, stop - start)

    def offset_us(self, positions: Int64s) -> Int64s:
        return positions * EVENT_INTERVAL_US + np.where(positions >= self._half, self._lull_us, 0)

    def count_before(self, offset_us: int) -> int:
        before = max(0, min(self._half, -(-offset_us // EVENT_INTERVAL_US)))
        return max(before, min(self.total, -(-(offset_us - self._lull_us) // EVENT_INTERVAL_US)))

    def watermark_after(self, stop: int) -> int:
        return int(self._least[stop]) if stop < self.total else END_OF_TIME

    def rows(self) -> list[dict[str, int]]:
        rows: list[dict[str, int]] = self._batch.to_pylist()
        return rows


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Everything that a seed decides, but the interleaving itself. Faults may be taken out; the rest stays."""

    seed: int
    events: int
    faults: tuple[Fault, ...]
    network: Network
    sources: int = SOURCES
    flush_interval_ms: float = 10
    flush_bytes: int = 64 * 1024
    watermark_interval_ms: float = 25
    max_held_bytes: int = 1 << 20
    report_interval_ms: float = 25
    lull_ms: float = 0
    step_us: int = 150  # event time from one event to the next


def plan(seed: int, roles: Mapping[str, str]) -> Schedule:
    """The schedule of a seed for a job with these roles (name → kind)."""
    draw = random.Random(f"{seed}/plan")
    events = draw.randrange(56, 105, 8)
    lull_ms = draw.choice((0, 0, 60))
    duration_ms = events * EVENT_INTERVAL_US / 1000 + lull_ms
    faults = [_fault(draw, roles, 0.8 * duration_ms)]
    if draw.random() < 0.15:
        faults.append(_after_end(draw, roles))
    if draw.random() < 0.55:
        for _ in range(draw.choice((1, 1, 2, 3))):
            faults.append(_further(draw, roles, duration_ms, faults))
    if draw.random() < 0.2:
        task = draw.choice([name for name, kind in roles.items() if kind == "task"])
        faults.append(Fault(action=Action.FAIL_UPLOAD, role=task, at_ms=draw.uniform(0, duration_ms)))
    troubled = draw.random() < 0.5
    if draw.random() < 0.1:
        faults += _overslept(draw, roles, 0.6 * duration_ms)
    return Schedule(
        seed=seed,
        events=events,
        faults=tuple(faults),
        network=Network(lose=0.1, repeat=0.15, late=0.1) if troubled else Network(),
        flush_interval_ms=draw.choice((8, 12, 16)),
        flush_bytes=draw.choice((200, 64 * 1024, 64 * 1024)),
        max_held_bytes=draw.choice((1 << 20, 1 << 20, 2_000)),
        report_interval_ms=draw.choice((5, 25, 25)),
        lull_ms=lull_ms,
        # Long steps and frequent watermarks: windows open and close within one commit interval.
        step_us=draw.choice((150, 150, 600)),
        watermark_interval_ms=draw.choice((25, 5)),
    )


def sooner(schedule: Schedule) -> Schedule:
    """The same, for a schedule that was over before its first fault struck: now it strikes at the first operation."""
    first = replace(schedule.faults[0], at_ms=0.0, operation=None, skip=0, restarted=False, ended=False)
    return replace(schedule, faults=(first, *schedule.faults[1:]))


def _fault(draw: random.Random, roles: Mapping[str, str], until_ms: float) -> Fault:
    names = [*roles, JANITOR]
    kinds = [*roles.values(), "janitor"]
    count = {kind: kinds.count(kind) for kind in kinds}
    role = draw.choices(names, [_WEIGHTS[kind] / count[kind] for kind in kinds])[0]
    kind = roles.get(role, "janitor")
    if draw.random() < 0.1:
        return _make(draw, role, kind, _STARTING)
    return _make(draw, role, kind, _RUNNING, at_ms=draw.uniform(0, until_ms))


def _further(draw: random.Random, roles: Mapping[str, str], duration_ms: float, before: list[Fault]) -> Fault:
    """One more: while an earlier victim recovers, after the end of the stream, or anywhere."""
    chance = draw.random()
    if chance < 0.5:
        victim = before[0].role
        return _make(draw, victim, roles.get(victim, "janitor"), _STARTING, restarted=True)
    if chance < 0.75:
        return _after_end(draw, roles)
    return _fault(draw, roles, 1.2 * duration_ms)


def _after_end(draw: random.Random, roles: Mapping[str, str]) -> Fault:
    """On a role that has ended while others still work: a source, a coordinator, or a task of the first stages."""
    tasks = [name for name, kind in roles.items() if kind == "task"]
    others = [name for name, kind in roles.items() if kind in ("source", "coordinator")]
    role = draw.choice(tasks[: max(2, len(tasks) // 2)] if draw.random() < 0.5 else others)
    return _make(draw, role, roles[role], _RUNNING, ended=True)


def _overslept(draw: random.Random, roles: Mapping[str, str], until_ms: float) -> list[Fault]:
    """A task sleeps longer than anybody waits for it, is told so when it wakes up, and dies while it begins anew."""
    role = draw.choice([name for name, kind in roles.items() if kind == "task"])
    at_ms, pause_ms = draw.uniform(0, until_ms), 90.0
    action = draw.choice((Action.CRASH_BEFORE, Action.CRASH_AFTER))
    operation = draw.choice(("get", "get", "increment"))
    return [
        Fault(action=Action.PAUSE, role=role, at_ms=at_ms, delay_ms=pause_ms),
        Fault(action=action, role=role, at_ms=at_ms + pause_ms - 1, operation=operation),
    ]


def _make(
    draw: random.Random,
    role: str,
    kind: str,
    aims: Mapping[str, tuple[str, ...]],
    *,
    at_ms: float = 0.0,
    restarted: bool = False,
    ended: bool = False,
) -> Fault:
    actions = [Action.CRASH_BEFORE, Action.CRASH_AFTER]
    if kind in ("source", "task", "coordinator"):
        actions += [Action.PAUSE, Action.ZOMBIE]
    action = draw.choices(actions, [3, 3, 1, 3][: len(actions)])[0]
    aimed = draw.random() < 0.75
    pause_ms = draw.choice((0, 2, 10, 40, 90))
    # A zombie does most harm when it comes back just as its successor begins.
    head_start_ms = draw.choice((0.1, 0.3, 0.6, 1.0, 2.0, 5.0)) if draw.random() < 0.6 else draw.uniform(0, 90)
    return Fault(
        action=action,
        role=role,
        at_ms=at_ms,
        operation=draw.choice(aims[kind]) if aimed else None,
        skip=0 if aimed else draw.randrange(_SKIPS[kind]),
        restarted=restarted,
        ended=ended,
        delay_ms=pause_ms if action in (Action.PAUSE, Action.ZOMBIE) else 0,
        successor_ms=max(0.0, pause_ms - head_start_ms),
    )
