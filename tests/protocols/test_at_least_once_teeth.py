"""The simulator finds at-least-once that loses, and its judge knows a wrong answer from a right one."""

from collections import Counter
from typing import Any

import pytest

from protocols.at_least_once import AtLeastOnceTask
from protocols.base import Guarantee, TaskContext
from protocols.outbox import Writer
from runners.simcheck import QUERIES, judge
from runners.simplan import TinyWorkload
from runners.simulated import load_protocol, run_seed
from sharedlog.log import Entry

SEEDS = range(300)


def first_failure(query: str = "windowed") -> str | None:
    """What the first failing seed of the default run says."""
    protocol = load_protocol("at_least_once")
    for seed in SEEDS:
        if failure := run_seed(protocol, query, seed).failure:
            print(f"seed {seed}: {failure}")
            return failure
    return None


def test_a_position_ahead_of_its_output_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position entry is appended first, output and changes after it."""
    append = Writer.append

    def reordered(self: Writer, entries: list[Entry]) -> list[int]:
        if len(entries) < 2 or not entries[-1].tags[0].startswith("t/") or entries[-1].tags[0].startswith("t/source"):
            return append(self, entries)
        lsns = append(self, entries[-1:])
        append(self, entries[:-1])
        return lsns

    monkeypatch.setattr(Writer, "append", reordered)
    failure = first_failure()
    assert failure is not None
    assert "lost" in failure


def test_replaying_only_committed_changes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No change is replayed at all: what was counted before the crash is gone."""
    monkeypatch.setattr(AtLeastOnceTask, "_replay", lambda self: (0, 0))
    failure = first_failure()
    assert failure is not None
    assert "lost" in failure


def test_unconditional_changes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zombie's stale upsert over newer state, or its stale position after a newer one."""
    init = AtLeastOnceTask.__init__

    def unconditional(self: AtLeastOnceTask, ctx: TaskContext, commit_interval_ms: float) -> None:
        init(self, ctx, commit_interval_ms)
        self._writer = Writer(ctx, conditional=False)

    monkeypatch.setattr(AtLeastOnceTask, "__init__", unconditional)
    assert first_failure("windowed") or first_failure("chained")


class Heard:
    """A sink that heard a given answer."""

    def __init__(self, answer: Any, edges: dict[str, list[int]]) -> None:
        self.plain = self
        self._answer, self._edges = answer, edges

    def answer(self) -> Any:
        return self._answer

    def edges(self) -> dict[str, list[int]]:
        return self._edges


GOOD_EDGES = {"o|a/0|d/x/0": [3, 7], "i|b/0|d/x/0|a/0": [3, 7]}
BAD_EDGES = {"o|a/0|d/x/0": [3, 7], "i|b/0|d/x/0|a/0": [2, 5]}


@pytest.mark.parametrize("name", QUERIES)
def test_the_judge_knows_wrong_answers(name: str) -> None:
    workload = TinyWorkload(seed=1, total=60)
    query = QUERIES[name]
    right = query.expected(workload.rows())

    def verdict(answer: Any, guarantee: Guarantee, edges: dict[str, list[int]] = GOOD_EDGES) -> tuple[bool, bool]:
        exact, failure = judge(guarantee, query, workload, Heard(answer, edges))  # type: ignore[arg-type]
        return exact, failure is None

    key = next(iter(right))
    gone = {other for other in right if other == key or (name == "ranked" and other[0] == key[0])}  # all ties
    without = type(right)({other: value for other, value in right.items() if other not in gone})
    twice = type(right)({**right, key: 2 if isinstance(right, Counter) else tuple(2 * part for part in right[key])})
    for guarantee in Guarantee:
        assert verdict(right, guarantee) == (True, True)
    assert verdict(without, Guarantee.EXACTLY_ONCE) == (False, False)
    assert verdict(twice, Guarantee.EXACTLY_ONCE) == (False, False)
    assert verdict(right, Guarantee.EXACTLY_ONCE, BAD_EDGES) == (False, False)
    assert verdict(without, Guarantee.AT_LEAST_ONCE) == (False, False)
    assert verdict(twice, Guarantee.AT_LEAST_ONCE) == (False, True)
    assert verdict(without, Guarantee.NONE) == (False, True)
