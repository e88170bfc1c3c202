"""A look into a kept log: `spark.read.format("sharedlog")` gives the committed rows of a stream as a DataFrame.

What counts is decided by the protocol's own observer, the one that the sink uses, built anew from a description that
the run leaves beside its log. In batch and as a stream the work is the same: for each substream, load the observer's
place, read on up to an LSN, and hand out what it admits. docs/datasource.md shows it in use.
"""

import contextlib
import importlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from protocols.base import Broken, Context, Delivery, Job, Observer, Protocol
from protocols.inbox import DATA, Lane, Lanes, OpenInbox
from runners.channel import SocketChannel
from runners.plan import Layout
from runners.uploads import ThreadUploads
from runners.worker import wall_us
from sharedlog.codec import decode_batch, decode_schema, encode_schema
from sharedlog.embedded import EmbeddedLogSpec
from sharedlog.log import Header, Kind, SharedLog, SnapshotStore

STREAMS_KEY = "job/streams"
READ_BYTES = 16 << 20
OPTIONS = ("path", "stream", "committed")
Offset = dict[str, Any]
"""{"until": LSN, "places": {tag: what the observer saved}}: all that was committed up to that LSN was handed out."""


def _ints(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.int64(), nullable=False) for name in names]


def _text(name: str) -> pa.Field:
    return pa.field(name, pa.string(), nullable=False)


ALWAYS = (*_ints("lsn"), _text("producer"), *_ints("instance"))
UNCOMMITTED = (_text("tag"), *_ints("sequence", "epoch", "transaction", "watermark", "time_us"))


class DataSourceError(ValueError):
    """A log or a stream that cannot be shown."""


def register(spark: Any) -> None:
    """Make `format("sharedlog")` known to a session whose workers find this repository on their PYTHONPATH."""
    spark.dataSource.register(SharedLogSource)


def publish(layout: Layout, protocol: Protocol, snapshots: SnapshotStore) -> None:
    """Describe a job beside its log: the streams' schemas, tags and writers, and the protocol. No pickle."""
    target = type(protocol)
    description = {
        "protocol": {
            "_target_": f"{target.__module__}.{target.__qualname__}",
            **{field.name: getattr(protocol, field.name) for field in fields(protocol)},
        },
        "source": layout.graph.source,
        "result": layout.graph.result,
        "streams": {stream: dict.fromkeys(tags, _writers(layout, stream)) for stream, tags in layout.tags.items()},
    }
    for stream in layout.tags:
        snapshots.put(f"schema/{stream}", [encode_schema(layout.schema_of(stream))])
    snapshots.put(STREAMS_KEY, [json.dumps(description).encode()])


def _writers(layout: Layout, stream: str) -> tuple[str, ...]:
    stage = layout.graph.producer(stream)
    if stage is None:
        return layout.job.sources
    return tuple(task for task in layout.job.tasks if layout.stage_of(task) == stage.name)


class SharedLogSource(DataSource):  # type: ignore[misc]
    """Options: `path` of the log's directory, `stream`, and `committed` (true; false shows every entry's rows)."""

    def __init__(self, options: Mapping[str, str]) -> None:
        unknown = sorted(set(map(str.lower, options)) - set(OPTIONS))
        if unknown:
            raise DataSourceError(f"sharedlog: no option {', '.join(unknown)}; there are {', '.join(OPTIONS)}")
        if not options.get("path"):
            raise DataSourceError('sharedlog: no path; set .option("path", "results/<run>/log")')
        committed = options.get("committed", "true").lower()
        if committed not in ("true", "false"):
            raise DataSourceError(f"sharedlog: committed is {committed!r}; use true or false")
        self._path = os.path.abspath(options["path"])  # executors may stand elsewhere
        self._stream = options.get("stream", "")
        self._committed = committed == "true"

    @classmethod
    def name(cls) -> str:
        return "sharedlog"

    def schema(self) -> Any:
        return from_arrow_schema(self._view().columns)

    def reader(self, schema: Any) -> "BatchReader":
        return BatchReader(self._checked(schema), to_arrow_schema(schema, timezone="UTC"))

    def streamReader(self, schema: Any) -> "StreamReader":
        return StreamReader(self._checked(schema), to_arrow_schema(schema, timezone="UTC"))

    def _view(self) -> "View":
        return look_up(self._path, self._stream, committed=self._committed)

    def _checked(self, schema: Any) -> "View":
        view = self._view()
        if schema.fieldNames() != view.columns.names:
            raise DataSourceError(
                f"sharedlog: stream {view.stream!r} has the columns {', '.join(view.columns.names)} and was asked for"
                f" {', '.join(schema.fieldNames())}; leave out .schema(…) and select from the DataFrame"
            )
        return view


