"""Operators on their own: tables that change on both sides, filters that change their mind, and exact recovery."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.columns import Latency, ints, schema_of
from dataflow.graph import Logic, Operator, Output
from dataflow.operators.aggregate import StreamAggregate, TableAggregate
from dataflow.operators.best import Best, BestAggregate
from dataflow.operators.join import Side, TableJoin
from dataflow.operators.latest import LatestAggregate
from dataflow.operators.maximum import WindowMaximum
from dataflow.operators.stateless import Branch, TableFilter, TableMap
from dataflow.operators.stream_join import StreamStreamJoin, StreamTableJoin
from dataflow.operators.window import WindowAggregate

Row = dict[str, Any]

REVISION = schema_of(ints=("key", "group", "value"), revisions=True)
revisions = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1]), st.integers(0, 5), st.integers(0, 2), st.integers(-3, 3)), max_size=40
)


def stamp(row: Row, ts: int) -> Row:
    return {**row, "oldest_us": ts, "newest_us": ts, "events": 1}


def cut(rows: list[Row], schema: pa.Schema, size: int) -> Iterable[pa.RecordBatch]:
    for at in range(0, len(rows), size):
        yield pa.RecordBatch.from_pylist(rows[at : at + size], schema)


def revision_rows(drawn: list[tuple[int, int, int, int]]) -> list[Row]:
    names = ("op", "key", "group", "value")
    return [stamp(dict(zip(names, row, strict=True)), ts) for ts, row in enumerate(drawn)]


def fold(outputs: Iterable[Output], key: tuple[str, ...], value: tuple[str, ...]) -> dict[Any, Any]:
    folded: dict[Any, Any] = {}
    for output in outputs:
        for row in output.batch.to_pylist():
            at = tuple(row[name] for name in key)
            if row["op"]:
                folded.pop(at, None)
            else:
                folded[at] = tuple(row[name] for name in value)
    return folded


def table_of(rows: list[Row]) -> dict[int, tuple[int, int]]:
    table: dict[int, tuple[int, int]] = {}
    for row in rows:
        if row["op"]:
            table.pop(row["key"], None)
        else:
            table[row["key"]] = (row["group"], row["value"])
    return table


@settings(max_examples=60, deadline=None)
@given(drawn=revisions, size=st.integers(1, 40))
def test_a_table_aggregate_replaces(drawn: Any, size: int) -> None:
    rows = revision_rows(drawn)
    operator = TableAggregate(output="out", member="key", group="group", value="value").build()
    outputs = [output for batch in cut(rows, REVISION, size) for output in operator.process("in", batch)]
    expected: dict[Any, Any] = {}
    for group, value in table_of(rows).values():
        total, count = expected.get((group,), (0, 0))
        expected[(group,)] = (total + value, count + 1)
    assert fold(outputs, ("group",), ("total", "count")) == expected


def positive(batch: pa.RecordBatch) -> Any:
    return ints(batch, "value") > 0


def negated(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(3, batch.schema.field(3), pa.array(-ints(batch, "value")))


@settings(max_examples=60, deadline=None)
@given(drawn=revisions, size=st.integers(1, 40))
def test_table_filter_and_map(drawn: Any, size: int) -> None:
    rows = revision_rows(drawn)
    operator = Branch(routes=(("out", (TableFilter(positive), TableMap(negated))),)).build()
    outputs = [output for batch in cut(rows, REVISION, size) for output in operator.process("in", batch)]
    expected = {(key,): (-value,) for key, (_, value) in table_of(rows).items() if value > 0}
    assert fold(outputs, ("key",), ("value",)) == expected


LEFT = schema_of(ints=("key", "left"), revisions=True)
RIGHT = schema_of(ints=("key", "right"), revisions=True)
TABLES = TableJoin(
    output="out",
    key=("key",),
    left=Side(stream="left", key=("key",), ints=("left",)),
    right=Side(stream="right", key=("key",), ints=("right",)),
)


@settings(max_examples=60, deadline=None)
@given(drawn=st.lists(st.tuples(st.booleans(), revisions), max_size=6))
def test_a_table_join_follows_both_tables(drawn: Any) -> None:
    operator = TABLES.build()
    outputs: list[Output] = []
    sides: dict[str, list[Row]] = {"left": [], "right": []}
    for is_left, part in drawn:
        side = "left" if is_left else "right"
        rows = revision_rows(part)
        sides[side] += rows
        renamed = [{**row, side: row["value"]} for row in rows]
        outputs += operator.process(side, pa.RecordBatch.from_pylist(renamed, LEFT if is_left else RIGHT))
    left, right = table_of(sides["left"]), table_of(sides["right"])
    expected = {(key,): (left[key][1], right[key][1]) for key in left.keys() & right.keys()}
    assert fold(outputs, ("key",), ("left", "right")) == expected


def test_a_pair_dates_from_its_later_event_and_an_unchanged_row_is_no_revision() -> None:
    operator = TABLES.build()

    def send(side: str, ts: int, value: int) -> list[Row]:
        row = stamp({"op": 0, "key": 1, side: value}, ts)
        outputs = operator.process(side, pa.RecordBatch.from_pylist([row], LEFT if side == "left" else RIGHT))
        return [row for output in outputs for row in output.batch.to_pylist()]

    assert send("left", 100, 7) == []
    [pair] = send("right", 20, 8)
    assert (pair["oldest_us"], pair["newest_us"], pair["events"]) == (100, 100, 1)
    assert send("right", 200, 8) == []
    [pair] = send("right", 300, 9)
    assert (pair["left"], pair["right"], pair["oldest_us"]) == (7, 9, 300)


ROW = schema_of(ints=("window", "key", "value", "ts", "final"))
BEST = Best(key="key", value="value", time="ts", kept=("window",))
STATEFUL: dict[str, tuple[Logic, tuple[str, ...]]] = {
    "sum": (StreamAggregate(output="out", keys=("key",), sums=(("total", "value"),)), ("in",)),
    "table sum": (TableAggregate(output="out", member="key", group="window", value="value", final="final"), ("in",)),
    "hopping": (
        WindowAggregate(
            output="out",
            time="ts",
            keys=("key",),
            sums=(("total", "value"), ("count", "events")),
            window_us=30,
            slide_us=10,
            grace_us=5,
        ),
        ("in",),
    ),
    "maximum": (WindowMaximum(output="out", member="key", rank="value", window_us=10, slide_us=10), ("in",)),
    "best": (BestAggregate(output="out", best=BEST, by_time=True), ("in",)),
    "latest": (
        LatestAggregate(output="out", member="key", group="window", value="value", time="ts", rows=2),
        ("in",),
    ),
    "table join": (
        TableJoin(
            output="out",
            key=("window", "key"),
            left=Side(stream="left", key=("window", "key"), ints=("value",)),
            right=Side(stream="right", key=("window", "key")),
            window_us=10,
        ),
        ("left", "right"),
    ),
    "stream table join": (
        StreamTableJoin(
            output="out",
            stream=Side(stream="left", key=("key",), ints=("value", "ts")),
            table=Side(stream="right", key=("key",), ints=("final", "window")),
            combine=BEST,
            expires="final",
            final=BEST.final,
        ),
        ("left", "right"),
    ),
    "stream stream join": (
        StreamStreamJoin(
            output="out",
            key=("window", "key"),
            left=Side(stream="left", key=("window", "key"), ints=("value",)),
            right=Side(stream="right", key=("window", "key"), ints=("final",)),
            window_us=10,
        ),
        ("left", "right"),
    ),
}

steps = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(
            st.tuples(st.integers(0, 59), st.integers(0, 4), st.integers(1, 4), st.integers(0, 9)),
            min_size=1,
            max_size=10,
        ),
        st.integers(0, 15),
    ),
    min_size=1,
    max_size=12,
)


def run_step(operator: Operator, name: str, step: Any, watermark: int) -> list[Row]:
    """One batch and one watermark; the rows that come out, in order."""
    inputs = STATEFUL[name][1]
    is_first, drawn, _ = step
    rows = []
    for ts, key, value, final in drawn:
        last = ts + final if name == "stream table join" else int(final == 0)
        row = {"window": ts // 10 * 10, "key": key, "value": value, "ts": ts, "final": last}
        rows.append(stamp(row, ts))
    batch = pa.RecordBatch.from_pylist(rows, ROW)
    if name in ("table sum", "latest"):
        batch = batch.add_column(0, "op", pa.array(np.zeros(len(rows), np.int8)))
    stream = inputs[0 if is_first else -1]
    outputs = [*operator.process(stream, batch), *operator.advance(watermark)]
    return [row for output in outputs for row in output.batch.to_pylist()]


@pytest.mark.parametrize("name", STATEFUL)
@settings(max_examples=30, deadline=None)
@given(steps=steps, crash=st.integers(0, 11), snapshot=st.integers(0, 11))
def test_a_recovered_operator_goes_on_exactly(name: str, steps: Any, crash: int, snapshot: int) -> None:
    """Killed after step `crash`, restored from the snapshot of an earlier step and the changes since: every later row
    is the same, in the same order, and so is what is dropped as late."""
    logic, _ = STATEFUL[name]
    steady, broken = logic.build(), logic.build()
    broken.state.capture(True)
    base, changes = None, list[pa.Buffer]()
    watermark = 0
    for at, step in enumerate(steps):
        watermark += step[2]
        assert run_step(broken, name, step, watermark) == run_step(steady, name, step, watermark)
        if (taken := broken.state.take_changes()) is not None:
            changes.append(taken)
        if at == min(snapshot, crash):
            base, changes = broken.state.snapshot(), []
        if at == crash:
            broken = logic.build()
            broken.state.capture(True)
            broken.state.restore(base)
            for buffer in changes:
                broken.state.apply(buffer)
            broken.rebuild()
            assert broken.state.rows == steady.state.rows
    assert broken.late_rows == steady.late_rows


@pytest.mark.parametrize("name", STATEFUL)
def test_a_forgotten_change_shows(name: str) -> None:
    """The check above is not blind: an operator recovered to nothing goes on otherwise."""
    drawn = [(0, 0, 3, 5), (1, 1, 3, 5), (2, 2, 3, 5)]
    logic, _ = STATEFUL[name]
    steady, broken = logic.build(), logic.build()
    for is_first in (True, False):
        for operator in (steady, broken):
            run_step(operator, name, (is_first, drawn, 0), 0)
    broken.state.restore(None)
    broken.rebuild()
    step = (True, [(5, 1, 1, 3)], 0)
    assert run_step(broken, name, step, 1) != run_step(steady, name, step, 1)


@settings(max_examples=60, deadline=None)
@given(steps=steps)
def test_a_hopping_window_with_grace_counts_what_it_drops(steps: Any) -> None:
    operator, watermark, late = STATEFUL["hopping"][0].build(), -(10**9), 0
    expected: dict[Any, list[int]] = {}
    rows: list[Row] = []
    for step in steps:
        for ts, key, value, _ in step[1]:
            windows = range(ts // 10 * 10 - 20, ts + 1, 10)
            opened = [start for start in windows if start + 30 + 5 > watermark]
            late += len(opened) < len(windows)
            for start in opened:
                sums = expected.setdefault((start, key), [0, 0])
                sums[0] += value
                sums[1] += 1
        watermark = max(watermark, 0) + step[2]
        rows += run_step(operator, "hopping", step, watermark)
    assert {(row["window"], row["key"]): [row["total"], row["count"]] for row in rows} == expected
    assert operator.late_rows == late


def test_rows_that_answer_no_event_leave_the_latency_of_others_alone() -> None:
    """A final row (zeros) folded with a revision of the same key once made the revision as old as time itself."""
    rows = Latency(np.array([0, 500, 300, 0]), np.array([0, 900, 400, 0]), np.array([0, 2, 1, 0]))
    folded = rows.fold(np.array([0, 0, 0, 1]), 2)
    assert folded.oldest_us.tolist() == [300, 0]
    assert folded.newest_us.tolist() == [900, 0]
    assert folded.events.tolist() == [3, 0]
