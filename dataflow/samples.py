"""Small queries on integers, for the simulator: each stresses one kind of state, and none is idempotent by luck.

Events have an event number, a time, a key and a value. The expected answers are plain Python, written apart from the
operators, so that a wrong operator cannot agree with itself.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.columns import LATENCY, Latency, batch_of, ints, schema_of
from dataflow.graph import Answer, Graph, Stage, Stream
from dataflow.operators.aggregate import StreamAggregate, TableAggregate
from dataflow.operators.join import Side
from dataflow.operators.maximum import WindowMaximum
from dataflow.operators.stateless import Branch, Filter, TableMap
from dataflow.operators.stream_join import StreamStreamJoin
from dataflow.operators.window import WindowAggregate

EVENT = schema_of(ints=("number", "ts", "key", "value"), latency=False)
ROW = schema_of(ints=("number", "ts", "key", "value"))
_SIDES = {side: schema_of(ints=("window", "key", side, f"{side}_value")) for side in ("left", "right")}
_GROUPED = schema_of(ints=("key", "group", "value"), revisions=True)
WINDOW_US = 1_000
GROUPS = 3

Row = Mapping[str, int]
Folded = Mapping[tuple[int, ...], tuple[int, ...]]

_EVENTS = Stream(name="events", schema=EVENT, identity=("number",))
_ROWS = Stream(name="rows", schema=ROW, key="key", identity=("number", "value"))


def stamped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Events with their latency columns: what every first stage adds."""
    columns = {name: batch.column(name) for name in EVENT.names}
    return batch_of(ROW, {**columns, **Latency.at(ints(batch, "ts")).columns()})


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(3, batch.schema.field(3), pa.array(2 * ints(batch, "value")))


def stateless(parallelism: int) -> Graph:
    """Every event with its value doubled."""
    result = Stream(name="result", schema=ROW, identity=("number", "value"))
    logic = Branch(routes=(("result", (stamped, doubled)),))
    return _graph(
        "sample_stateless",
        (_EVENTS, result),
        (Stage(name="map", inputs=("events",), outputs=("result",), logic=logic),),
        Answer(key=(), value=("number", "ts", "key", "value")),
        parallelism,
    )


def windowed(parallelism: int) -> Graph:
    """Sum and count per (window, key): an event processed twice shows."""
    logic = _counts("result", slide_us=WINDOW_US)
    result = Stream(name="result", schema=logic.schema, identity=("window", "key", "total", "count"))
    return _graph(
        "sample_windowed",
        (_EVENTS, _ROWS, result),
        (_split(), Stage(name="sum", inputs=("rows",), outputs=("result",), logic=logic)),
        Answer(key=("window", "key"), value=("total", "count")),
        parallelism,
    )


