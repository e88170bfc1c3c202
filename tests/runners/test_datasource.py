"""The data source shows what is committed, no more and no less, in batch and as a stream.

Logs are written act by act, by the protocols' own tasks or entry by entry, with a record of what is committed by then.
"""

import random
from itertools import count, takewhile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from dataflow.columns import batch_of
from dataflow.samples import windowed
from dataflow.state import TaskState
from protocols.aligned_checkpoint import AlignedCheckpoint
from protocols.at_least_once import AtLeastOnce
from protocols.base import Context, Guarantee, Protocol, TaskContext, TaskProtocol
from protocols.checkpoint_records import CONTROL, COORDINATOR, CheckpointId, Control, barrier_entry, control_entry
from protocols.outbox import Outbox, Writer
from protocols.progress_marking import ProgressMarking
from protocols.transaction_reader import encode_marker
from protocols.transactions import Transactions
from protocols.unsafe import Unsafe
from runners.channel import SocketChannel
from runners.datasource import STREAMS_KEY, DataSourceError, Offset, SharedLogSource, StreamReader, publish, register
from runners.plan import lay_out
from runners.uploads import ThreadUploads
from sharedlog.embedded import EmbeddedLogSpec
from sharedlog.errors import Trimmed
from sharedlog.log import Entry, Header, Kind


class Logbook:
    """Two tasks of one stage write numbered rows, and a record is kept of those that are committed.

    events ── split/0, split/1 ── rows (two substreams) ── sum/0, sum/1 ── result (one substream)
    """

    protocol: ClassVar[Protocol]
    overtaking: ClassVar[bool] = False  # whether a row may be seen before an undecided one that lies ahead of it

    def __init__(self, path: Path, stage: str) -> None:
        self.path = str(path)
        spec = EmbeddedLogSpec(path=self.path)
        self.log, self.store = spec.open(), spec.snapshots()
        self.layout = lay_out(windowed(2), sources=1, flush_interval_ms=1)
        publish(self.layout, self.protocol, self.store)
        self.stream = {"split": "rows", "sum": "result"}[stage]
        self.tags = self.layout.tags[self.stream]
        self.tasks = (f"{stage}/0", f"{stage}/1")
        self.committed: list[int] = []
        self.written: list[int] = []
        self._lanes: dict[str, list[int]] = {tag: [] for tag in self.tags}
        self.pending: dict[str, list[int]] = {task: [] for task in self.tasks}
        self._numbers = count(1)
        for task in self.tasks:
            self.start(task)

    def start(self, task: str) -> None:
        raise NotImplementedError

    def append(self, task: str, rows: dict[str, list[pa.RecordBatch]]) -> None:
        raise NotImplementedError

    def commit(self, task: str) -> None:
        self.committed += self.pending[task]
        self.pending[task] = []

    def crash(self, task: str) -> None:
        """The task dies, and its successor starts."""
        self.pending[task] = []
        self.start(task)

    def write(self, task: str, rows: int = 1) -> None:
        """One entry of so many rows, in a substream chosen by the first one's number; not committed yet."""
        numbers = [next(self._numbers) for _ in range(rows)]
        tag = self.tags[numbers[0] % len(self.tags)]
        self.append(task, {tag: [self.rows(self.stream, numbers)]})
        self.written += numbers
        self._lanes[tag] += numbers
        exactly_once = self.protocol.guarantee is Guarantee.EXACTLY_ONCE
        (self.pending[task] if exactly_once else self.committed).extend(numbers)

    def visible(self) -> list[int]:
        """The rows that a reader may act on."""
        undecided = {number for numbers in self.pending.values() for number in numbers}
        found = []
        for lane in self._lanes.values():
            ahead = lane if self.overtaking else takewhile(lambda number: number not in undecided, lane)
            found += [number for number in ahead if number in self.committed]
        return sorted(found)

    def rows(self, stream: str, numbers: list[int]) -> pa.RecordBatch:
        schema = self.layout.schema_of(stream)
        return batch_of(schema, {field.name: pa.array(np.array(numbers)).cast(field.type) for field in schema})

    def context(self, name: str) -> dict[str, Any]:
        return {
            "job": self.layout.job,
            "name": name,
            "instance": self.log.increment(f"instance/{name}"),
            "log": self.log,
            "snapshots": self.store,
            "uploads": ThreadUploads(self.store, {}),
            "channel": SocketChannel(name, self.store),
            "now_us": lambda: 0,
        }


