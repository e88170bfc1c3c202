"""The search for the highest sustainable rate, against systems whose capacity is known."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from runners.sustained import Found, Search, judge


@dataclass
class Model:
    """A system that keeps up below its capacity; its source is good for `source_rate`."""

    capacity: float
    source_rate: float = float("inf")
    asked: list[int] = field(default_factory=list)

    def __call__(self, rate: int) -> dict[str, Any]:
        self.asked.append(rate)
        reasons = []
        if rate > self.source_rate:
            reasons.append("generator_delay_ms p99 is 900.0 ms, above the 10.0 ms that a fair measurement allows")
        return summary(rate <= self.capacity, reasons, min(rate, self.capacity))


def summary(sustainable: bool, reasons: list[str] | None = None, processed: float | None = 1.0, **more: Any) -> Any:
    return {
        "sustainable": sustainable,
        "valid": not reasons,
        "invalid_reasons": reasons or [],
        "complete": True,
        "rate_sustained": processed,
        "latency_ms": {"visible": {"p50": 5.0, "p99": 12.0 if sustainable else 4000.0}},
        **more,
    }


def search(model: Model, **options: Any) -> Found:
    return Search(**{"start_rate": 500_000, **options}).run(model)


@pytest.mark.parametrize("capacity", [1500, 47_000, 333_000, 499_999, 500_000, 731_234, 1_000_000, 3_999_999])
def test_comes_within_the_tolerance_of_the_capacity(capacity: int) -> None:
    found = search(Model(capacity), max_runs=20)
    assert found.rate <= capacity <= found.rate * 1.11
    assert found.ended == "within 10% of a rate that failed"
    assert len(found.probes) <= 12


def test_eight_runs_do_where_the_start_is_near() -> None:
    for capacity in range(250_000, 4_000_000, 50_000):
        found = search(Model(capacity))
        assert len(found.probes) <= 8
        assert found.rate <= capacity <= found.rate * 1.11, capacity


def test_doubles_first_and_then_stays_between_success_and_failure() -> None:
    model = Model(1_300_000)
    search(model)
    assert model.asked == [500_000, 1_000_000, 2_000_000, 1_410_000, 1_190_000, 1_300_000]
    assert len(set(model.asked)) == len(model.asked)


def test_is_deterministic() -> None:
    first, second = Model(612_000), Model(612_000)
    assert search(first) == search(second)
    assert first.asked == second.asked


def test_goes_down_by_what_was_processed_when_the_start_was_too_high() -> None:
    model = Model(300_000)
    found = search(model, start_rate=1_000_000)
    assert model.asked[1] == 300_000
    assert found.rate == 300_000


def test_goes_down_to_a_quarter_at_most() -> None:
    model = Model(9000)
    search(model, start_rate=1_000_000)
    assert model.asked[:4] == [1_000_000, 250_000, 62_500, 15_600]


def test_a_bounded_search_says_so_and_keeps_what_it_has() -> None:
    found = search(Model(1_300_000), max_runs=3)
    assert (found.rate, found.ended, len(found.probes)) == (1_000_000, "3 runs were allowed", 3)


def test_nothing_is_sustained() -> None:
    model = Model(10)
    found = search(model, start_rate=8000)
    assert found.rate == 0
    assert found.best is None
    assert found.ended == "not even 1000 events/s were sustained"
    assert model.asked[-1] == 1000


def test_everything_is_sustained() -> None:
    found = search(Model(1e9), most_rate=3_000_000)
    assert found.rate == 3_000_000
    assert found.ended == "the highest rate allowed, 3000000, was sustained"


def test_a_source_that_cannot_offer_the_rate_counts_as_not_sustained_and_not_as_broken() -> None:
    found = search(Model(4_000_000, source_rate=800_000))
    assert found.rate <= 800_000 <= found.rate * 1.11
    assert found.limited_by[0].startswith("generator_delay_ms")
    assert not found.broken


def test_a_run_that_broke_is_not_sustained_and_is_named() -> None:
    def measure(rate: int) -> dict[str, Any]:
        return summary(rate < 600_000, ["role convert/0 failed: KeyError"] if rate > 900_000 else [])

    found = Search(start_rate=500_000).run(measure)
    assert [probe.rate for probe in found.broken] == [1_000_000]
    assert found.rate < 600_000


def test_an_incomplete_run_is_broken() -> None:
    assert judge(1000, summary(False, ["no progress for 20 s after the end of input"], complete=False)).broken


def test_a_run_without_any_result_is_not_sustained() -> None:
    run = summary(False, processed=None)
    run["latency_ms"]["visible"]["p99"] = None
    assert judge(1000, run).why_not == ("did not keep up: no result in the measured part",)


def test_an_interrupt_ends_the_search() -> None:
    with pytest.raises(KeyboardInterrupt):
        Search(start_rate=1000).run(lambda rate: summary(False, ["interrupted"]))


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="start_rate"):
        Search(start_rate=10)
    with pytest.raises(ValueError, match="tolerance"):
        Search(start_rate=5000, tolerance=0)
