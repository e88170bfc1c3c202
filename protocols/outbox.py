"""The writing half that protocols share: buffer rows, cut them into numbered entries, count what was written.

All protocols flush at the same size and on the same interval, independent of their commits, so that they differ in
nothing but the protocol.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from protocols.base import Context, Job
from sharedlog.codec import encode_batch
from sharedlog.log import Entry, Header, Kind


class Writer:
    """Appends for one role, conditional on its instance (and whatever else is expected), counted by kind."""

    def __init__(self, ctx: Context, *, conditional: bool = True) -> None:
        self._ctx = ctx
        self.expect: dict[str, int] = {f"instance/{ctx.name}": ctx.instance} if conditional else {}

    def append(self, entries: Sequence[Entry]) -> list[int]:
        """All or nothing. Raises `Fenced` when a successor has started; any other error kills this instance."""
        lsns = self._ctx.log.append(entries, expect=self.expect or None)
        for entry in entries:
            count = self._ctx.written.setdefault(entry.header.kind.name.lower(), [0, 0])
            count[0] += 1
            count[1] += len(entry.body)
        return lsns


class Body(NamedTuple):
    """Rows of one entry, encoded already."""

    rows: int
    encoded: pa.Buffer | bytes

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "Body":
        return cls(batch.num_rows, encode_batch(batch))


NO_ROWS = Body(0, b"")


class Outbox:
    """Rows on their way into the log, one buffer for each downstream substream."""

    def __init__(self, ctx: Context, tags: Sequence[str], kind: Kind = Kind.DATA) -> None:
        self._ctx = ctx
        self._job: Job = ctx.job
        self._kind = kind
        self._rows: dict[str, list[pa.RecordBatch]] = {tag: [] for tag in tags}
        self._bodies: dict[str, list[Body]] = {tag: [] for tag in tags}  # each an entry of its own, before all rows
        self._bytes = dict.fromkeys(tags, 0)
        self.sequences = dict.fromkeys(tags, 0)
        self._watermark = 0
        self._told = 0  # the watermark that every substream was last told
        self._end: bytes | None = None
        self._flushed_ms = self._told_ms = -1e18
        self._fullest = 0
        self._passed = dict.fromkeys(tags, 0)  # the watermark that each substream has in the log

    def add(self, outputs: Mapping[str, Sequence[pa.RecordBatch]], watermark: int, end: bytes | None = None) -> None:
        for tag, batches in outputs.items():
            self._rows[tag].extend(batches)
            self._bytes[tag] += sum(batch.nbytes for batch in batches)
            self._fullest = max(self._fullest, self._bytes[tag])
        self._watermark = max(self._watermark, watermark)
        if end is not None:
            self._end = end

    def add_encoded(self, outputs: Mapping[str, Sequence[Body]], watermark: int) -> None:
        """The same for a writer that knows what its entries will be before they are due; to be drained at once."""
        for tag, bodies in outputs.items():
            self._bodies[tag].extend(bodies)
        self._watermark = max(self._watermark, watermark)

    @property
    def full(self) -> bool:
        """A buffer has reached the size of an entry; flush before taking more."""
        return self._fullest >= self._job.flush_bytes

    @property
    def empty(self) -> bool:
        return self._fullest == 0 and self._end is None

    @property
    def nbytes(self) -> int:
        """Rows waiting, all substreams together."""
        return sum(self._bytes.values())

    def touched(self, now_ms: float) -> list[str]:
        """The substreams that a drain now would write to."""
        if self._end is not None or self._restate_due(now_ms):
            return list(self._rows)
        return [tag for tag, batches in self._rows.items() if batches]

    def due(self, now_ms: float) -> bool:
        if self.full or self._end is not None:
            return True
        if now_ms - self._flushed_ms < self._job.flush_interval_ms:
            return False
        return self._fullest > 0 or self._restate_due(now_ms)

    def _restate_due(self, now_ms: float) -> bool:
        return self._watermark > self._told and now_ms - self._told_ms >= self._job.watermark_interval_ms

    def drain(self, now_ms: float, *, epoch: int = 0, transaction: int = 0) -> list[Entry]:
        """Everything buffered, as numbered entries, and the watermark for substreams that have no rows."""
        restate = self._end is not None or self._restate_due(now_ms)
        entries = []
        for tag, batches in self._rows.items():
            bodies = self._bodies[tag]
            if batches:
                fits = self._bytes[tag] <= self._job.flush_bytes
                bodies += map(Body.of, [_together(batches)] if fits else _cut(batches, self._job.flush_bytes))
                batches.clear()
                self._bytes[tag] = 0
            if bodies:
                # Only the last part lets event time pass: rows of this drain are still to come before it.
                for body in bodies[:-1]:
                    entries.append(self._entry(tag, body, epoch, transaction, self._passed[tag]))
                entries.append(self._entry(tag, bodies[-1], epoch, transaction, self._watermark))
                bodies.clear()
            elif restate and self._end is None:
                entries.append(self._entry(tag, NO_ROWS, epoch, transaction, self._watermark))
            if self._end is not None:
                entries.append(self._entry(tag, Body(0, self._end), epoch, transaction, self._watermark, end=True))
            if entries and entries[-1].tags[0] == tag:
                self._passed[tag] = self._watermark
        if restate:
            self._told, self._told_ms = self._watermark, now_ms
        self._end = None
        self._fullest = 0
        self._flushed_ms = now_ms
        return entries

    def _entry(
        self,
        tag: str,
        body: Body,
        epoch: int,
        transaction: int,
        watermark: int,
        *,
        end: bool = False,
    ) -> Entry:
        self.sequences[tag] += 1
        header = Header(
            kind=self._kind,
            producer=self._ctx.name,
            instance=self._ctx.instance,
            sequence=self.sequences[tag],
            epoch=epoch,
            transaction=transaction,
            watermark=watermark,
            rows=body.rows,
            time_us=self._ctx.now_us(),
            end=end,
        )
        return Entry((tag,), header, body.encoded)


def _cut(batches: Sequence[pa.RecordBatch], limit: int) -> list[pa.RecordBatch]:
    """The same rows in batches of about `limit` bytes: small neighbours are put together, a large one is cut."""
    parts: list[pa.RecordBatch] = []
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        nbytes = batch.nbytes
        if waiting and size + nbytes > limit:
            parts.append(_together(waiting))
            waiting, size = [], 0
        pieces = min(-(-nbytes // limit), batch.num_rows)
        if pieces > 1:
            edges = [batch.num_rows * piece // pieces for piece in range(pieces + 1)]
            parts += [batch.slice(start, stop - start) for start, stop in pairwise(edges)]
        else:
            waiting.append(batch)
            size += nbytes
    if waiting:
        parts.append(_together(waiting))
    return parts


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
