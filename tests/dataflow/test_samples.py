"""The sample queries against plain Python: any cut into batches, any interleaving, any crash gives the same answer."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import samples
from tests.dataflow.driver import Driver

SAMPLES = [pytest.param(build, expected, id=name) for name, (build, expected) in samples.SAMPLES.items()]

events = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 7), st.integers(-50, 50)), min_size=1, max_size=120)


def rows_of(drawn: list[tuple[int, int, int]]) -> list[dict[str, int]]:
    return [{"number": n, "ts": ts, "key": key, "value": value} for n, (ts, key, value) in enumerate(sorted(drawn))]


def cut(rows: list[dict[str, int]], sizes: list[int], sources: int) -> list[tuple[pa.RecordBatch, int]]:
    """Batches of the given sizes, over and over; the watermark is the first time not yet sent by any source."""
    batches, at, turn = [], 0, 0
    while at < len(rows):
        part = rows[at : at + sizes[turn % len(sizes)]]
        watermark = rows[at + len(part)]["ts"] if at + len(part) < len(rows) else part[-1]["ts"]
        batches.append((pa.RecordBatch.from_pylist(part, samples.EVENT), watermark))
        at += len(part)
        turn += 1
    return batches


@pytest.mark.parametrize(("build", "expected"), SAMPLES)
@settings(max_examples=40, deadline=None)
@given(
    drawn=events,
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    parallelism=st.integers(1, 3),
    sources=st.integers(1, 3),
    crash=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 1000),
)
def test_a_sample_gives_its_expected_answer(
    build: Any, expected: Any, drawn: Any, sizes: list[int], parallelism: int, sources: int, crash: float, seed: int
) -> None:
    rows = rows_of(drawn)
    driver = Driver(build(parallelism), seed=seed, crash=crash).run(cut(rows, sizes, sources), sources)
    assert driver.answer() == expected(rows)
    assert driver.late_rows == 0


@pytest.mark.parametrize(("build", "expected"), SAMPLES)
def test_an_event_processed_twice_shows(build: Any, expected: Any) -> None:
    rows = rows_of([(n * 10, n % 5, n + 1) for n in range(50)])
    driver = Driver(build(2)).run(cut([*rows[:20], rows[19], *rows[20:]], [10], 1))
    assert driver.answer() != expected(rows)


@pytest.mark.parametrize(("build", "expected"), SAMPLES)
def test_the_latency_columns_name_every_event_once(build: Any, expected: Any) -> None:
    rows = rows_of([(n * 10, n % 5, n + 1) for n in range(50)])
    driver = Driver(build(2)).run(cut(rows, [7], 1))
    counted = sum(sum(batch.column("events").to_pylist()) for batch in driver.results)
    oldest = min(min(batch.column("oldest_us").to_pylist()) for batch in driver.results)
    newest = max(max(batch.column("newest_us").to_pylist()) for batch in driver.results)
    if build is samples.joined:
        # A pair counts for the later of its two events.
        assert (counted, newest) == (expected(rows).total(), 490)
    elif build is samples.ranked:
        # An event is in two windows, and answered where its key is among the winners.
        assert 0 < counted <= 100
        assert newest == 490
    else:
        assert (counted, oldest, newest) == (50, 0, 490)
