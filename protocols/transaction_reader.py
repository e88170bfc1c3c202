"""Reading under transactions: an entry counts once its transaction's COMMIT was read in the same substream.

A task has one transaction at a time, and its next one begins only after every participant of the last holds its
decision. So the decisions about one task come in order, each after the entries that it decides about; whatever comes
later with the same number is a zombie's and is dropped.
"""

import struct
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from protocols.base import Broken, Context
from protocols.inbox import Inbox, Lane, Verdict
from sharedlog.log import Kind, Record

_MARKER = struct.Struct("<?Q")


class Decision(NamedTuple):
    """COMMIT or ABORT of one task's transaction, as found in one substream."""

    instance: int
    number: int
    committed: bool
    lsn: int
    time_us: int

    @property
    def transaction(self) -> tuple[int, int]:
        return self.instance, self.number


def encode_marker(committed: bool, position: int) -> bytes:
    """The body of COMMIT and ABORT. `position` is the LSN of the position entry that counts from now on."""
    return _MARKER.pack(committed, position)


def decode_marker(body: bytes) -> tuple[bool, int]:
    committed, position = _MARKER.unpack(body)
    return committed, position


class TransactionInbox(Inbox):
    """FIFO admission by transaction: the head waits for the decision about it, as at Kafka's last stable offset."""

    def reset(self) -> None:
        super().reset()
        # By lane and producer: the newest transaction decided up to the position, and the decisions read beyond it.
        # The first is saved with the place, because a late entry may come after it; the others are read again.
        self._settled: dict[tuple[str, str], tuple[int, int]] = {}
        self._decisions: dict[tuple[str, str], deque[Decision]] = {}

    def learn(self, lane: Lane, record: Record) -> None:
        if record.header.kind is not Kind.MARKER:
            return
        header = record.header
        key = lane.tag, header.producer
        decisions = self._settle(lane, header.producer)
        newest = decisions[-1].transaction if decisions else self._settled.get(key, (0, 0))
        if (header.instance, header.transaction) > newest:  # otherwise a new coordinator repeats it
            committed, _ = decode_marker(record.body.to_pybytes())
            decisions.append(Decision(header.instance, header.transaction, committed, record.lsn, header.time_us))

    def decide(self, lane: Lane, head: Record) -> tuple[Verdict, int]:
        header = head.header
        if header.kind is Kind.INPUT:
            return Verdict.DELIVER, header.time_us
        transaction = header.instance, header.transaction
        key = lane.tag, header.producer
        if transaction <= self._settled.get(key, (0, 0)):
            return Verdict.DROP, 0
        for decision in self._decisions.get(key, ()):
            if decision.transaction == transaction:
                in_time = head.lsn < decision.lsn
                return (Verdict.DELIVER, decision.time_us) if decision.committed and in_time else (Verdict.DROP, 0)
            if decision.transaction > transaction:
                raise Broken(
                    f"{lane.tag}: entry {head.lsn} of {header.producer} belongs to transaction {transaction}, which"
                    f" nobody decided here before {decision.transaction}"
                )
        return Verdict.WAIT, 0

    def _settle(self, lane: Lane, producer: str) -> deque[Decision]:
        """Fold decisions that the position has passed; returns the others."""
        key = lane.tag, producer
        decisions = self._decisions.setdefault(key, deque())
        while decisions and decisions[0].lsn <= lane.position:
            self._settled[key] = decisions.popleft().transaction
        return decisions

    def place(self) -> dict[str, object]:
        for tag, producer in self._decisions:
            self._settle(self.lanes[tag], producer)
        settled = [[tag, producer, *transaction] for (tag, producer), transaction in self._settled.items()]
        return {"lanes": super().place(), "settled": settled}

    def resume(self, place: Mapping[str, Any]) -> None:
        super().resume(place["lanes"])
        self._settled = {(tag, producer): (instance, number) for tag, producer, instance, number in place["settled"]}


class Base(NamedTuple):
    """Where the replay of a changelog starts: a snapshot (none when `key` is empty) and what it covers.

    It holds the changes up to `after`, of transactions up to `settled`; `change` is the (instance, sequence) of the
    last one.
    """

    key: str = ""
    after: int = 0
    settled: tuple[int, int] = (0, 0)
    change: tuple[int, int] = (0, 0)


class ChangelogReader(TransactionInbox):
    """A task's own changelog, read back by the rule of every other substream."""

    kinds = frozenset({Kind.CHANGELOG})

    def __init__(self, ctx: Context, tag: str, base: Base) -> None:
        super().__init__(ctx, {tag: (ctx.name,)})
        self._tag = tag
        self.entries_read = 0
        self.last_lsn = base.after
        lane = self.lanes[tag]
        lane.position = lane.read = base.after
        lane.producers[ctx.name].instance, lane.producers[ctx.name].sequence = base.change
        self._settled[tag, ctx.name] = base.settled

    def replay(self) -> Iterator[Record]:
        """All committed changes, in order. Nothing may be left undecided: recovery waits for COMPLETE first."""
        lane = self.lanes[self._tag]
        while records := self._log.read(self._tag, lane.read, max_bytes=1 << 22):
            self.entries_read += len(records)
            for group in self.admit({self._tag: records}):
                for delivery in group:
                    self.last_lsn = delivery.record.lsn
                    yield delivery.record

    @property
    def undecided(self) -> Record | None:
        """The first entry that nobody has decided about."""
        held = self.lanes[self._tag].held
        return held[0].record if held else None

    @property
    def change(self) -> tuple[int, int]:
        [producer] = self.lanes[self._tag].producers.values()
        return producer.instance, producer.sequence
