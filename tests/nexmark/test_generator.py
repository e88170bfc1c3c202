"""One stream, however it is cut: partition independence, pacing, watermarks, and refusal of bad parameters."""

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexmark.errors import ParameterError
from nexmark.events import AUCTION, BID, EVENTS, PERSON, auctions, bids, count, numbers, pack, persons
from nexmark.fingerprint import Fingerprint, fingerprint
from nexmark.generator import Generator
from nexmark.rates import Constant, Rate, Sine, Square, Steps
from nexmark.workload import END_OF_TIME, blocks

RATES: tuple[Rate, ...] = (
    Constant(events_per_s=10_000),
    Constant(events_per_s=3_000_001),
    Square(low_events_per_s=1_000, high_events_per_s=9_999, period_us=500_001),
    Sine(low_events_per_s=2_000, high_events_per_s=20_000, period_us=700_000),
    Steps(steps=((1_000, 5_000), (300_007, 3_333), (50_000, 40_000), (10, 7_000))),
)

generators = st.builds(
    Generator,
    seed=st.integers(0, 2**40),
    total=st.integers(0, 4_000),
    rate=st.sampled_from(RATES),
    out_of_order_group=st.sampled_from([1, 1, 2, 10, 64, 1000]),
    late_fraction=st.sampled_from([0.0, 0.0, 0.02, 0.1, 0.5]),
    late_max_us=st.sampled_from([3_000_000, 5_000_000]),
)


def stream_hash(batches: list[pa.RecordBatch]) -> list[Fingerprint]:
    kinds = ((persons, PERSON), (auctions, AUCTION), (bids, BID))
    return [Fingerprint.combine(fingerprint(take(batch), schema.names) for batch in batches) for take, schema in kinds]


@settings(max_examples=60, deadline=None)
@given(
    generator=generators,
    sources=st.sampled_from([1, 2, 3, 4, 7]),
    block_size=st.sampled_from([1, 7, 50, 333, 1024, 5000]),
    restart=st.floats(0, 1),
)
def test_sources_blocks_and_restarts_give_one_stream(
    generator: Generator, sources: int, block_size: int, restart: float
) -> None:
    if generator.total // block_size > 200:
        block_size = 50
    middle = int(restart * generator.total)
    parts = []
    for source in range(sources):
        # The first life of a source ends somewhere; the second, in another process, resumes there.
        for start, stop in blocks(source, sources, block_size, generator.total):
            if start < middle:
                parts.append(generator.events(start, min(stop, middle)))
        again = pickle.loads(pickle.dumps(generator))
        parts += [again.events(*block) for block in blocks(source, sources, block_size, generator.total, after=middle)]
    assert stream_hash(parts) == stream_hash([generator.events(0, generator.total)])
    seen = np.concatenate([numbers(part) for part in parts]) if parts else np.empty(0, np.int64)
    assert np.array_equal(np.sort(seen), np.arange(generator.total))


@settings(max_examples=60, deadline=None)
@given(generator=generators, data=st.data())
def test_pacing_and_watermarks_are_exact(generator: Generator, data: Any) -> None:
    total = generator.total
    due = generator.offset_us(np.arange(total, dtype=np.int64))
    times = np.concatenate([times_in_order(generator), [END_OF_TIME]])
    assert (np.diff(due) >= 0).all()
    lateness = due - (times[:-1] - generator.base_time_us)
    assert (lateness >= 0).all(), "no event is due before its time"
    if generator.late_fraction:
        assert (lateness <= generator.late_max_us).all()
    if generator.timestamps_are_intended:
        assert not lateness.any()
    for stop in {0, total, data.draw(st.integers(0, total)), data.draw(st.integers(0, total))}:
        assert generator.watermark_after(stop) == times[stop:].min()
    last = int(due[-1]) if total else 0
    for offset in {0, 1, last, last + 1, data.draw(st.integers(0, last + 10))}:
        assert generator.count_before(offset) == (due < offset).sum()


def times_in_order(generator: Generator) -> Any:
    """Event times by position, from the events themselves."""
    times = np.empty(generator.total, dtype=np.int64)
    place = np.empty(generator.total, dtype=np.int64)
    place[generator._disorder.numbers(np.arange(generator.total, dtype=np.int64))] = np.arange(generator.total)
    batch = generator.events(0, generator.total)
    for rows in (persons(batch), auctions(batch), bids(batch)):
        times[place[rows["number"].to_numpy()]] = rows["ts"].to_numpy()
    return times