class TaskLogbook(Logbook):
    """The protocol's own task writes."""

    def __init__(self, path: Path, stage: str) -> None:
        self._parts: dict[str, TaskProtocol] = {}
        self._now_ms: dict[str, float] = {}
        super().__init__(path, stage)

    def start(self, task: str) -> None:
        ctx = TaskContext(plan=self.layout.job.tasks[task], state=TaskState({}), **self.context(task))
        self._parts[task] = self.protocol.task(ctx)
        self._parts[task].recover()
        self._tick(task, 0)

    def append(self, task: str, rows: dict[str, list[pa.RecordBatch]]) -> None:
        self._parts[task].publish(rows, 0)
        self._tick(task, 2)

    def commit(self, task: str) -> None:
        super().commit(task)
        self._tick(task, 10_000)

    def _tick(self, task: str, after_ms: float) -> None:
        self._now_ms[task] = self._now_ms.get(task, 0) + after_ms
        self._parts[task].tick(self._now_ms[task])


class UnsafeLogbook(TaskLogbook):
    protocol = Unsafe()


class AtLeastOnceLogbook(TaskLogbook):
    protocol = AtLeastOnce(commit_interval_ms=5_000)


class MarkedLogbook(TaskLogbook):
    protocol = ProgressMarking(commit_interval_ms=5_000, snapshot_interval_ms=0)


class TransactionLogbook(Logbook):
    """Entries of numbered transactions, and the decisions that a coordinator would append."""

    protocol = Transactions()

    def __init__(self, path: Path, stage: str) -> None:
        self._writers: dict[str, tuple[Context, Outbox]] = {}
        self._open: dict[str, int] = {}
        super().__init__(path, stage)

    def start(self, task: str) -> None:
        if task in self._writers:
            self._decide(task, committed=False)
        ctx = Context(**self.context(task))
        self._writers[task] = ctx, Outbox(ctx, self.tags)
        self._open[task] = 1

    def append(self, task: str, rows: dict[str, list[pa.RecordBatch]]) -> None:
        ctx, outbox = self._writers[task]
        outbox.add(rows, 0)
        Writer(ctx).append(outbox.drain(0, transaction=self._open[task]))

    def commit(self, task: str) -> None:
        super().commit(task)
        self._decide(task, committed=True)
        self._open[task] += 1

    def _decide(self, task: str, *, committed: bool) -> None:
        header = Header(Kind.MARKER, task, self._writers[task][0].instance, transaction=self._open[task])
        self.log.append([Entry((tag,), header, encode_marker(committed, 0)) for tag in self.tags])


class CheckpointLogbook(Logbook):
    """Entries of epochs, barriers, and the orders that the coordinator would append."""

    protocol = AlignedCheckpoint()
    overtaking = True

    def __init__(self, path: Path, stage: str) -> None:
        self._writers: dict[str, tuple[Context, Outbox]] = {}
        self._epoch = self._number = 0
        super().__init__(path, stage)

    def start(self, task: str) -> None:
        """A rollback is everybody's."""
        self._epoch += 1
        self.pending = {task: [] for task in self.tasks}
        self._say(Control.EPOCH, *self.layout.job.source_tags, *self.tags)
        for name in self.tasks:
            ctx = Context(**self.context(name))
            self._writers[name] = ctx, Outbox(ctx, self.tags)

    def append(self, task: str, rows: dict[str, list[pa.RecordBatch]]) -> None:
        ctx, outbox = self._writers[task]
        outbox.add(rows, 0)
        Writer(ctx).append(outbox.drain(0, epoch=self._epoch))

    def commit(self, task: str) -> None:
        self._number += 1
        for ctx, _ in self._writers.values():
            self.log.append([barrier_entry(ctx, self.tags, CheckpointId(self._epoch, self._number))])
        self._say(Control.COMPLETE, *self.layout.job.result_tags)
        for other in self.tasks:
            super().commit(other)

    def _say(self, what: Control, *tags: str) -> None:
        ctx = Context(**self.context(COORDINATOR))
        self.log.append([control_entry(ctx, (CONTROL, *tags), what, epoch=self._epoch, number=self._number)])


