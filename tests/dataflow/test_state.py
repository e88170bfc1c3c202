"""State against a dict: the same after any writes, and the same again after snapshot, changes and replay."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.index import HashIndex, group, ordinals
from dataflow.state import CounterStore, StateError, TaskState
from dataflow.table import Table

Model = dict[tuple[int, int], tuple[int, str]]

keys = st.tuples(st.integers(0, 6), st.integers(-3, 3))
operation = st.one_of(
    st.tuples(st.just("put"), st.lists(st.tuples(keys, st.integers(-9, 9), st.text(max_size=2)), max_size=8)),
    st.tuples(st.just("add"), st.lists(st.tuples(keys, st.integers(-9, 9)), max_size=8)),
    st.tuples(st.just("delete"), st.lists(keys, max_size=4, unique=True)),
    st.tuples(st.just("expire"), st.integers(0, 7)),
    st.tuples(st.just("take"), st.none()),
    st.tuples(st.just("snapshot"), st.none()),
)


def table() -> Table:
    return Table(keys=["window", "key"], ints=["value"], strings=["text"], expiry="window")


def columns(pairs: list[tuple[int, int]]) -> list[Any]:
    return [np.array([pair[at] for pair in pairs], np.int64) for at in (0, 1)]


def write(store: Table, model: Model, name: str, argument: Any) -> None:
    if name == "put":
        values = {
            "value": np.array([value for _, value, _ in argument], np.int64),
            "text": np.array([text for _, _, text in argument], object),
        }
        store.put(columns([key for key, _, _ in argument]), values)
        model.update({key: (value, text) for key, value, text in argument})
    elif name == "add":
        store.add(columns([key for key, _ in argument]), {"value": np.array([v for _, v in argument], np.int64)})
        for key, value in argument:
            old, text = model.get(key, (0, ""))
            model[key] = (old + value, text)
    elif name == "delete":
        rows = store.find(columns(argument))
        assert [key in model for key in argument] == (rows >= 0).tolist()
        store.delete(rows[rows >= 0])
        for key in argument:
            model.pop(key, None)
    elif name == "expire" and argument > store.horizon:
        store.expire(argument)
        for key in [key for key in model if key[0] < argument]:
            del model[key]


def contents(store: Table) -> Model:
    rows = store.all()
    names = ("window", "key", "value", "text")
    return {(w, k): (v, t) for w, k, v, t in zip(*(store.values(name)[rows].tolist() for name in names), strict=True)}


@settings(max_examples=150, deadline=None)
@given(st.lists(operation, max_size=40))
def test_a_table_is_a_dict_and_replays_to_the_same(operations: list[tuple[str, Any]]) -> None:
    store, model = table(), dict[tuple[int, int], tuple[int, str]]()
    state = TaskState({"table": store})
    state.capture(True)
    snapshot: pa.Buffer | None = None
    changes: list[pa.Buffer] = []
    for name, argument in operations:
        write(store, model, name, argument)
        if name in ("take", "snapshot") and (taken := state.take_changes()) is not None:
            changes.append(taken)
        if name == "snapshot":
            snapshot, changes = state.snapshot(), []
        assert contents(store) == model
        assert store.rows == len(model)
    last = state.take_changes()
    assert state.take_changes() is None
    copy = table()
    recovered = TaskState({"table": copy})
    recovered.capture(True)
    recovered.restore(snapshot)
    for buffer in [*changes, *([] if last is None else [last])]:
        recovered.apply(buffer)
    assert contents(copy) == model
    assert copy.horizon == store.horizon
    assert recovered.take_changes() is None
    recovered.restore(None)
    assert recovered.rows == 0


def test_a_snapshot_is_independent_of_later_writes() -> None:
    store = table()
    state = TaskState({"table": store})
    write(store, {}, "put", [((1, 1), 5, "five")])
    snapshot = state.snapshot()
    write(store, {}, "put", [((1, 1), 6, "six")])
    state.restore(snapshot)
    assert contents(store) == {(1, 1): (5, "five")}


def test_changes_are_net_and_a_missing_change_shows() -> None:
    store = table()
    state = TaskState({"table": store})
    state.capture(True)
    for value in range(5):
        write(store, {}, "put", [((1, 1), value, "")])
    first = state.take_changes()
    write(store, {}, "put", [((1, 1), 9, "")])
    second = state.take_changes()
    assert first is not None
    assert second is not None
    copy = TaskState({"table": table()})
    assert copy.apply(first) == 1
    assert copy.rows == store.rows
    assert contents(copy.stores["table"]) != contents(store)  # type: ignore[arg-type]
    copy.apply(second)
    assert contents(copy.stores["table"]) == contents(store)  # type: ignore[arg-type]


def test_rows_that_come_and_expire_between_two_takes_are_not_written() -> None:
    store = table()
    store.capture(True)
    write(store, {}, "put", [((1, key), 0, "") for key in range(100)])
    store.expire(5)
    changes = store.take_changes()
    assert changes is not None
    assert changes.column("op").to_pylist() == [2]


def test_a_table_grows_shrinks_and_keeps_untaken_deletes() -> None:
    store = Table(keys=["key"], ints=["value"], expiry="value")
    store.capture(True)
    seen: set[int] = set()
    for start in range(0, 20_000, 500):
        many = np.arange(start, start + 500)
        store.put([many], {"value": many})
        rows = store.find([many[::50]])
        store.delete(rows)
        seen.update(many[::50].tolist())
    changes = store.take_changes()
    assert changes is not None
    deleted = changes.filter(pa.array(np.asarray(changes.column("op")) == 1)).column("key").to_pylist()
    assert set(deleted) == seen
    assert store.rows == 20_000 - len(seen)
    grown = store.nbytes
    store.expire(20_000)
    store.take_changes()
    for start in range(20_000, 100_000, 500):
        many = np.arange(start, start + 500)
        store.put([many], {"value": many})
        store.expire(start)
        store.take_changes()
    assert store.rows == 500
    assert store.nbytes < grown


def test_counters_recover_with_the_state() -> None:
    state = TaskState({"table": table()})
    counters = CounterStore()
    state.add("edges", counters)
    state.capture(True)
    assert state.take_changes() is None
    counters.add("in", 3, 2**64 - 1)
    counters.add("in", 2, 2)
    changes = state.take_changes()
    assert changes is not None
    assert counters["in"] == (5, 1)
    counters.add("out", 1)
    snapshot = state.snapshot()
    other = TaskState({"table": table(), "edges": CounterStore()})
    other.apply(changes)
    assert other.stores["edges"]["in"] == (5, 1)  # type: ignore[index]
    other.restore(snapshot)
    assert other.stores["edges"].items() == {"in": (5, 1), "out": (1, 0)}  # type: ignore[attr-defined]


def test_foreign_buffers_are_refused() -> None:
    state = TaskState({"edges": CounterStore()})
    with pytest.raises(StateError, match="begins with"):
        state.apply(pa.py_buffer(b"nonsense"))
    with pytest.raises(StateError, match="holds 'table'"):
        state.apply(TaskState({"table": table()}).snapshot())
    with pytest.raises(StateError, match="already"):
        state.add("edges", CounterStore())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-4, 4), st.sampled_from([0, 1, 2**40, -(2**62)])), max_size=80))
def test_grouping_and_index_agree_with_python(pairs: list[tuple[int, int]]) -> None:
    index = HashIndex(2, max(len(pairs), 1))
    rows = index.insert(columns(pairs)).tolist()
    assert len(set(zip(rows, pairs, strict=True))) == len(set(pairs)) == index.size
    assert index.find(columns(pairs)).tolist() == rows
    groups, last = group(columns(pairs))
    assert len(set(zip(groups.tolist(), pairs, strict=True))) == len(set(pairs)) == last.size
    assert [groups[row] for row in last] == list(range(last.size))
    counted = ordinals(groups).tolist()
    assert counted == [pairs[:at].count(pair) for at, pair in enumerate(pairs)]


def test_a_row_whose_expiry_was_lowered_before_it_expired_leaves_the_replay_too() -> None:
    """Found by hypothesis: the replayed row still had the higher expiry, and outlived the horizon."""
    table, replayed = (Table(keys=["key"], ints=["until"], expiry="until") for _ in range(2))
    table.capture(True)
    for until, horizon in ((10, 0), (3, 5)):
        table.put([np.array([1])], {"until": np.array([until])})
        table.expire(horizon)
        replayed.apply(table.take_changes())
    assert table.rows == 0
    assert replayed.rows == 0


def test_a_row_that_came_back_with_a_lower_expiry_leaves_the_replay_too() -> None:
    """Deleted and put again within one interval: the replayed row still had the first one's expiry."""
    table, replayed = (Table(keys=["key"], ints=["until"], expiry="until") for _ in range(2))
    table.capture(True)
    table.put([np.array([1])], {"until": np.array([100])})
    replayed.apply(table.take_changes())
    table.delete(table.find([np.array([1])]))
    table.put([np.array([1])], {"until": np.array([50])})
    table.expire(60)
    replayed.apply(table.take_changes())
    assert table.rows == 0
    assert replayed.rows == 0
