"""Fingerprints tell multisets apart and add up."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexmark.fingerprint import Fingerprint, fingerprint, row_hashes

COLUMNS = ("a", "s")
rows = st.lists(
    st.fixed_dictionaries(
        {"a": st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 3)), "s": st.text(max_size=40)}
    ),
    max_size=30,
)


def batch(values: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(values, schema=pa.schema([("a", pa.int64()), ("s", pa.string())]))


@settings(deadline=None)
@given(rows, st.randoms())
def test_order_and_cut_do_not_matter(values: list[dict[str, object]], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    cut = len(values) // 3
    whole = fingerprint(batch(values), COLUMNS)
    assert whole == fingerprint(batch(shuffled), COLUMNS)
    parts = [fingerprint(batch(values).slice(0, cut), COLUMNS), fingerprint(batch(values).slice(cut), COLUMNS)]
    assert whole == Fingerprint.combine(parts)


@settings(deadline=None)
@given(rows, rows)
def test_different_multisets_differ(one: list[dict[str, object]], other: list[dict[str, object]]) -> None:
    def canonical(values: list[dict[str, object]]) -> list[str]:
        return sorted(repr((value["a"], value["s"])) for value in values)

    same = fingerprint(batch(one), COLUMNS) == fingerprint(batch(other), COLUMNS)
    assert same == (canonical(one) == canonical(other))


def test_near_misses_differ() -> None:
    texts = ["", "\0", "\0\0", "a", "a\0", "aa", "abcdefgh", "abcdefgh\0", "abcdefghi", "bacdefgh", "x" * 16, "x" * 17]
    hashes = row_hashes(batch([{"a": 0, "s": text} for text in texts]), COLUMNS)
    assert len(set(hashes.tolist())) == len(texts)
    swapped = row_hashes(batch([{"a": 0, "s": "1"}, {"a": 1, "s": "0"}]), COLUMNS)
    assert swapped[0] != swapped[1]


def test_a_row_twice_is_not_a_row_once_and_swapped_values_are_noticed() -> None:
    once, twice = batch([{"a": 1, "s": "x"}]), batch([{"a": 1, "s": "x"}] * 2)
    assert fingerprint(once, COLUMNS) != fingerprint(twice, COLUMNS)
    pairs = [[{"a": 1, "s": "x"}, {"a": 2, "s": "y"}], [{"a": 1, "s": "y"}, {"a": 2, "s": "x"}]]
    assert fingerprint(batch(pairs[0]), COLUMNS) != fingerprint(batch(pairs[1]), COLUMNS)


def test_columns_are_found_by_name() -> None:
    given = batch([{"a": 5, "s": "x"}])
    assert fingerprint(given, COLUMNS) == fingerprint(given.select(["s", "a"]), COLUMNS)
    assert fingerprint(batch([]), COLUMNS) == Fingerprint(0, 0)


def test_what_cannot_be_hashed_is_refused() -> None:
    with pytest.raises(ValueError, match="'a' has 1 nulls"):
        fingerprint(batch([{"a": None, "s": "x"}]), COLUMNS)
    with pytest.raises(TypeError, match="'f' must be int64 or string"):
        fingerprint(pa.RecordBatch.from_pydict({"f": [1.5]}), ["f"])