BY_STREAM = [UnsafeLogbook, AtLeastOnceLogbook, MarkedLogbook, TransactionLogbook]
EVERY = [*((kind, stage) for kind in BY_STREAM for stage in ("split", "sum")), (CheckpointLogbook, "sum")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def source(log: Logbook, **options: str) -> SharedLogSource:
    return SharedLogSource({"path": log.path, "stream": log.stream, **options})


def shown(log: Logbook, **options: str) -> list[dict[str, Any]]:
    """What a batch gives, without Spark."""
    asked = source(log, **options)
    reader = asked.reader(asked.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["key"] for row in rows)


def between(reader: StreamReader, start: Offset, end: Offset) -> list[dict[str, Any]]:
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


def act(log: Logbook, draw: random.Random) -> None:
    task = draw.choice(log.tasks)
    action = draw.choices((log.write, log.commit, log.crash), (6, 3, 1))[0]
    action(task)


@pytest.mark.parametrize(("kind", "stage"), EVERY)
def test_what_is_committed_is_shown_after_every_act(kind: type[Logbook], stage: str, path: Path) -> None:
    log = kind(path, stage)
    draw = random.Random(7)
    for _ in range(30):
        act(log, draw)
        assert numbers(shown(log)) == log.visible()
    for task in log.tasks:
        log.commit(task)
    assert numbers(shown(log)) == log.visible() == sorted(log.committed)
    assert numbers(shown(log, committed="false")) == log.written
    assert len(log.committed) > 5
    log.log.close()


@pytest.mark.parametrize(("kind", "stage"), EVERY)
@pytest.mark.parametrize("seed", range(5))
def test_rows_between_offsets_are_the_same_whenever_they_are_read(
    kind: type[Logbook], stage: str, seed: int, path: Path
) -> None:
    log = kind(path, stage)
    asked = source(log)
    reader = asked.streamReader(asked.schema())
    draw = random.Random(seed)
    offsets = [reader.initialOffset()]
    taken = []
    for _ in range(40):
        act(log, draw)
        if draw.random() < 0.4:
            offsets.append(reader.latestOffset(offsets[-1], None))
            taken.append(between(reader, *offsets[-2:]))
            assert numbers([row for rows in taken for row in rows]) == log.visible(), f"seed {seed}"
    for rows, start, end in zip(taken, offsets, offsets[1:], strict=False):
        assert between(reader, start, end) == rows, f"seed {seed}"
    assert numbers(between(reader, offsets[0], offsets[-1])) == numbers([row for rows in taken for row in rows])
    log.log.close()


def test_an_offset_stands_still_while_the_stream_does(path: Path) -> None:
    """Other streams and reports go on, and must not make empty micro-batches."""
    log = MarkedLogbook(path, "sum")
    log.write("sum/0")
    log.commit("sum/0")
    asked = source(log)
    reader = asked.streamReader(asked.schema())
    offset = reader.latestOffset(reader.initialOffset(), None)
    log.log.append([Entry(("r",), Header(Kind.REPORT, "sum/0"))])
    assert reader.latestOffset(offset, None) == offset
    assert reader.partitions(offset, offset) == []
    log.log.close()


def test_rows_carry_their_entry(path: Path) -> None:
    log = MarkedLogbook(path, "sum")
    log.write("sum/1", rows=2)
    log.crash("sum/1")
    log.write("sum/1", rows=3)
    log.commit("sum/1")
    assert {(row["producer"], row["instance"], row["key"]) for row in shown(log)} == {
        ("sum/1", 2, n) for n in (3, 4, 5)
    }
    assert len({row["lsn"] for row in shown(log)}) == 1
    everything = shown(log, committed="false")
    assert [(row["instance"], row["sequence"], row["tag"]) for row in everything] == [
        *[(1, 1, "d/result/0")] * 2,
        *[(2, 1, "d/result/0")] * 3,
    ]
    log.log.close()


@pytest.mark.parametrize("kind", [*BY_STREAM, CheckpointLogbook])
def test_the_source_stream_counts_at_once(kind: type[Logbook], path: Path) -> None:
    log = kind(path, "sum")
    ctx = Context(**log.context("source/0"))
    outbox = Outbox(ctx, log.layout.job.source_tags, Kind.INPUT)
    for turn, tag in enumerate(log.layout.job.source_tags):
        outbox.add({tag: [log.rows("events", [turn])]}, 0)
        Writer(ctx).append(outbox.drain(0))
        log.crash("sum/0")
    assert numbers(shown(log, stream="events")) == [0, 1]
    log.log.close()


def test_epochs_have_no_committed_view_between_stages(path: Path) -> None:
    log = CheckpointLogbook(path, "split")
    log.write("split/0")
    with pytest.raises(DataSourceError, match=r"'rows'.*only in the result.*\"committed\", \"false\""):
        shown(log)
    assert [row["epoch"] for row in shown(log, committed="false")] == [2]
    log.log.close()


@pytest.mark.parametrize("kind", BY_STREAM)
def test_a_trimmed_log_begins_where_it_was_cut(kind: type[Logbook], path: Path) -> None:
    log = kind(path, "split")
    for turn in range(8):
        log.write(log.tasks[turn % 2])
        log.commit(log.tasks[turn % 2])
    before = shown(log)
    cut = log.log.tail() // 2
    log.log.trim(cut)
    assert numbers(shown(log)) == [row["key"] for row in sorted(before, key=lambda r: r["key"]) if row["lsn"] >= cut]
    assert len(shown(log)) < len(before)
    log.log.close()


def test_a_trimmed_log_of_epochs_says_what_can_still_be_seen(path: Path) -> None:
    log = CheckpointLogbook(path, "sum")
    for _ in range(4):
        log.write("sum/0")
        log.commit("sum/0")
    log.log.trim(log.log.tail() // 2)
    with pytest.raises(DataSourceError, match=r"trimmed.*epoch"):
        shown(log)
    assert 0 < len(shown(log, committed="false")) < 4
    log.log.close()


def test_a_stream_that_a_trim_overtakes_fails(path: Path) -> None:
    log = UnsafeLogbook(path, "sum")
    asked = source(log)
    reader = asked.streamReader(asked.schema())
    start = reader.initialOffset()
    log.write("sum/0")
    log.log.trim(log.log.tail() + 1)
    with pytest.raises(Trimmed):
        reader.latestOffset(start, None)
    log.log.close()


WRONG = [
    ({"stream": "nowhere"}, "no stream 'nowhere'.*there are events, result, rows"),
    ({"stream": ""}, "no stream; set.*there are events, result, rows"),
    ({"committed": "perhaps"}, "committed is 'perhaps'; use true or false"),
    ({"commited": "false"}, "no option commited; there are path, stream, committed"),
    ({"path": ""}, "no path; set"),
    ({"path": "/nowhere/log"}, "no log in /nowhere/log; give the log of a run made with keep_log=true"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_options_are_named(options: dict[str, str], message: str, path: Path) -> None:
    log = UnsafeLogbook(path, "sum")
    with pytest.raises(DataSourceError, match=message):
        source(log, **options).schema()
    log.log.close()


def test_logs_that_say_too_little_are_named(path: Path) -> None:
    log = UnsafeLogbook(path, "sum")
    with pytest.raises(DataSourceError, match=f"no log in {path.parent}; use {path}"):
        source(log, path=str(path.parent)).schema()
    other = source(log, committed="false").schema()
    with pytest.raises(DataSourceError, match="leave out"):
        source(log).reader(other)
    log.store.put(STREAMS_KEY, [b'{"protocol": {"_target_": "pathlib.Path"}, "streams": {"result": {}}}'])
    with pytest.raises(DataSourceError, match=r"pathlib\.Path, which is no protocol"):
        source(log).schema()
    log.store.delete(STREAMS_KEY)
    with pytest.raises(DataSourceError, match="does not say which streams"):
        source(log).schema()
    log.log.close()


@pytest.fixture
def registered(spark: Any) -> Any:
    register(spark)
    return spark


def test_a_batch_on_spark(registered: Any, path: Path) -> None:
    log = MarkedLogbook(path, "split")
    for turn in range(6):
        log.write(log.tasks[turn % 2], rows=10)
    log.commit("split/0")
    frame = registered.read.format("sharedlog").option("path", log.path).option("stream", "rows").load()
    assert frame.columns[:4] == ["lsn", "producer", "instance", "number"]
    assert frame.rdd.getNumPartitions() == 2
    assert [row.key for row in frame.orderBy("key").collect()] == log.visible()
    assert frame.where("producer = 'split/1'").count() == 0
    with pytest.raises(Exception, match="no stream 'nowhere'"):
        registered.read.format("sharedlog").option("path", log.path).option("stream", "nowhere").load()
    log.log.close()


def test_a_stream_on_spark_goes_on_where_it_was(registered: Any, path: Path, tmp_path: Path) -> None:
    log = MarkedLogbook(path, "split")
    log.write("split/0", rows=10)
    log.commit("split/0")
    log.write("split/0", rows=10)  # its marker comes between the two queries
    output = str(tmp_path / "output")

    def go_on() -> list[int]:
        frame = registered.readStream.format("sharedlog").option("path", log.path).option("stream", "rows").load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(output).awaitTermination()
        return [row.key for row in registered.read.parquet(output).orderBy("key").collect()]

    assert go_on() == log.committed
    log.commit("split/0")
    log.write("split/1", rows=10)
    assert go_on() == log.committed
    assert len(log.committed) == 20
    log.log.close()
