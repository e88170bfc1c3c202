"""A world of one process for the simulator: a virtual clock, a seeded scheduler, and roles that can die anywhere.

Every instance of a role is a coroutine. Whatever it does to the log, the snapshots or the channel is an *operation*: it
gives up control, and the operation lands when the scheduler comes back to it. So an append that was slow, or whose
process was paused, is judged by the log as it is when the append lands. Faults strike at operations.
"""

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from greenlet import getcurrent, greenlet

from runners.simfaults import Action, Fault
from sharedlog.errors import Fenced, LogError
from sharedlog.log import Entry
from sharedlog.memory import MemoryLog, MemorySnapshotStore

T = TypeVar("T")

PATIENCE_US = 15_000  # a fault that waits in vain strikes any operation but a read after so long, then any at all
MAX_SWITCHES = 400_000
RESTART_US = 2_000


class Crash(BaseException):
    """The process is gone. Not an Exception: nothing in the product may catch it."""


class Violation(Exception):
    """A schedule that went wrong, and why."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """How messages fare: parts of them are lost, repeated or held up; each travels on its own."""

    lose: float = 0.0
    repeat: float = 0.0
    late: float = 0.0


@dataclass
class Pending:
    """A fault that has not struck yet, how many operations it still lets pass, and since when it lies in wait."""

    fault: Fault
    skip: int
    since_us: int | None = None


class Process:
    """One instance of a role, from its start to its death. Faults find it by its role's name."""

    def __init__(self, world: "World", name: str, kind: str, main: Callable[["Process"], None]) -> None:
        self.world = world
        self.name = name
        self.kind = kind
        self.instance = 0
        self.dead = False
        self.replaced = False  # a successor was started beside this one
        self.finished: Callable[[], bool] = lambda: False
        self.mailbox: list[tuple[str, bytes]] = []
        self.uploads: dict[str, bool] = {}  # in flight; False: will fail
        self.uploaded: list[tuple[str, bool]] = []
        self.stamp = 0  # of the only valid place in the scheduler's queue
        self.waiting = False
        self.waits_for: tuple[str, ...] = ()
        self.pace_us = world.random.choice((30, 60, 120, 300))
        self._main = main
        self.coroutine = greenlet(self._run, world.hub)

    def __repr__(self) -> str:
        return f"{self.name}#{self.instance}"

    def _run(self) -> None:
        world = self.world
        try:
            self._main(self)
        except Crash:
            pass
        except Fenced as fenced:
            world.note(self, "fenced", "")
            if not world.superseded(self):
                world.fail(f"{self} was fenced, but nobody succeeds it: {fenced}")
        except LogError as error:
            world.note(self, "died", repr(error))
            if not world.superseded(self):
                world.fail(f"{self}: {type(error).__name__}: {error}", error)
        except Exception as error:
            world.fail(f"{self}: {type(error).__name__}: {error}", error)
        self.dead = True
        if not world.over:
            world.buried(self)

    def operate(self, operation: str, call: Callable[[], T], detail: Callable[[T], str] | None = None) -> T:
        """Let an operation land at some later moment; or die before it, or after it."""
        world = self.world
        if self.dead:
            raise Crash
        if not self.replaced:
            # Faults spare a process that has a successor already, for its end is drawn with the zombie: it is cut off
            # somewhere. So what only such a process does (looking whether it was succeeded) is no gap in the coverage.
            world.operations[self.kind, operation] += 1
        fault = world.strike(self, operation) if world.pending else None
        if fault is None:
            chance = world.random.random()
            world.pause(self, int(self.pace_us * (0.25 + 3 * chance * chance * chance)))
            result = call()
            if world.trace is not None:
                world.note(self, operation, detail(result) if detail is not None else "")
            return result
        return self._struck(fault, operation, call, detail)

    def _struck(self, fault: Fault, operation: str, call: Callable[[], T], detail: Callable[[T], str] | None) -> T:
        world = self.world
        delay_us = int(fault.delay_ms * 1000)
        if fault.action is Action.CRASH_BEFORE:
            world.crashed(self, operation, "before")
            raise Crash
        if fault.action is Action.ZOMBIE:
            world.succeed(self, int(fault.successor_ms * 1000))
        if fault.action in (Action.PAUSE, Action.ZOMBIE):
            world.pause(self, delay_us)
        else:
            world.pause(self, self.pace_us)
        result = call()
        world.note(self, operation, detail(result) if detail is not None else "")
        if fault.action is Action.FAIL_UPLOAD:
            self.uploads = dict.fromkeys(self.uploads, False)
        if fault.action is Action.CRASH_AFTER:
            world.crashed(self, operation, "after")
            raise Crash
        return result


