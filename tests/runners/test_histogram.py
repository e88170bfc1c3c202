"""Histograms are exact to merge, and their percentiles are within a bucket of the truth."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runners.histogram import Histogram, bucket, summary_ms
from runners.steady import keeps_up, medians_by_second, slope

values = st.lists(st.integers(-(10**6), 10**10), min_size=1, max_size=200)


@given(values)
def test_a_bucket_is_within_a_thousandth_of_its_values(numbers: list[int]) -> None:
    array = np.array(numbers, np.int64)
    edges = bucket(array)
    assert (np.abs(array - edges) <= np.abs(array) / 1024 + 1e-9).all()
    assert (np.abs(edges) <= np.abs(array)).all()


@given(values, values)
def test_merging_is_the_same_as_adding_everything_to_one(left: list[int], right: list[int]) -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    one.add(np.array(left))
    other.add(np.array(right))
    both.add(np.array(left + right))
    one.merge(other)
    assert one.counts == both.counts


@given(values, values)
def test_single_values_and_given_counts_are_counted_like_columns(ones: list[int], column: list[int]) -> None:
    mixed, plain = Histogram(), Histogram()
    mixed.add(np.array(column))
    for value in ones:
        mixed.add_one(value)
    plain.add(np.array(column + ones))
    assert mixed.counts == plain.counts
    assert Histogram(plain.counts).counts == plain.counts
    assert mixed.count == len(ones) + len(column)


@given(values, st.sampled_from([1.0, 50.0, 90.0, 99.0, 99.9, 100.0]))
def test_a_percentile_is_the_bucket_of_the_value_at_that_rank(numbers: list[int], percent: float) -> None:
    histogram = Histogram()
    histogram.add(np.array(numbers))
    edges = np.sort(bucket(np.array(numbers)))
    rank = max(1, int(np.ceil(percent / 100 * len(numbers))))
    assert histogram.percentile(percent) == edges[rank - 1]


def test_weights_count_events_not_rows() -> None:
    histogram = Histogram()
    histogram.add(np.array([1000, 9000]), np.array([99, 1]))
    assert summary_ms(histogram)["count"] == 100
    assert summary_ms(histogram)["p50"] == 1.0
    assert summary_ms(histogram)["max"] == bucket(np.array([9000]))[0] / 1000


def test_negative_latencies_are_counted() -> None:
    histogram = Histogram()
    histogram.add(np.array([-500, 500]))
    assert histogram.count == 2
    assert histogram.percentile(1) == -500


def test_one_outlier_does_not_make_a_trend_but_growth_does() -> None:
    steady = [(float(t), 100.0 if t != 5 else 90_000.0) for t in range(12)]
    growing = [(float(t), 300.0 * t) for t in range(12)]
    assert keeps_up(steady, 10_000)
    assert slope(growing) == 300.0
    assert not keeps_up(growing, 10_000)


def test_a_saw_tooth_is_no_trend_and_growth_under_it_is_one() -> None:
    tooth = [(t / 20, 100.0 * (t % 7)) for t in range(240)]  # twenty looks a second at commits that are not in step
    assert [second for second, _ in medians_by_second(tooth)] == [float(second) for second in range(12)]
    assert keeps_up(medians_by_second(tooth), 10_000)
    assert not keeps_up(medians_by_second([(t, value + 300 * t) for t, value in tooth]), 10_000)


def test_wandering_within_the_slack_is_no_trend() -> None:
    wandering = [(2.0, 180.0), (3.0, 225.0), (4.0, 259.0), (5.0, 289.0), (6.0, 280.0), (7.0, 219.0)]
    assert not keeps_up(wandering, 1000)
    assert keeps_up(wandering, 1000, slack=100)
    assert not keeps_up([(t, 60.0 * t) for t in range(10)], 1000, slack=100)
