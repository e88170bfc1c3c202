"""The first step of the data's way: events enter the log on a schedule that was fixed in advance.

Open loop: an event is appended as soon as its intended time has come and never waits for the system under test. A
source that falls behind shows up as latency and as generator delay, not as a lower load.
"""

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nexmark.events import cut
from nexmark.workload import Workload
from protocols.base import Context
from protocols.outbox import Body, Outbox, Writer
from runners.edges import Edges
from runners.histogram import Histogram
from runners.plan import Layout, task_tag
from runners.role import Role
from sharedlog.log import Entry, Header, Kind

END_OF_TIME = 2**62
RESTATE_MS = 1000
MAX_BLOCKS = 32


@dataclass(frozen=True, kw_only=True)
class Share:
    """Source `index` of `sources` takes every `sources`-th block of event numbers below `total`."""

    index: int
    sources: int
    total: int
    block: int

    def first(self) -> int:
        return self.index * self.block if self.sources > 1 else 0

    def ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Own numbers in [start, stop) as (from, to, number that comes next)."""
        stop = min(stop, self.total)
        while start < stop:
            if self.sources == 1:
                edge = end = min(start + self.block, stop)
            else:
                edge = (start // self.block + 1) * self.block
                end = min(edge, stop)
            following = end if end < edge or self.sources == 1 else edge + (self.sources - 1) * self.block
            yield start, end, following
            start = following


class Block(NamedTuple):
    """Events made ready before they are due: what goes to which substream, and the counts for the edges."""

    start: int
    following: int  # the number that comes next
    bodies: Mapping[str, list[Body]]
    counts: Sequence[tuple[str, int, int]]  # substream, rows, hash sum


class Source(Role):
    """Appends its share of the workload. A flush is one atomic append, conditional on this source's instance.

    One entry of every flush, tagged `t/<source>`, says which number comes next. So a revived source can do no harm,
    and a new one goes on at the exact next event. An event is due at the first flush time after its intended time;
    it is made before, while there is nothing else to do, so that making it is no part of the latency.
    """

    def __init__(self, ctx: Context, layout: Layout, workload: Workload, share: Share, start_us: int) -> None:
        self._ctx = ctx
        self._workload = workload
        self._share = share
        self._start_us = start_us
        self._tags = layout.job.source_tags
        self._stream = layout.graph.streams[layout.graph.source]
        self._interval_us = layout.job.flush_interval_ms * 1000
        self._outbox = Outbox(ctx, self._tags, Kind.INPUT)
        self._writer = Writer(ctx)
        self._edges = Edges(ctx.name)
        self._turn = share.index
        self._next_flush_us = 0.0
        self._ahead: deque[Block] = deque()  # all due at the next flush
        self._ahead_of_us = 0.0  # the flush that they were made for
        self._stated_ms = 0.0
        self._ended = False
        self._bound = 1
        self.delays: dict[int, Histogram] = {}  # by second since the start
        self.next = share.first()

    def recover(self) -> None:
        last = self._ctx.log.last(task_tag(self._ctx.name))
        if last is None:
            return
        place = json.loads(last.body.to_pybytes())
        self.next, self._ended = place["next"], place["ended"]
        self._edges.load(place["edges"])
        self._bound = last.lsn

    def step(self, now_ms: float) -> bool:
        if self._ended:
            if now_ms - self._stated_ms >= RESTATE_MS:
                self._append([], now_ms)
            return False
        elapsed_us = self._ctx.now_us() - self._start_us
        if elapsed_us < self._next_flush_us:
            self._make_ahead()
            return False
        flush_us = elapsed_us // self._interval_us * self._interval_us
        self._next_flush_us = flush_us + self._interval_us
        moved = False
        for block in self._due(self._workload.count_before(int(flush_us))):
            self.next = block.following
            for counts in block.counts:
                self._edges.sent(*counts)
            self._outbox.add_encoded(block.bodies, self._watermark())
            self._append(self._outbox.drain(now_ms), now_ms)
            self._note_delay(block.start)
            moved = True
        if self.next >= self._share.total:
            self._ended = True
            self._outbox.add({}, END_OF_TIME, self._edges.encode())
        if self._ended or self._outbox.due(now_ms):
            self._append(self._outbox.drain(now_ms), now_ms)
        else:
            self._outbox.add({}, self._watermark())
        return moved

    def _make_ahead(self) -> None:
        """Once between two flushes: the events of the next one."""
        if self._ahead_of_us < self._next_flush_us:
            self._ahead_of_us = self._next_flush_us
            due = self._workload.count_before(int(self._next_flush_us))
            self._ahead.extend(self._make(*one) for one in islice(self._share.ranges(self.next, due), MAX_BLOCKS))

    def _due(self, due: int) -> Iterator[Block]:
        """What was made ahead, then what has become due since; bounded, so that a step ends."""
        while self._ahead:
            yield self._ahead.popleft()
        for one in islice(self._share.ranges(self.next, due), MAX_BLOCKS):
            yield self._make(*one)

    def _make(self, start: int, stop: int, following: int) -> Block:
        """Events cut into entries that go round the substreams."""
        block = self._workload.events(start, stop)
        rows: dict[str, list[pa.RecordBatch]] = {}
        for part in cut(block, max(1, round(block.nbytes / self._ctx.job.flush_bytes))):
            rows.setdefault(self._tags[self._turn % len(self._tags)], []).append(part)
            self._turn += 1
        # Where there is one substream, its rows are the block's: one call instead of one for each part.
        counts = [
            (tag, *self._stream.summarise(whole))
            for tag, sent in rows.items()
            for whole in ([block] if len(self._tags) == 1 else sent)
        ]
        bodies = {tag: [Body.of(part) for part in parts] for tag, parts in rows.items()}
        return Block(start, following, bodies, counts)

    def _note_delay(self, oldest: int) -> None:
        """Append acknowledged, less the scheduled flush of the oldest event in it."""
        intended_us = int(self._workload.offset_us(np.array([oldest], np.int64))[0])
        scheduled_us = math.ceil((intended_us + 1) / self._interval_us) * self._interval_us
        late_us = int(self._ctx.now_us() - self._start_us - scheduled_us)
        self.delays.setdefault(intended_us // 1_000_000, Histogram()).add_one(late_us)

    def _watermark(self) -> int:
        return int(self._workload.watermark_after(self.next)) if self.next < self._share.total else END_OF_TIME

    def _append(self, entries: list[Entry], now_ms: float) -> None:
        place = {"next": self.next, "ended": self._ended, "edges": self._edges.dump()}
        header = Header(
            kind=Kind.INPUT, producer=self._ctx.name, instance=self._ctx.instance, time_us=self._ctx.now_us()
        )
        body = json.dumps(place, separators=(",", ":")).encode()
        self._bound = self._writer.append([*entries, Entry((task_tag(self._ctx.name),), header, body)])[-1]
        self._stated_ms = now_ms

    def inputs(self) -> Mapping[str, int]:
        return {}

    def due_ms(self, now_ms: float) -> float:
        if self._ended:
            return RESTATE_MS
        return max(0.0, (self._next_flush_us - (self._ctx.now_us() - self._start_us)) / 1000)

    def bound(self) -> int:
        return self._bound

    def finished(self) -> bool:
        return self._ended

    def report(self) -> dict[str, object]:
        return {"rows_out": self._edges.total_sent(), "next": self.next}

    def result(self) -> dict[str, object]:
        return {"delays": {second: histogram.counts for second, histogram in self.delays.items()}}