class World:
    """The scheduler, the clock, and what outlives a process. `start` makes the main function of a role by name."""

    def __init__(
        self,
        seed: object,
        faults: Sequence[Fault],
        network: Network,
        start: Callable[[Process], None],
        *,
        trace: bool = False,
    ) -> None:
        self.random = random.Random(f"{seed}/world")
        self.log = MemoryLog()
        self.snapshots = MemorySnapshotStore()
        self.network = network
        self.now_us = self.began_us = 1_000_000
        self.hub = getcurrent()
        self.processes: dict[str, list[Process]] = defaultdict(list)
        self.coverage: Counter[tuple[str, str, str]] = Counter()
        self.operations: Counter[tuple[str, str]] = Counter()
        self.trace: list[tuple[int, str, str, str]] | None = [] if trace else None
        self.failure: Violation | None = None
        self.over = False
        self.struck = 0
        self.last_fault_us = 0
        self._start = start
        self._kinds: dict[str, str] = {}
        self._starting: set[str] = set()
        self.pending: dict[str, list[Pending]] = {}
        for fault in faults:
            self.pending.setdefault(fault.role, []).append(Pending(fault, fault.skip))
        self._queue: list[tuple[int, int, Process | None, int, Callable[[], None] | None]] = []
        self._counter = 0
        self._waiting: dict[str, dict[Process, None]] = defaultdict(dict)

    # Time and turns

    def run(self, done: Callable[[], bool], patience_ms: float) -> None:
        """Turn after turn until `done`. Too late is a failure: `patience_ms` after the last fault."""
        switches = 0
        while not done():
            if self.failure is not None:
                break
            if not self._queue:
                self.fail("nothing left to do, and the job is not done")
                break
            at_us, _, process, stamp, event = heapq.heappop(self._queue)
            if event is not None:
                self.now_us = max(self.now_us, at_us)
                event()
            elif process is not None and process.stamp == stamp and not process.dead:
                self.now_us = max(self.now_us, at_us)
                process.coroutine.switch()
            switches += 1
            if self.now_us > self.last_fault_us + patience_ms * 1000 or switches > MAX_SWITCHES:
                self.fail(f"not finished {patience_ms:.0f} ms after the last fault")
        self._stop()
        if self.failure is not None:
            raise self.failure

    @property
    def lag_ms(self) -> float:
        """How long ago the last fault was over."""
        return (self.now_us - self.last_fault_us) / 1000

    def _stop(self) -> None:
        self.over = True
        for processes in self.processes.values():
            for process in processes:
                process.dead = True
                if process.coroutine:
                    process.coroutine.throw(Crash)

    def at(self, at_us: int, event: Callable[[], None]) -> None:
        self._counter += 1
        heapq.heappush(self._queue, (at_us, self._counter, None, 0, event))

    def _resume(self, process: Process, at_us: int) -> None:
        self._counter += 1
        process.stamp += 1
        heapq.heappush(self._queue, (at_us, self._counter, process, process.stamp, None))

    def pause(self, process: Process, delay_us: int) -> None:
        """Called by a process: others run until the delay has passed."""
        self._resume(process, self.now_us + delay_us)
        self.hub.switch()
        if process.dead:
            raise Crash

    def wait(self, process: Process, positions: Mapping[str, int], timeout_us: int) -> None:
        """Called by a process: sleep until one of the tags has news, a message comes, or the time is over."""
        if process.mailbox or self.log.wait(positions, 0):
            self.pause(process, process.pace_us)
            return
        process.waiting, process.waits_for = True, tuple(positions)
        for tag in positions:
            self._waiting[tag][process] = None
        self.pause(process, timeout_us)
        self._unwait(process)

    def _unwait(self, process: Process) -> None:
        for tag in process.waits_for:
            self._waiting[tag].pop(process, None)
        process.waiting, process.waits_for = False, ()

    def wake(self, process: Process) -> None:
        self._unwait(process)
        self._resume(process, self.now_us + int(process.pace_us * (0.2 + 2 * self.random.random())))

    def appended(self, entries: Sequence[Entry]) -> None:
        """Ring for those who sleep on these tags."""
        for entry in entries:
            for tag in entry.tags:
                for process in list(self._waiting.get(tag, ())):
                    self.wake(process)

    # Life and death

    def launch(self, name: str, kind: str, delay_us: int = 0) -> None:
        """Start an instance of a role after a while."""
        self._kinds[name] = kind
        self._starting.add(name)

        def begin() -> None:
            self._starting.discard(name)
            process = Process(self, name, kind, self._start)
            self.processes[name].append(process)
            self.note(process, "start", "")
            process.coroutine.switch()

        self.at(self.now_us + delay_us, begin)

    def crashed(self, process: Process, operation: str, when: str) -> None:
        self.coverage[process.kind, operation, when] += 1
        self.note(process, f"CRASH {when}", operation)

    def succeed(self, process: Process, delay_us: int) -> None:
        """Start a successor beside a living process, which is cut off some time later."""
        process.replaced = True
        self.launch(process.name, process.kind, delay_us)
        self.note(process, "ZOMBIE", "")
        self._touch(delay_us + 200_000)

        def cut_off() -> None:
            if not process.dead and self.superseded(process):
                process.dead = True
                process.coroutine.throw(Crash)

        self.at(self.now_us + delay_us + self.random.randrange(20_000, 200_000), cut_off)

    def buried(self, process: Process) -> None:
        """Somebody must play the role: whoever dies is replaced unless another instance lives."""
        self._unwait(process)
        self._touch(RESTART_US)
        for key in list(process.uploads):
            if self.random.random() < 0.5:
                del process.uploads[key]  # lost with its process; the others arrive though nobody asks for them
        others = [other for other in self.processes[process.name] if not other.dead]
        if not others and process.name not in self._starting:
            self.launch(process.name, process.kind, self.random.choice((0, 500, RESTART_US, 15_000)))

    def superseded(self, process: Process) -> bool:
        return self.log.get(f"instance/{process.name}") > process.instance

    def living(self, name: str) -> list[Process]:
        return [process for process in self.processes[name] if not process.dead]

    def strike(self, process: Process, operation: str) -> Fault | None:
        """The fault that hits this operation, if any."""
        waiting = self.pending.get(process.name)
        if not waiting or process.replaced:
            return None
        for pending in waiting:
            if not self._hits(pending, process, operation):
                continue
            if pending.skip > 0:
                pending.skip -= 1
                continue
            waiting.remove(pending)
            if not waiting:
                del self.pending[process.name]
            self.struck += 1
            self._touch(int(pending.fault.delay_ms * 1000))
            self.note(process, f"FAULT {pending.fault.action.value}", operation)
            return pending.fault
        return None

    def _hits(self, pending: Pending, process: Process, operation: str) -> bool:
        fault = pending.fault
        if pending.since_us is None:
            if self.now_us < self.began_us + int(fault.at_ms * 1000):
                return False
            if (fault.restarted and len(self.processes[process.name]) < 2) or (fault.ended and not process.finished()):
                return False
            pending.since_us = self.now_us
        if fault.action is Action.FAIL_UPLOAD:
            return operation == "upload.start"
        if fault.operation is None or fault.operation == operation:
            return True
        waited_us = self.now_us - pending.since_us
        return waited_us > 2 * PATIENCE_US or (waited_us > PATIENCE_US and operation != "read")

    def _touch(self, more_us: int) -> None:
        self.last_fault_us = max(self.last_fault_us, self.now_us + more_us)

    def fail(self, message: str, cause: BaseException | None = None) -> None:
        if self.failure is None:
            self.failure = Violation(message)
            self.failure.__cause__ = cause

    def note(self, process: Process, what: str, detail: str) -> None:
        if self.trace is not None:
            self.trace.append((self.now_us, repr(process), what, detail))
