"""The simulator finds progress marking that is deliberately wrong, within the seeds of the default run."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from protocols.base import TaskContext
from protocols.inbox import Lane, Producer
from protocols.outbox import Writer
from protocols.progress_marking import MarkedInbox, ProgressMarking, ProgressMarkingTask, Snapshot
from runners.simproxies import SimulatedLog
from runners.simulated import load_protocol, run_seed
from runners.source import Source
from sharedlog.log import Kind, Record

SEEDS = range(300)


def first_failure(query: str = "windowed") -> str | None:
    """What the first failing seed of the default run says."""
    protocol = load_protocol("progress_marking")
    for seed in SEEDS:
        if failure := run_seed(protocol, query, seed).failure:
            print(f"seed {seed}: {failure}")
            return failure
    return None


def test_a_marker_without_its_changelog_tag_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The changelog tag on the first marker only, as in published code."""
    tags = ProgressMarkingTask._tags
    marked: set[int] = set()

    def first_only(self: ProgressMarkingTask, touched: Iterable[str]) -> tuple[str, ...]:
        found = tags(self, touched)
        if id(self) in marked:
            return tuple(tag for tag in found if tag != self._changelog.tag)
        marked.add(id(self))
        return found

    monkeypatch.setattr(ProgressMarkingTask, "_tags", first_only)
    assert first_failure()


def test_an_unconditional_marker_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    init = ProgressMarkingTask.__init__

    def unconditional(self: ProgressMarkingTask, ctx: TaskContext, config: ProgressMarking) -> None:
        init(self, ctx, config)
        self._writer = Writer(ctx, conditional=False)

    monkeypatch.setattr(ProgressMarkingTask, "__init__", unconditional)
    assert first_failure()


def test_an_unconditional_source_append_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    init = Source.__init__

    def unconditional(self: Source, *arguments: Any) -> None:
        init(self, *arguments)
        self._writer = Writer(self._ctx, conditional=False)

    monkeypatch.setattr(Source, "__init__", unconditional)
    assert first_failure()


def test_a_position_read_before_the_instance_is_incremented_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    increment, last = SimulatedLog.increment, SimulatedLog.last

    def late(self: SimulatedLog, key: str) -> int:
        tag = key.replace("instance/", "t/")
        self.early = (tag, last(self, tag))  # type: ignore[attr-defined]
        return increment(self, key)

    def early(self: SimulatedLog, tag: str, *, kind: Kind | None = None) -> Record | None:
        known: tuple[str, Record | None] = self.early  # type: ignore[attr-defined]
        return known[1] if known[0] == tag else last(self, tag, kind=kind)

    monkeypatch.setattr(SimulatedLog, "increment", late)
    monkeypatch.setattr(SimulatedLog, "last", early)
    assert first_failure()


def test_a_snapshot_named_before_it_is_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    start = ProgressMarkingTask._start_upload

    def hasty(self: ProgressMarkingTask, lsn: int) -> None:
        start(self, lsn)
        assert self._uploading is not None
        self._durable = self._uploading

    monkeypatch.setattr(ProgressMarkingTask, "_start_upload", hasty)
    assert first_failure()


def test_a_snapshot_that_misses_a_store_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts on the edges are restored to the snapshot, the operator's own stores are not."""
    restore = ProgressMarkingTask._restore

    def partly(self: ProgressMarkingTask, snapshot: Snapshot, until: int) -> Any:
        recovery = restore(self, snapshot, until)
        if snapshot.key:
            for name, store in self._ctx.state.stores.items():
                if name != "edges":
                    store.clear()
        return recovery

    monkeypatch.setattr(ProgressMarkingTask, "_restore", partly)
    assert first_failure("chained")


def test_high_water_marks_not_recovered_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    resume = ProgressMarkingTask.resume

    def forgetful(self: ProgressMarkingTask, place: Mapping[str, Any]) -> None:
        resume(self, place)
        for lane in self.lanes.values():
            for producer in lane.producers.values():
                producer.instance = producer.sequence = 0

    monkeypatch.setattr(ProgressMarkingTask, "resume", forgetful)
    assert first_failure()


def test_ends_not_recovered_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that has said its last word is waited for in vain."""
    resume = ProgressMarkingTask.resume

    def forgetful(self: ProgressMarkingTask, place: Mapping[str, Any]) -> None:
        resume(self, place)
        for lane in self.lanes.values():
            for producer in lane.producers.values():
                producer.ended = Producer().ended

    monkeypatch.setattr(ProgressMarkingTask, "resume", forgetful)
    assert first_failure("stateless")


def test_an_end_seen_uncommitted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = MarkedInbox._hold

    def eager(self: MarkedInbox, lane: Lane, record: Record) -> None:
        hold(self, lane, record)
        if record.header.end:
            lane.producers[record.header.producer].ended = True

    monkeypatch.setattr(MarkedInbox, "_hold", eager)
    assert first_failure()


def test_a_trim_past_a_sources_last_entry_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "bound", lambda self: self._bound + 1)
    assert first_failure()


def test_a_trim_past_the_first_change_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound covers the input positions and the last marker only."""
    mark = ProgressMarkingTask._mark

    def careless(self: ProgressMarkingTask, *arguments: Any) -> int:
        lsn = mark(self, *arguments)
        self._bound = min(lsn, *(position + 1 for position in self._committed))
        return lsn

    monkeypatch.setattr(ProgressMarkingTask, "_mark", careless)
    assert first_failure()