def look_up(path: str, stream: str, *, committed: bool) -> "View":
    """What the log at `path` says about one of its streams. Raises `DataSourceError`."""
    if not (Path(path) / "FORMAT").is_file():
        inside = Path(path) / "log"
        advice = f"use {inside}" if (inside / "FORMAT").is_file() else "give the log of a run made with keep_log=true"
        raise DataSourceError(f"sharedlog: there is no log in {path}; {advice}")
    snapshots = EmbeddedLogSpec.of(path).snapshots()
    described = snapshots.get(STREAMS_KEY)
    if described is None:
        raise DataSourceError(
            f"sharedlog: {path} does not say which streams it holds: it was not written by a run of this release;"
            " run again with keep_log=true"
        )
    description = json.loads(described.to_pybytes())
    streams = description["streams"]
    if stream not in streams:
        asked = f"no stream {stream!r} in {path}" if stream else 'no stream; set .option("stream", …)'
        raise DataSourceError(f"sharedlog: {asked}; there are {', '.join(sorted(streams))}")
    rows = decode_schema(cast(pa.Buffer, snapshots.get(f"schema/{stream}")))
    return View(
        path=path,
        stream=stream,
        committed=committed,
        protocol=_protocol(**description["protocol"]),
        is_source=stream == description["source"],
        is_result=stream == description["result"],
        inputs={tag: tuple(writers) for tag, writers in streams[stream].items()},
        rows=rows,
        columns=pa.schema([*ALWAYS, *(() if committed else UNCOMMITTED), *rows]),
    )


def _protocol(*, _target_: str, **parameters: Any) -> Protocol:
    module, _, name = _target_.rpartition(".")
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise DataSourceError(f"sharedlog: the log was written under {_target_}, which is not here: {error}") from error
    if not (isinstance(target, type) and issubclass(target, Protocol)):
        raise DataSourceError(f"sharedlog: the log was written under {_target_}, which is no protocol")
    return target(**parameters)


class Everything(OpenInbox):
    """What `committed=false` shows: every data entry, a zombie's and a repeated one too."""

    def _fresh(self, lane: Lane, header: Header) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class View:
    """What one DataFrame shows of a log. Picklable: planned on the driver, read by the executors."""

    path: str
    stream: str
    committed: bool
    protocol: Protocol
    is_source: bool
    is_result: bool
    inputs: Mapping[str, tuple[str, ...]]  # the stream's tags, and who writes to them
    rows: pa.Schema
    columns: pa.Schema

    @contextlib.contextmanager
    def opened(self) -> Iterator[SharedLog]:
        log = EmbeddedLogSpec.of(self.path).open()
        try:
            yield log
        finally:
            log.close()

    def beginning(self, log: SharedLog) -> Offset:
        """Before the first entry that the log still holds."""
        self.check(log)
        after = log.first() - 1
        places = {}
        for tag in self.inputs:
            observer = self._observer(log, tag)
            if after:
                self._skip(log, observer, tag, after)
            places[tag] = observer.save().decode()
        return {"until": after, "places": places}

    def advance(self, log: SharedLog, start: Offset, until: int) -> Offset:
        """Admit what came since `start`, up to an LSN, without looking at rows.

        The new offset differs from `start` only if the stream itself has new entries: the log never stands still.
        """
        self.check(log)
        places = {}
        newest = start["until"]
        for tag, place in start["places"].items():
            observer = self._observer(log, tag)
            observer.load(place.encode())
            for _ in _admitted(log, observer, until):
                pass
            newest = max([newest, *observer.inputs().values()])
            with _contradictions():
                places[tag] = observer.save().decode()
        return {"until": newest, "places": places}

    def read(self, tag: str, place: str, until: int) -> Iterator[pa.RecordBatch]:
        """The rows that one substream admits between a place and an LSN: the same ones whenever it is asked."""
        with self.opened() as log:
            observer = self._observer(log, tag)
            observer.load(place.encode())
            for delivery in _admitted(log, observer, until):
                if delivery.record.header.rows:
                    yield self._columns_of(delivery)

    def check(self, log: SharedLog) -> None:
        """Where commits are of epochs, they are told to readers of the result alone."""
        if not self.committed or self.is_result or self.is_source:
            return
        newest = (log.last(tag, kind=Kind.DATA) for tag in self.inputs)
        if any(record is not None and record.header.epoch for record in newest):
            raise DataSourceError(
                f"sharedlog: {type(self.protocol).__name__} does not say in stream {self.stream!r} what is committed,"
                ' only in the result; read that, or set .option("committed", "false") for all rows with their epochs'
            )

    def _observer(self, log: SharedLog, tag: str) -> Observer:
        inputs = {tag: self.inputs[tag]}
        snapshots = EmbeddedLogSpec.of(self.path).snapshots()
        written: dict[str, list[int]] = {}
        context = Context(
            job=Job(sources=(), source_tags=(), tasks={}, sink_inputs=inputs),
            name="datasource",
            instance=0,
            log=log,
            snapshots=snapshots,
            uploads=ThreadUploads(snapshots, written),
            channel=SocketChannel("datasource", snapshots),
            now_us=wall_us,
            written=written,
        )
        if not self.committed:
            return Everything(context, inputs)
        if self.is_source:  # an append of a source counts at once, under every protocol
            return OpenInbox(context, inputs)
        return self.protocol.observer(context)

    def _skip(self, log: SharedLog, observer: Observer, tag: str, after: int) -> None:
        """Begin behind a trim: as if what it took had been delivered, so that it does not count as a gap."""
        if not isinstance(observer, Lanes):
            raise DataSourceError(f"sharedlog: {self.path} was trimmed before LSN {after + 1}; {_ALL_ROWS}")
        lane = observer.lanes[tag]
        lane.position = lane.read = position = after
        unknown = set(lane.producers)
        while unknown and (records := log.read(tag, position, max_bytes=READ_BYTES)):
            position = records[-1].lsn
            for header in (record.header for record in records if record.header.kind in DATA):
                if self.committed and header.epoch:
                    raise DataSourceError(
                        f"sharedlog: {self.path} was trimmed before LSN {after + 1}, and with it went the beginning of"
                        f" epoch {header.epoch}; {_ALL_ROWS}"
                    )
                if header.producer in unknown:
                    unknown.remove(header.producer)
                    producer = lane.producers[header.producer]
                    producer.instance, producer.sequence = header.instance, header.sequence - 1

    def _columns_of(self, delivery: Delivery) -> pa.RecordBatch:
        tag, (lsn, header, body), _ = delivery
        known = {"lsn": lsn, "tag": tag, **header._asdict()}
        batch = decode_batch(body, self.rows)
        leading = self.columns.names[: len(self.columns) - len(self.rows)]
        entry = [pa.repeat(pa.scalar(known[name], self.columns.field(name).type), batch.num_rows) for name in leading]
        return pa.RecordBatch.from_arrays([*entry, *batch.columns], schema=self.columns)


