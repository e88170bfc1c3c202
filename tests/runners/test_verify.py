"""The checkers, each shown a wrong answer once."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataflow.graph import Answer
from nexmark.generator import Generator
from nexmark.parameters import Q1, Q2, Q7
from nexmark.queries import build
from protocols.base import Guarantee
from runners import verify
from runners.answer import KeyedFold, MultisetFold
from runners.edges import Edges, mismatches
from runners.verify import Verification, check_edges, compare_keyed, compare_numbers, expected

ANSWER = Answer(key=("window", "auction"), value=("count",))


def table(*rows: tuple[int, int, int]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [[], [], []]
    return pa.table(
        {name: pa.array(c, pa.int64()) for name, c in zip(("window", "auction", "count"), columns, strict=True)}
    )


def test_equal_answers_are_equal_in_any_order() -> None:
    result = compare_keyed(table((0, 1, 5), (0, 2, 5)), table((0, 2, 5), (0, 1, 5)), ANSWER)
    assert (result.checked, result.lost, result.duplicated, result.wrong) == (2, 0, 0, 0)


@pytest.mark.parametrize(
    ("found", "counts"),
    [
        (table((0, 1, 5)), (1, 0, 0)),
        (table((0, 1, 5), (0, 2, 5), (2, 1, 1)), (0, 1, 0)),
        (table((0, 1, 5), (0, 2, 6)), (0, 0, 1)),
        (table(), (2, 0, 0)),
    ],
)
def test_a_missing_an_extra_and_a_different_row_are_told_apart(found: pa.Table, counts: tuple[int, int, int]) -> None:
    result = compare_keyed(table((0, 1, 5), (0, 2, 5)), found, ANSWER)
    assert (result.lost, result.duplicated, result.wrong) == counts
    assert result.examples


def test_numbers_lost_and_repeated_are_named() -> None:
    result = compare_numbers(np.array([1, 2, 3]), np.array([1, 1, 3]))
    assert (result.lost, result.duplicated) == (1, 1)
    assert "lost event 2" in result.examples


def test_equal_numbers_with_another_hash_are_wrong_values() -> None:
    assert compare_numbers(np.array([1, 2]), np.array([2, 1])).wrong == 1


def test_edges_that_agree_and_one_that_does_not() -> None:
    producer, consumer = Edges("a/0"), Edges("b/0")
    producer.sent("d/x/0", 3, 77)
    consumer.taken("d/x/0", "a/0", 3, 77)
    assert mismatches({**producer.dump(), **consumer.dump()}) == []
    consumer.taken("d/x/0", "a/0", 1, 5)
    (found,) = mismatches({**producer.dump(), **consumer.dump()})
    assert (found.sent, found.taken) == (3, 4)


def test_same_count_of_other_rows_is_a_mismatch() -> None:
    producer, consumer = Edges("a/0"), Edges("b/0")
    producer.sent("d/x/0", 3, 77)
    consumer.taken("d/x/0", "a/0", 3, 78)
    assert mismatches({**producer.dump(), **consumer.dump()})


def test_a_producer_nobody_reads_is_a_mismatch() -> None:
    producer = Edges("a/0")
    producer.sent("d/x/0", 3, 77)
    assert mismatches(producer.dump())


@pytest.mark.parametrize(
    ("verification", "exactly", "at_least"),
    [
        (Verification(checked=5), True, True),
        (Verification(checked=5, lost=1), False, False),
        (Verification(checked=5, duplicated=1), False, True),
        (Verification(checked=5, wrong=1), False, True),
        (Verification(checked=5, edges_ok=False), False, True),
        (Verification(checked=5, edges_ok=False, edges_at_least=False), False, False),
    ],
)
def test_what_each_guarantee_forgives(verification: Verification, exactly: bool, at_least: bool) -> None:
    assert verification.holds(Guarantee.EXACTLY_ONCE) is exactly
    assert verification.holds(Guarantee.AT_LEAST_ONCE) is at_least
    assert verification.holds(Guarantee.NONE) is None


def test_too_few_taken_breaks_at_least_once() -> None:
    result = Verification()
    check_edges(result, {"o|a/0|d/x/0": [3, 1], "i|b/0|d/x/0|a/0": [2, 1]})
    assert not result.edges_ok
    assert not result.edges_at_least


def revisions(*rows: tuple[int, int, int, int]) -> pa.RecordBatch:
    ops, windows, auctions, counts = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(ops, pa.int8()), *(pa.array(column, pa.int64()) for column in (windows, auctions, counts))],
        names=["op", "window", "auction", "count"],
    )


def test_the_fold_keeps_the_last_revision_and_honours_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.answer.COMPACT_ROWS", 2)
    fold = KeyedFold(ANSWER)
    fold._limit = 2
    fold.add(revisions((0, 0, 1, 1), (0, 0, 2, 1)))
    fold.add(revisions((0, 0, 1, 2), (1, 0, 2, 0)))
    fold.add(revisions((0, 0, 3, 9)))
    assert sorted(fold.result().to_pylist(), key=lambda row: row["auction"]) == [
        {"window": 0, "auction": 1, "count": 2},
        {"window": 0, "auction": 3, "count": 9},
    ]


def test_an_empty_fold_is_an_empty_answer() -> None:
    assert KeyedFold(ANSWER).result().num_rows == 0


def test_the_multiset_fold_does_not_depend_on_batches() -> None:
    answer = Answer(key=(), value=("number", "price"))
    rows = pa.RecordBatch.from_pydict({"number": [1, 2, 3], "price": [10, 20, 30]})
    whole, parts = MultisetFold(answer), MultisetFold(answer)
    whole.add(rows)
    parts.add(rows.slice(2))
    parts.add(rows.slice(0, 2))
    assert whole.result().equals(parts.result())
    assert parts.numbers() is not None
    parts.add(rows.slice(0, 1))
    assert not whole.result().equals(parts.result())


def test_the_oracle_is_asked_once_for_equal_inputs(spark: Any) -> None:
    """Whoever gives it no session shows that it was not asked."""
    for query in (Q2(), Q7()):
        answer = build(query, 1).answer
        first = expected(spark, query, Generator(seed=3, total=5_000), answer)
        again = expected(None, query, Generator(seed=3, total=5_000), answer)
        assert again is first
        for other in (Generator(seed=4, total=5_000), Generator(seed=3, total=5_001)):
            with pytest.raises(AttributeError):
                expected(None, query, other, answer)


def test_old_answers_are_forgotten(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "MOST_REMEMBERED", 2)
    query = Q1()
    answer = build(query, 1).answer
    for total in (1, 2, 3):
        expected(spark, query, Generator(total=total), answer)
    expected(None, query, Generator(total=2), answer)
    with pytest.raises(AttributeError):
        expected(None, query, Generator(total=1), answer)
