"""The stream looks like the reference's."""

import pytest

from nexmark.generator import Generator
from nexmark.statistics import EXPECTED, measure


def deviations(seed: int, total: int, widen: float) -> list[str]:
    measured = measure(Generator(seed=seed, total=total))
    return [
        f"seed {seed}: {expected.name} is {measured[expected.name]:.4f}, expected {expected.value} ± {allowed:.4f}"
        for expected in EXPECTED
        if abs(measured[expected.name] - expected.value) > (allowed := expected.tolerance * widen)
    ]


def test_half_a_million_events_show_the_reference_statistics_roughly() -> None:
    assert deviations(seed=7, total=500_000, widen=3.5) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 11])
def test_five_million_events_show_the_reference_statistics(seed: int) -> None:
    assert deviations(seed=seed, total=5_000_000, widen=1) == []


def test_a_stream_without_hot_keys_is_noticed() -> None:
    flat = Generator(seed=7, total=200_000, hot_auction_ratio=1, hot_bidder_ratio=1, hot_seller_ratio=1)
    measured = measure(flat)
    wrong = {e.name for e in EXPECTED if abs(measured[e.name] - e.value) > 3.5 * e.tolerance}
    assert {"bids on the current hot auction", "bids by the hot bidder", "auctions by the hot seller"} <= wrong
    assert "distinct auctions bid on per 10k events" in wrong


def test_too_few_events_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one event of each kind"):
        measure(Generator(total=1))