def ranked(parallelism: int) -> Graph:
    """The keys with the most events in each hopping window: a window behind a window, closed one after the other."""
    counts = _counts("counts", slide_us=WINDOW_US // 2)
    most = WindowMaximum(output="result", member="key", rank="count", window_us=WINDOW_US, slide_us=WINDOW_US // 2)
    streams = (
        _EVENTS,
        _ROWS,
        Stream(name="counts", schema=counts.schema, key="window", identity=("window", "key", "total", "count")),
        Stream(name="result", schema=most.schema, identity=("window", "key", "count")),
    )
    stages = (
        _split(),
        Stage(name="count", inputs=("rows",), outputs=("counts",), logic=counts),
        Stage(name="most", inputs=("counts",), outputs=("result",), logic=most),
    )
    return _graph("sample_ranked", streams, stages, Answer(key=("window", "key"), value=("count",)), parallelism)


def _counts(output: str, *, slide_us: int) -> WindowAggregate:
    return WindowAggregate(
        output=output,
        time="ts",
        keys=("key",),
        sums=(("total", "value"), ("count", "events")),
        window_us=WINDOW_US,
        slide_us=slide_us,
    )


def joined(parallelism: int) -> Graph:
    """Events with even numbers paired with those with odd ones, by key and window: two inputs to one stage."""
    join = StreamStreamJoin(
        output="result",
        key=("window", "key"),
        left=Side(stream="left", key=("window", "key"), ints=("left", "left_value"), time="oldest_us"),
        right=Side(stream="right", key=("window", "key"), ints=("right", "right_value"), time="oldest_us"),
        window_us=WINDOW_US,
    )
    streams = (
        _EVENTS,
        Stream(name="left", schema=_SIDES["left"], key="key", identity=("left", "left_value")),
        Stream(name="right", schema=_SIDES["right"], key="key", identity=("right", "right_value")),
        Stream(name="result", schema=join.schema, identity=("left", "right", "left_value", "right_value")),
    )
    routes = (("left", (Filter(even), as_left)), ("right", (Filter(odd), as_right)))
    stages = (
        Stage(name="branch", inputs=("events",), outputs=("left", "right"), logic=Branch(routes=routes)),
        Stage(name="join", inputs=("left", "right"), outputs=("result",), logic=join),
    )
    answer = Answer(key=(), value=("window", "key", "left", "left_value", "right", "right_value"))
    return _graph("sample_joined", streams, stages, answer, parallelism)


def even(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = ints(batch, "number") % 2 == 0
    return mask


def odd(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    return ~even(batch)


def as_left(batch: pa.RecordBatch) -> pa.RecordBatch:
    return _side(batch, "left")


def as_right(batch: pa.RecordBatch) -> pa.RecordBatch:
    return _side(batch, "right")


def _side(batch: pa.RecordBatch, side: str) -> pa.RecordBatch:
    ts = ints(batch, "ts")
    columns = {"window": ts // WINDOW_US * WINDOW_US, "key": batch.column("key"), side: batch.column("number")}
    columns[f"{side}_value"] = batch.column("value")
    return batch_of(_SIDES[side], {**columns, **Latency.at(ts).columns()})


def chained(parallelism: int) -> Graph:
    """Totals per group of keys over running sums per key: four stages, three repartitions' worth of state."""
    sums = StreamAggregate(output="sums", keys=("key",), sums=(("total", "value"), ("count", "events")))
    totals = TableAggregate(output="result", member="key", group="group", value="value")
    streams = (
        _EVENTS,
        _ROWS,
        Stream(name="sums", schema=sums.schema, key="key", identity=("key", "total", "count")),
        Stream(name="grouped", schema=_GROUPED, key="group", identity=("group", "key", "value")),
        Stream(name="result", schema=totals.schema, identity=("group", "total", "count")),
    )
    stages = (
        _split(),
        Stage(name="sum", inputs=("rows",), outputs=("sums",), logic=sums),
        Stage(
            name="regroup",
            inputs=("sums",),
            outputs=("grouped",),
            logic=Branch(routes=(("grouped", (TableMap(grouped),)),)),
        ),
        Stage(name="total", inputs=("grouped",), outputs=("result",), logic=totals),
    )
    return _graph("sample_chained", streams, stages, Answer(key=("group",), value=("total", "count")), parallelism)


def grouped(batch: pa.RecordBatch) -> pa.RecordBatch:
    key = ints(batch, "key")
    columns = {name: batch.column(name) for name in ("op", *LATENCY)}
    return batch_of(_GROUPED, {**columns, "key": key, "group": key % GROUPS, "value": ints(batch, "total")})


def expected_stateless(rows: Iterable[Row]) -> Counter[tuple[int, ...]]:
    return Counter((row["number"], row["ts"], row["key"], 2 * row["value"]) for row in rows)


def expected_windowed(rows: Iterable[Row]) -> Folded:
    answer: dict[tuple[int, ...], tuple[int, ...]] = defaultdict(lambda: (0, 0))
    for row in rows:
        key = (row["ts"] // WINDOW_US * WINDOW_US, row["key"])
        total, count = answer[key]
        answer[key] = (total + row["value"], count + 1)
    return dict(answer)


def expected_ranked(rows: Iterable[Row]) -> Folded:
    slide = WINDOW_US // 2
    counts: Counter[tuple[int, int]] = Counter()
    for row in rows:
        pane = row["ts"] // slide * slide
        counts.update([(pane - slide, row["key"]), (pane, row["key"])])
    best: dict[int, int] = defaultdict(int)
    for (window, _), count in counts.items():
        best[window] = max(best[window], count)
    return {key: (count,) for key, count in counts.items() if count == best[key[0]]}


def expected_joined(rows: Iterable[Row]) -> Counter[tuple[int, ...]]:
    known = [(row["ts"] // WINDOW_US * WINDOW_US, row["key"], row["number"], row["value"]) for row in rows]
    return Counter(
        (*left, *right[2:])
        for left in known
        for right in known
        if left[2] % 2 == 0 and right[2] % 2 == 1 and left[:2] == right[:2]
    )


def expected_chained(rows: Iterable[Row]) -> Folded:
    keys: dict[int, set[int]] = defaultdict(set)
    totals: dict[int, int] = defaultdict(int)
    for row in rows:
        keys[row["key"] % GROUPS].add(row["key"])
        totals[row["key"] % GROUPS] += row["value"]
    return {(group,): (totals[group], len(keys[group])) for group in totals}


def _split() -> Stage:
    return Stage(name="split", inputs=("events",), outputs=("rows",), logic=Branch(routes=(("rows", (stamped,)),)))


def _graph(
    name: str, streams: tuple[Stream, ...], stages: tuple[Stage, ...], answer: Answer, parallelism: int
) -> Graph:
    graph = Graph(
        name=name,
        source="events",
        result="result",
        answer=answer,
        streams={stream.name: stream for stream in streams},
        stages=stages,
    )
    return graph.with_parallelism(parallelism)


SAMPLES = {
    "stateless": (stateless, expected_stateless),
    "windowed": (windowed, expected_windowed),
    "ranked": (ranked, expected_ranked),
    "joined": (joined, expected_joined),
    "chained": (chained, expected_chained),
}
