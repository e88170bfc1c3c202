"""The reading half that protocols share: one FIFO for each substream, duplicates dropped, positions kept.

Nothing overtakes inside a substream. A protocol says for the head of a FIFO whether to deliver it, drop it or wait;
the position is the last decided head, and it moves only after what a delivered head caused was published.
"""

import enum
import json
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from protocols.base import Broken, Context, Delivery, Observer
from sharedlog.log import Header, Kind, Record, SharedLog

NO_WATERMARK = -(2**62)
DATA = frozenset({Kind.INPUT, Kind.DATA})


class Verdict(enum.Enum):
    DELIVER = 1
    DROP = 2
    WAIT = 3


@dataclass
class Producer:
    """What is known of one producer in one substream. All of it is part of the recovered state.

    (instance, sequence) is the high-water mark of delivered entries. `fence` is the highest instance that has
    made itself known by a control entry: an orphan of a lower one can be dropped without waiting.
    """

    instance: int = 0
    sequence: int = 0
    watermark: int = NO_WATERMARK
    ended: bool = False
    fence: int = 0


@dataclass
class Held:
    """A data entry whose time has not come. Its body may be given up to save memory, and is read again then."""

    record: Record
    kept: bool = True


@dataclass
class Lane:
    """One substream of a reader."""

    tag: str
    producers: dict[str, Producer]
    position: int = 0  # the last decided head whose effects were published
    read: int = 0  # the last record seen
    opened_us: int = 0  # when the entry was appended that let the latest head go
    held: deque[Held] = field(default_factory=deque)


class Lanes(Observer):
    """All substreams of a reader: what is held back, what was delivered, and the place to go on from."""

    # Whether delivered sequences must be without gaps. False only where loss is allowed.
    contiguous = True

    def __init__(self, ctx: Context, inputs: Mapping[str, tuple[str, ...]]) -> None:
        self._log: SharedLog = ctx.log
        self._max_held = ctx.job.max_held_bytes
        self._held_bytes = 0
        self._inputs = inputs
        self.lanes: dict[str, Lane] = {}
        self.reset()

    def reset(self) -> None:
        """Forget everything: as before the first record."""
        self._held_bytes = 0
        self.lanes = {tag: Lane(tag, {p: Producer() for p in producers}) for tag, producers in self._inputs.items()}

    def inputs(self) -> Mapping[str, int]:
        return {tag: lane.read for tag, lane in self.lanes.items()}

    def _fresh(self, lane: Lane, header: Header) -> bool:
        """Whether an admitted entry is new; moves the high-water mark."""
        known = lane.producers[header.producer]
        if (header.instance, header.sequence) <= (known.instance, known.sequence):
            return False
        expected = known.sequence + 1 if header.instance == known.instance else 1
        if self.contiguous and header.sequence != expected:
            raise Broken(
                f"{lane.tag}: {header.producer} instance {header.instance} delivered sequence {header.sequence}"
                f" after ({known.instance}, {known.sequence})"
            )
        known.instance, known.sequence = header.instance, header.sequence
        known.watermark = max(known.watermark, header.watermark)
        known.ended = known.ended or header.end
        return True

    def _hold(self, lane: Lane, record: Record) -> None:
        size = record.body.size
        if self._held_bytes + size <= self._max_held:
            lane.held.append(Held(record))
            self._held_bytes += size
        else:
            lane.held.append(Held(record._replace(body=None), kept=False))

    def _unhold(self, lane: Lane) -> Record:
        return self._fetch(lane, lane.held.popleft())

    def _fetch(self, lane: Lane, held: Held) -> Record:
        """The whole entry, for one that is held no longer."""
        if held.kept:
            self._held_bytes -= held.record.body.size
            return held.record
        return self._log.read(lane.tag, held.record.lsn - 1, max_bytes=1)[0]

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def watermark(self) -> int:
        return min(p.watermark for lane in self.lanes.values() for p in lane.producers.values())

    def exhausted(self) -> bool:
        return all(p.ended for lane in self.lanes.values() for p in lane.producers.values())

    def bound(self) -> int:
        return min(lane.position for lane in self.lanes.values()) + 1

    # The recovered part of an inbox travels as JSON: in markers, position entries and the sink's snapshot.

    def place(self) -> dict[str, object]:
        """Positions, high-water marks and watermarks, as they stand after the last published group."""
        return {
            tag: [
                lane.position,
                {
                    name: [p.instance, p.sequence, p.watermark, int(p.ended), p.fence]
                    for name, p in lane.producers.items()
                    if p != Producer()
                },
            ]
            for tag, lane in self.lanes.items()
        }

    def resume(self, place: Mapping[str, tuple[int, Mapping[str, Sequence[int]]]]) -> None:
        """Go on after a saved place."""
        self.reset()
        for tag, (position, producers) in place.items():
            lane = self.lanes[tag]
            lane.position = lane.read = position
            for name, (instance, sequence, watermark, ended, fence) in producers.items():
                lane.producers[name] = Producer(instance, sequence, watermark, bool(ended), fence)

    def save(self) -> bytes:
        return json.dumps(self.place(), separators=(",", ":")).encode()

    def load(self, saved: bytes) -> None:
        self.resume(json.loads(saved))


class Inbox(Lanes):
    """FIFO admission. Subclasses decide about heads, and learn from control entries."""

    # What is delivered; everything else is a control entry.
    kinds = DATA

    @abstractmethod
    def decide(self, lane: Lane, head: Record) -> tuple[Verdict, int]:
        """What to do with a data head; for DELIVER, also when the entry that allows it was appended (µs)."""

    def learn(self, lane: Lane, record: Record) -> None:
        """A control entry passes by, in LSN order with the data of its substream."""

    def admit(self, records: Mapping[str, Sequence[Record]]) -> Iterator[Sequence[Delivery]]:
        for tag, arrived in records.items():
            lane = self.lanes[tag]
            for record in arrived:
                lane.read = record.lsn
                if record.header.kind in self.kinds:
                    self._hold(lane, record)
                else:
                    self.learn(lane, record)
        group: list[Delivery] = []
        decided: dict[str, int] = {}
        for lane in self.lanes.values():
            group.extend(self._release(lane, decided))
        if group:
            yield group
        for tag, position in decided.items():
            self.lanes[tag].position = position
        for lane in self.lanes.values():
            if not lane.held:
                lane.position = max(lane.position, lane.read)

    def _release(self, lane: Lane, decided: dict[str, int]) -> Iterator[Delivery]:
        while lane.held:
            head = lane.held[0].record
            verdict, committed_us = self.decide(lane, head)
            if verdict is Verdict.WAIT:
                return
            record = self._unhold(lane)
            decided[lane.tag] = record.lsn
            # Behind a head that another producer had to commit, a row becomes admissible with that head.
            lane.opened_us = max(lane.opened_us, committed_us)
            if verdict is Verdict.DELIVER and self._fresh(lane, record.header):
                yield Delivery(lane.tag, record, lane.opened_us)


class OpenInbox(Inbox):
    """Everything may be acted on at once."""

    def decide(self, lane: Lane, head: Record) -> tuple[Verdict, int]:
        return Verdict.DELIVER, head.header.time_us