def test_lateness_makes_about_the_asked_share_late() -> None:
    generator = Generator(seed=1, total=100_000, late_fraction=0.05, late_max_us=500_000)
    lateness = generator.offset_us(np.arange(100_000)) - (times_in_order(generator) - generator.base_time_us)
    assert 0.045 < (lateness > 0).mean() <= 0.05
    assert 100_000 < lateness[lateness > 0].mean() < 400_000
    assert lateness.max() <= 500_000


def test_the_set_of_events_does_not_depend_on_disorder() -> None:
    straight = Generator(seed=5, total=10_000)
    shuffled = Generator(seed=5, total=10_000, out_of_order_group=100, late_fraction=0.1, late_max_us=400_000)
    assert not shuffled.timestamps_are_intended
    assert not np.array_equal(times_in_order(straight), times_in_order(shuffled))
    assert stream_hash([straight.events(0, 10_000)]) == stream_hash([shuffled.events(0, 10_000)])


@pytest.mark.parametrize("rate", RATES, ids=lambda rate: type(rate).__name__)
def test_schedules_are_inverted_exactly(rate: Rate) -> None:
    due = rate.offset_us(np.arange(20_000, dtype=np.int64))
    assert due[0] == 0
    assert (np.diff(due) >= 0).all()
    for offset in [*range(0, int(due[-1]), 997), *due[::500].tolist(), *(due[::500] + 1).tolist()]:
        assert rate.count_before(offset) == np.searchsorted(due, offset), offset


def test_schedules_on_paper() -> None:
    assert Constant(events_per_s=4).offset_us(np.arange(5)).tolist() == [0, 250_000, 500_000, 750_000, 1_000_000]
    square = Square(low_events_per_s=1, high_events_per_s=2, period_us=2_000_000)
    assert square.offset_us(np.arange(7)).tolist() == [0, 500_000, 10**6, 2 * 10**6, 2_500_000, 3 * 10**6, 4 * 10**6]
    steps = Steps(steps=((1_000_000, 2), (1_000_000, 1), (1, 4)))
    assert steps.offset_us(np.arange(6)).tolist() == [0, 500_000, 10**6, 2 * 10**6, 2_250_000, 2_500_000]
    sine = Sine(low_events_per_s=1_000, high_events_per_s=3_000, period_us=1_000_000)
    assert sine.count_before(1_000_000) == pytest.approx(2_000, abs=2)
    assert sine.count_before(250_000) > 600 > sine.count_before(750_000) - sine.count_before(500_000)


def test_times_stay_exact_after_a_year_at_a_million_events_per_second() -> None:
    rate = Constant(events_per_s=1_000_000)
    number = 9 * 10**12
    assert rate.offset_us(np.array([number])).tolist() == [number]
    assert rate.count_before(number) == number


def test_different_seeds_differ_and_far_blocks_work() -> None:
    one, other = Generator(seed=1).events(10**11, 10**11 + 500), Generator(seed=2).events(10**11, 10**11 + 500)
    assert count(one) == count(other) == 500
    assert not bids(one).equals(bids(other))
    assert bids(one)["auction"].to_numpy().min() > 10**9


def test_the_stream_of_a_seed_is_pinned() -> None:
    """A change of the generator that changes streams must be a decision: recorded runs would not repeat."""
    whole = Fingerprint.combine(stream_hash([Generator(seed=7).events(0, 50_000)]))
    assert whole == Fingerprint(50_000, PINNED)


PINNED = 16575951209139184877


def test_batches_survive_the_wire_and_carry_three_kinds() -> None:
    batch = Generator(seed=1).events(25, 225)
    batch.validate(full=True)
    read = pa.ipc.read_record_batch(batch.serialize(), EVENTS)
    assert read.equals(batch)
    assert sorted(numbers(read).tolist()) == list(range(25, 225))
    assert (persons(read).num_rows, auctions(read).num_rows, bids(read).num_rows) == (4, 12, 184)
    assert pack(persons(read), auctions(read), bids(read)).equals(batch)
    assert (persons(read).schema, auctions(read).schema, bids(read).schema) == (PERSON, AUCTION, BID)


