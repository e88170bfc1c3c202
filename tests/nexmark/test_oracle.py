"""The oracle on inputs whose answers were worked out on paper; each test names the trap that it covers."""

from typing import Any

import pyarrow as pa
import pytest

from nexmark.errors import ParameterError
from nexmark.fingerprint import fingerprint
from nexmark.generator import Generator
from nexmark.oracle import ANSWERS, answer, answer_table, fingerprint_of
from nexmark.parameters import Q1, Q2, Q3, Q4, Q5, Q6, Q7, Q8, QUERIES, Query
from tests.nexmark.handmade import Handmade, handmade

S = 1_000_000


def rows(spark: Any, query: Query, workload: Handmade) -> list[tuple[Any, ...]]:
    table = answer_table(spark, query.name, query, workload)
    return [tuple(row.values()) for row in table.to_pylist()]


def bids(*auction_ts_price: tuple[int, int, int]) -> list[dict[str, Any]]:
    return [{"auction": auction, "ts": ts, "price": price} for auction, ts, price in auction_ts_price]


def test_q1_converts_exactly(spark: Any) -> None:
    given = [{"auction": 5, "bidder": 6, "price": 333, "ts": 7, "extra": "é x"}, {"auction": 1, "price": 100}]
    assert rows(spark, Q1(), handmade(bids=given)) == [(0, 5, 6, 302_364, 7, "é x"), (1, 1, 0, 90_800, 0, "")]


def test_q1_keeps_equal_bids_apart(spark: Any) -> None:
    assert len(rows(spark, Q1(), handmade(bids=bids((1, 1, 1), (1, 1, 1))))) == 2


def test_q2_takes_multiples_of_the_modulus(spark: Any) -> None:
    workload = handmade(bids=bids((123, 0, 7), (124, 0, 8), (246, 0, 9), (1000, 0, 10)))
    assert rows(spark, Q2(), workload) == [(0, 123, 7), (2, 246, 9)]


def test_q3_keeps_every_auction_of_a_seller_and_auctions_that_precede_their_seller(spark: Any) -> None:
    persons = [
        {"id": 1, "name": "A", "city": "Bend", "state": "OR", "ts": 10},
        {"id": 2, "name": "B", "city": "Kent", "state": "WA", "ts": 10},
        {"id": 3, "name": "C", "city": "Boise", "state": "ID", "ts": 90},
    ]
    auctions = [
        {"id": 10, "seller": 1, "category": 10, "ts": 20},
        {"id": 11, "seller": 1, "category": 10, "ts": 21},
        {"id": 12, "seller": 1, "category": 11, "ts": 22},
        {"id": 13, "seller": 2, "category": 10, "ts": 23},
        {"id": 14, "seller": 3, "category": 10, "ts": 24},
        {"id": 15, "seller": 99, "category": 10, "ts": 25},
    ]
    assert rows(spark, Q3(), handmade(persons, auctions)) == [
        (10, "A", "Bend", "OR"),
        (11, "A", "Bend", "OR"),
        (14, "C", "Boise", "ID"),
    ]


def test_q3_quotes_states(spark: Any) -> None:
    workload = handmade(
        [{"id": 1, "name": "A", "city": "X", "state": "it's \\ odd"}], [{"id": 2, "seller": 1, "category": 10}]
    )
    assert rows(spark, Q3(states=("it's \\ odd",)), workload) == [(2, "A", "X", "it's \\ odd")]


def test_q4_counts_bids_from_open_to_expires_inclusive_and_ignores_the_reserve(spark: Any) -> None:
    auctions = [
        {"id": 1, "category": 10, "ts": 10, "expires": 20},
        {"id": 2, "category": 10, "ts": 10, "expires": 20},
        {"id": 3, "category": 11, "ts": 10, "expires": 20},
        {"id": 4, "category": 12, "ts": 10, "expires": 20, "reserve": 10**6, "initial_bid": 10**5},
    ]
    given = bids(
        (1, 9, 900),  # before open
        (1, 10, 100),  # at open
        (1, 20, 300),  # at expires
        (1, 21, 999),  # after
        (2, 11, 200),  # equal highest bids count once
        (2, 12, 200),
        (3, 21, 5),  # its only bid is late: no auction, no category
        (4, 15, 5),
        (77, 15, 5),  # an auction that never came
    )
    assert rows(spark, Q4(), handmade((), auctions, given)) == [(10, 500, 2), (12, 5, 1)]


def test_q5_keeps_ties_partial_first_windows_and_half_open_ends(spark: Any) -> None:
    given = bids((1, 100 * S, 0), (2, 101 * S, 0), (2, 103 * S, 0), (1, 110 * S, 0))
    expected = [(92 * S, 1, 1), (92 * S, 2, 1)]  # only the first two bids: a tie
    expected += [(start * S, 2, 2) for start in (94, 96, 98, 100)]  # 110 is not in [100, 110)
    expected += [(102 * S, 1, 1), (102 * S, 2, 1)]  # the bids at 103 and 110
    expected += [(start * S, 1, 1) for start in (104, 106, 108, 110)]
    assert rows(spark, Q5(), handmade(bids=given)) == expected


def test_q5_with_a_window_that_is_no_multiple_of_the_slide(spark: Any) -> None:
    given = bids((1, 100, 0), (1, 101, 0), (2, 103, 0))
    # Windows [96,101) [98,103) [100,105) [102,107) and, for 103 alone, also [100,105) and [102,107).
    expected = [(96, 1, 1), (98, 1, 2), (100, 1, 2), (102, 2, 1)]
    assert rows(spark, Q5(window_us=5, slide_us=2), handmade(bids=given)) == expected


