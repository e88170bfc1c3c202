"""Reading under aligned checkpoints: tasks hold producers back until all barriers meet, observers wait for COMPLETE.

In both, producers overtake each other within a substream, so that the FIFO of the other protocols does not fit.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from protocols.base import Broken, Delivery, RolledBack, TaskContext
from protocols.inbox import DATA, Lane, Lanes
from sharedlog.log import Kind, Record


class Alignment(Lanes):
    """The reading half of a task: entries pass until their producer's barrier, and go on when all have come.

    Within a substream producers overtake each other, so there is no scalar position to recover from; none is needed,
    because no entry between stages survives a rollback.
    """

    epoch = 0

    def __init__(self, ctx: TaskContext) -> None:
        self._sources = frozenset(ctx.job.source_tags)
        super().__init__(ctx, ctx.plan.inputs)

    def reset(self) -> None:
        super().reset()
        self._behind: dict[str, set[str]] = {tag: set() for tag in self.lanes}  # tag → producers whose barrier came
        self._barrier = 0  # the number of the checkpoint that is being aligned; 0 if none

    def _arrive(self, lane: Lane, record: Record, group: list[Delivery]) -> None:
        """Deliver an entry, hold it back, or take note of a barrier."""
        header = record.header
        behind = self._behind[lane.tag]
        from_source = lane.tag in self._sources
        if header.epoch > self.epoch:
            raise RolledBack(f"epoch {header.epoch} has begun")
        if header.kind in DATA:
            if header.producer in behind:
                self._hold(lane, record)
            elif (from_source or header.epoch == self.epoch) and self._fresh(lane, header):
                group.append(Delivery(lane.tag, record, header.time_us))
        elif header.kind is Kind.MARKER and header.epoch == self.epoch:
            # The coordinator's barrier has its place among the entries of all sources, so it stands for each of them.
            senders = set(lane.producers) if from_source else {header.producer}
            if senders & behind:
                self._hold(lane, record)
            else:
                self._note_barrier(header.transaction)
                behind |= senders
        # What is left in source substreams are the barriers and EPOCHs of the past.

    def _note_barrier(self, number: int) -> None:
        if self._barrier not in (0, number):
            raise Broken(f"barrier {number} came while barrier {self._barrier} of epoch {self.epoch} was incomplete")
        self._barrier = number

    def _aligned(self) -> bool:
        """Whether the barrier has come from every producer of every substream."""
        return all(len(self._behind[tag]) == len(lane.producers) for tag, lane in self.lanes.items())

    def _go_on(self, group: list[Delivery]) -> None:
        """The barrier was passed on; what was held back behind it may come now, up to the next barrier."""
        self._barrier = 0
        for tag, lane in self.lanes.items():
            self._behind[tag] = set()
            held, lane.held = lane.held, deque()
            for entry in held:
                self._arrive(lane, self._fetch(lane, entry), group)

    def _settle(self) -> None:
        """What was delivered has been published."""
        for lane in self.lanes.values():
            lane.position = lane.held[0].record.lsn - 1 if lane.held else lane.read


class CheckpointObserver(Lanes):
    """Output of an epoch is visible when a checkpoint behind it is complete, and void when the next epoch begins."""

    def reset(self) -> None:
        super().reset()
        self._epochs = dict.fromkeys(self.lanes, 0)
        self._barriers: dict[str, dict[int, dict[str, int]]] = {tag: {} for tag in self.lanes}

    def admit(self, records: Mapping[str, Sequence[Record]]) -> Iterator[Sequence[Delivery]]:
        for tag, arrived in records.items():
            lane = self.lanes[tag]
            group: list[Delivery] = []
            for record in arrived:
                lane.read = record.lsn
                self._arrive(lane, record, group)
            if group:
                yield group
            lane.position = lane.held[0].record.lsn - 1 if lane.held else lane.read

    def _arrive(self, lane: Lane, record: Record, group: list[Delivery]) -> None:
        header = record.header
        if header.kind is Kind.COORDINATION and header.epoch > self._epochs[lane.tag]:
            self._begin(lane, header.epoch)
        elif header.epoch != self._epochs[lane.tag]:
            return
        elif header.kind in DATA:
            self._hold(lane, record)
        elif header.kind is Kind.MARKER:
            self._barriers[lane.tag].setdefault(header.transaction, {})[header.producer] = record.lsn
        else:
            self._complete(lane, header.transaction, header.time_us, group)

    def _begin(self, lane: Lane, epoch: int) -> None:
        """What no complete checkpoint covers is void, and sequences begin anew."""
        self._epochs[lane.tag] = epoch
        self._barriers[lane.tag].clear()
        self._held_bytes -= sum(held.record.body.size for held in lane.held if held.kept)
        lane.held.clear()
        for producer in lane.producers.values():
            producer.instance = producer.sequence = 0

    def _complete(self, lane: Lane, number: int, time_us: int, group: list[Delivery]) -> None:
        """Deliver what lies before its producer's barrier, that of abandoned earlier checkpoints included."""
        barriers = self._barriers[lane.tag].get(number, {})
        held, lane.held = lane.held, deque()
        for entry in held:
            if entry.record.lsn > barriers.get(entry.record.header.producer, 0):
                lane.held.append(entry)
                continue
            record = self._fetch(lane, entry)
            if self._fresh(lane, record.header):
                group.append(Delivery(lane.tag, record, time_us))
        self._barriers[lane.tag] = {n: lsns for n, lsns in self._barriers[lane.tag].items() if n > number}

    def save(self) -> bytes:
        return json.dumps({"epochs": self._epochs, "lanes": self.place()}, separators=(",", ":")).encode()

    def load(self, saved: bytes) -> None:
        content = json.loads(saved)
        self.resume(content["lanes"])
        self._epochs = content["epochs"]