_ALL_ROWS = 'set .option("committed", "false") for all rows that are left'


def _admitted(log: SharedLog, observer: Observer, until: int) -> Iterator[Delivery]:
    while True:
        records = {}
        for tag, after in observer.inputs().items():
            found = log.read(tag, after, max_bytes=READ_BYTES)
            if wanted := [record for record in found if record.lsn <= until]:
                records[tag] = wanted
        if not records:
            return
        with _contradictions():
            for group in observer.admit(records):
                yield from group


@contextlib.contextmanager
def _contradictions() -> Iterator[None]:
    try:
        yield
    except Broken as broken:
        raise DataSourceError(f"sharedlog: the log contradicts its protocol: {broken}; {_ALL_ROWS}") from broken


class Slice(InputPartition):  # type: ignore[misc]
    """One substream from a place up to an LSN."""

    def __init__(self, tag: str, place: str, until: int) -> None:
        super().__init__(tag)
        self.tag, self.place, self.until = tag, place, until


def _slices(start: Offset, until: int) -> list[Slice]:
    return [Slice(tag, place, until) for tag, place in start["places"].items()]


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """All of the log at the moment of planning: every substream ends at the same LSN."""

    def __init__(self, view: View, schema: pa.Schema) -> None:
        self._view, self._schema = view, schema

    def partitions(self) -> list[Slice]:
        with self._view.opened() as log:
            return _slices(self._view.beginning(log), log.tail())

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:
        for batch in self._view.read(partition.tag, partition.place, partition.until):
            yield batch.cast(self._schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The log as it grows. The rows between two offsets are the same whenever, and by whomever, they are read."""

    def __init__(self, view: View, schema: pa.Schema) -> None:
        self._view, self._schema = view, schema
        self._available: int | None = None  # the tail when a query of `availableNow` began

    def prepareForTriggerAvailableNow(self) -> None:
        with self._view.opened() as log:
            self._available = log.tail()

    def initialOffset(self) -> Offset:
        with self._view.opened() as log:
            return self._view.beginning(log)

    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        with self._view.opened() as log:
            return self._view.advance(log, start, log.tail() if self._available is None else self._available)

    def partitions(self, start: Offset, end: Offset) -> list[Slice]:
        return [] if start == end else _slices(start, end["until"])

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:
        for batch in self._view.read(partition.tag, partition.place, partition.until):
            yield batch.cast(self._schema)
