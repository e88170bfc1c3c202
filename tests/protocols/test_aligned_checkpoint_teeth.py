"""The simulator finds aligned checkpoints that are deliberately wrong, within the seeds of the default run."""

import pytest

from protocols.aligned_checkpoint import CheckpointTask
from protocols.base import Delivery, Recovery
from protocols.checkpoint_coordinator import CheckpointCoordinator
from protocols.checkpoint_reader import Alignment, CheckpointObserver
from protocols.checkpoint_records import CONTROL, ORDERS, Control, Standing, control_entry, control_of, standing_of
from protocols.inbox import Lane
from runners.simulated import load_protocol, run_seed
from sharedlog.log import Kind, Record

SEEDS = range(300)


def first_failure(query: str) -> str | None:
    """What the first failing seed of the default run says."""
    protocol = load_protocol("aligned_checkpoint")
    for seed in SEEDS:
        if failure := run_seed(protocol, query, seed).failure:
            print(f"seed {seed}: {failure}")
            return failure
    return None


def test_alignment_on_one_producer_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first barrier is taken for all of them, and the others are ignored."""
    arrive, note = Alignment._arrive, Alignment._note_barrier
    passed: dict[Alignment, tuple[int, int]] = {}

    def note_barrier(self: Alignment, number: int) -> None:
        passed[self] = (self.epoch, number)
        note(self, number)

    def arrive_once(self: Alignment, lane: Lane, record: Record, group: list[Delivery]) -> None:
        header = record.header
        if header.kind is not Kind.MARKER or (header.epoch, header.transaction) > passed.get(self, (0, 0)):
            arrive(self, lane, record, group)

    monkeypatch.setattr(Alignment, "_note_barrier", note_barrier)
    monkeypatch.setattr(Alignment, "_arrive", arrive_once)
    monkeypatch.setattr(Alignment, "_aligned", lambda self: any(self._behind.values()))
    assert first_failure("windowed")


def test_an_epoch_without_instances_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever finds the newest epoch works in it, so a successor goes on in the epoch of the dead."""

    def recover(self: CheckpointTask) -> Recovery | None:
        self.reset()
        newest = self._ctx.log.last(ORDERS)
        if newest is None and not self._joined:
            self._joins.append([control_entry(self._ctx, (CONTROL,), Control.JOIN)])
            self._joined = True
        if newest is None or newest.header.epoch <= self.epoch:
            return None
        return self._restore(standing_of(control_of(newest)[1]), newest.lsn)

    monkeypatch.setattr(CheckpointTask, "recover", recover)
    assert first_failure("windowed")


def test_only_the_dead_rolling_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Survivors take the new epoch's number and keep their state."""
    restore = CheckpointTask._restore

    def keep(self: CheckpointTask, standing: Standing, epoch_lsn: int) -> Recovery | None:
        if not self.epoch:
            return restore(self, standing, epoch_lsn)
        state = self._kept  # type: ignore[attr-defined]
        recovery = restore(self, standing, epoch_lsn)
        self._ctx.state.restore(state)
        return recovery

    checkpoint = CheckpointTask._flush

    def flush(self: CheckpointTask, *barrier: object) -> None:
        self._kept = self._ctx.state.snapshot()  # type: ignore[attr-defined]
        checkpoint(self, *barrier)  # type: ignore[arg-type]

    monkeypatch.setattr(CheckpointTask, "_flush", flush)
    monkeypatch.setattr(CheckpointTask, "_restore", keep)
    assert first_failure("windowed")


def test_high_water_marks_that_are_not_recovered_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of sources go on, so a reader that forgot them sees a gap."""
    resume = CheckpointTask._resume

    def forget(self: CheckpointTask, lanes: object, barrier_lsn: int, epoch_lsn: int) -> None:
        resume(self, {}, barrier_lsn, epoch_lsn)

    monkeypatch.setattr(CheckpointTask, "_resume", forget)
    assert first_failure("stateless")


def test_completion_without_the_last_acknowledgement_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator does not wait for tasks in the middle, as one published implementation does not."""
    decide = CheckpointCoordinator._decide

    def hasty(self: CheckpointCoordinator, now_ms: float) -> bool:
        if self._flight and self._flight.acks:
            for task in self._ctx.job.tasks:
                self._flight.acks.setdefault(task, False)
        return decide(self, now_ms)

    monkeypatch.setattr(CheckpointCoordinator, "_decide", hasty)
    assert first_failure("windowed")


def test_an_observer_that_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """END and results are taken for visible as soon as they are in the log."""
    arrive = CheckpointObserver._arrive

    def at_once(self: CheckpointObserver, lane: Lane, record: Record, group: list[Delivery]) -> None:
        header = record.header
        if header.kind is Kind.DATA and self._fresh(lane, header):
            group.append(Delivery(lane.tag, record, header.time_us))
        elif header.kind is not Kind.DATA:
            arrive(self, lane, record, group)

    monkeypatch.setattr(CheckpointObserver, "_arrive", at_once)
    assert first_failure("stateless")


def test_a_bound_past_the_last_complete_barrier_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointCoordinator, "bound", lambda self: self._position + 1)
    assert first_failure("stateless")