def test_batches_put_together_read_the_same() -> None:
    generator = Generator(seed=1)
    first, second = generator.events(0, 110), generator.events(110, 300)
    both = pa.Table.from_batches([first, second]).combine_chunks().to_batches()[0]
    assert both.num_rows == 2
    assert count(both) == 300
    for part, start, stop in ((both, 0, 300), (both.slice(1, 1), 110, 300), (both.slice(0, 1), 0, 110)):
        assert sorted(numbers(part).tolist()) == list(range(start, stop))
        assert bids(part).equals(bids(generator.events(start, stop)))
        assert auctions(part).equals(auctions(generator.events(start, stop)))


def test_text_has_the_forms_of_the_reference() -> None:
    batch = Generator(seed=9).events(0, 20_000)
    person, auction, bid = persons(batch).to_pylist(), auctions(batch).to_pylist(), bids(batch).to_pylist()
    for row in person:
        assert [len(part) for part in row["credit_card"].split(" ")] == [4] * 4
        assert row["credit_card"].replace(" ", "").isdigit()
        assert row["email"].count("@") == 1
        assert row["email"].endswith(".com")
        assert row["extra"].isalpha()
    for row in auction:
        assert len(row["item_name"]) < 20
        assert len(row["description"]) < 100
        assert row["description"] == row["description"].strip()
        assert row["initial_bid"] < row["reserve"]
        assert row["ts"] < row["expires"]
    assert {len(row["extra"]) for row in bid} == set(range(54, 82))
    urls: dict[str, set[str]] = {}
    for row in bid:
        urls.setdefault(row["channel"], set()).add(row["url"])
        assert row["url"].startswith("https://www.nexmark.com/")
    assert all(len(url) == 1 for url in urls.values()), "a channel has one url"
    assert {"Google", "Facebook", "Baidu", "Apple"} < set(urls)


def test_numbers_give_kinds_and_ids() -> None:
    batch = Generator(seed=1).events(100, 200)
    assert persons(batch)["number"].to_pylist() == [100, 150]
    assert persons(batch)["id"].to_pylist() == [1002, 1003]
    assert auctions(batch)["number"].to_pylist() == [101, 102, 103, 151, 152, 153]
    assert auctions(batch)["id"].to_pylist() == [1006, 1007, 1008, 1009, 1010, 1011]
    assert persons(batch)["ts"].to_pylist() == [1_436_918_400_010_000, 1_436_918_400_015_000]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 1.0}, "seed must be a whole number"),
        ({"total": True}, "total must be a whole number"),
        ({"rate": 10_000}, "rate must be a schedule"),
        ({"hot_auction_ratio": 0}, "hot_auction_ratio must be at least 1"),
        ({"out_of_order_group": 1906}, "multiple of 953"),
        ({"late_fraction": 0.6}, "late_fraction must be from 0 to 0.5"),
        ({"late_fraction": 0.1}, "set late_max_us to at least"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Generator(**parameters)


def test_the_advised_least_delay_is_accepted() -> None:
    with pytest.raises(ParameterError) as refusal:
        Generator(late_fraction=0.03, late_max_us=1, out_of_order_group=20)
    advised = int(str(refusal.value).rsplit(" ", 1)[1])
    Generator(late_fraction=0.03, late_max_us=advised, out_of_order_group=20, total=1000).events(0, 1000)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Constant(events_per_s=0),
        lambda: Square(low_events_per_s=5, high_events_per_s=4),
        lambda: Sine(low_events_per_s=0, high_events_per_s=4),
        lambda: Steps(steps=()),
        lambda: Steps(steps=((1, 2, 3),)),
        lambda: Steps(steps=((1, 0),)),
        lambda: list(blocks(2, 2, 10, 100)),
        lambda: list(blocks(0, 2, 0, 100)),
    ],
)
def test_bad_schedules_and_blocks_are_refused(build: Any) -> None:
    with pytest.raises(ParameterError):
        build()


def test_positions_outside_the_stream_are_refused() -> None:
    with pytest.raises(ValueError, match="total=100"):
        Generator(total=100).events(50, 101)