def q6_input() -> Handmade:
    def auction(number: int, seller: int, expires: int = 1000) -> dict[str, Any]:
        return {"id": number, "seller": seller, "ts": 0, "expires": expires}

    auctions = [auction(i, 7) for i in range(1, 13)]
    given = [(i, 13 - i, 10 * i) for i in range(1, 13)]  # the dearer, the earlier
    auctions += [auction(i, 8) for i in range(21, 32)]
    given += [(i, 50, i) for i in range(21, 32)]  # all at the same time
    auctions += [auction(i, 9) for i in range(40, 51)]
    given += [(40, 5, 100), (40, 60, 100), *((i, i - 30, 1) for i in range(41, 51))]  # equal highest bids
    auctions += [{"id": 60, "seller": 10, "ts": 10, "expires": 20}, auction(61, 11)]
    given += [(60, 9, 1000), (60, 20, 7), (60, 21, 1000)]
    return handmade((), auctions, bids(*given))


def test_q6_takes_the_last_ten_by_time_then_by_auction_and_the_earliest_of_equal_bids(spark: Any) -> None:
    assert rows(spark, Q6(), q6_input()) == [
        (7, 550, 10),  # auctions 1…10 won last, although 11 and 12 were dearer
        (8, 265, 10),  # on a tie the higher id is later: 22 + … + 31
        (9, 10, 10),  # auction 40 was won at time 5, not at 60, so it is the eleventh
        (10, 7, 1),  # before open and after expires do not win
    ]


def test_q6_rows_is_a_parameter(spark: Any) -> None:
    assert rows(spark, Q6(rows=1), q6_input()) == [(7, 10, 1), (8, 31, 1), (9, 1, 1), (10, 7, 1)]


def test_q7_keeps_ties_and_gives_the_boundary_to_the_next_window(spark: Any) -> None:
    given = bids((1, 100 * S, 5), (2, 110 * S - 1, 9), (3, 103 * S, 9), (4, 110 * S, 100), (5, 110 * S, 99))
    assert rows(spark, Q7(), handmade(bids=given)) == [
        (100 * S, 1, 2, 0, 9, 110 * S - 1),
        (100 * S, 2, 3, 0, 9, 103 * S),
        (110 * S, 3, 4, 0, 100, 110 * S),
    ]


def test_q8_joins_inside_one_window_only(spark: Any) -> None:
    persons = [
        {"id": 1, "name": "first and last microsecond", "ts": 100 * S},
        {"id": 2, "name": "neighbouring windows", "ts": 109 * S},
        {"id": 3, "name": "auction before person", "ts": 112 * S},
        {"id": 4, "name": "two auctions", "ts": 111 * S},
        {"id": 5, "name": "no auction", "ts": 111 * S},
    ]
    auctions = [
        {"id": 1, "seller": 1, "ts": 110 * S - 1},
        {"id": 2, "seller": 2, "ts": 110 * S},
        {"id": 3, "seller": 3, "ts": 111 * S},
        {"id": 4, "seller": 4, "ts": 112 * S},
        {"id": 5, "seller": 4, "ts": 113 * S},
        {"id": 6, "seller": 1, "ts": 125 * S},
    ]
    assert rows(spark, Q8(), handmade(persons, auctions)) == [
        (100 * S, 1, "first and last microsecond"),
        (110 * S, 3, "auction before person"),
        (110 * S, 4, "two auctions"),
    ]


@pytest.mark.parametrize("name", QUERIES)
def test_an_empty_input_has_an_empty_answer_of_the_right_types(spark: Any, name: str) -> None:
    table = answer_table(spark, name, QUERIES[name](), handmade())
    contract = ANSWERS[name]
    strings = {"name", "city", "state", "extra"}
    assert table.num_rows == 0
    assert table.column_names == [*contract.key, *contract.value]
    assert table.schema.types == [pa.string() if column in strings else pa.int64() for column in table.column_names]


def test_answers_have_unique_keys_on_a_generated_stream(spark: Any) -> None:
    generator = Generator(seed=3, total=30_000)
    for name, contract in ANSWERS.items():
        if contract.key:
            table = answer_table(spark, name, QUERIES[name](), generator)
            assert 0 < table.group_by(list(contract.key)).aggregate([]).num_rows == table.num_rows, name


def test_disorder_does_not_change_an_answer(spark: Any) -> None:
    straight = Generator(seed=3, total=20_000)
    shuffled = Generator(seed=3, total=20_000, out_of_order_group=50, late_fraction=0.1, late_max_us=300_000)
    for query in (Q4(), Q5(), Q6(), Q8()):
        expected = answer_table(spark, query.name, query, straight)
        assert answer_table(spark, query.name, query, shuffled).equals(expected), query


def test_multisets_are_compared_without_collecting(spark: Any) -> None:
    generator = Generator(seed=3, total=40_000)
    frame = answer(spark, "q1", Q1(), generator)
    columns = ANSWERS["q1"].value
    collected = pa.Table.to_batches(frame.toArrow().combine_chunks())[0]
    right = fingerprint_of(frame, columns)
    assert right == fingerprint(collected, columns)
    assert right.rows == 40_000 // 50 * 46
    assert fingerprint_of(frame.filter("number <> 777"), columns) != right  # a lost row
    assert fingerprint_of(frame.union(frame.limit(1)), columns) != right  # a row twice


@pytest.mark.parametrize(
    ("name", "params", "workload", "message"),
    [
        ("q9", Q1(), handmade(), "no query 'q9'"),
        ("q2", Q1(), handmade(), "needs parameters of Q2"),
        ("q1", Q1(), Generator(), "has no end"),
    ],
)
def test_misuse_is_named(name: str, params: Query, workload: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        answer(None, name, params, workload)  # fails before Spark is touched
