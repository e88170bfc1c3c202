"""What a simulated schedule is judged by: the brute-force answer, and both ends of every edge."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dataflow import samples
from dataflow.graph import Answer, Graph
from protocols.base import Context, Guarantee, Protocol
from runners.answer import Fold
from runners.edges import mismatches
from runners.plan import Layout
from runners.simplan import TinyWorkload
from runners.sink import Sink

Rows = Iterable[Mapping[str, int]]


@dataclass(frozen=True)
class Query:
    """A sample query on two tasks per stage, and its answer by brute force.

    `eager_us`: watermarks are too high by so much, so that some rows do come too late. Which ones depends on the
    interleaving; every row is then asked to be counted or dropped, and once.
    """

    graph: Graph
    expected: Callable[[Rows], Any]
    lost: Callable[[Any, Any], str]
    eager_us: int = 0


def _lost(found: Any, expected: Any) -> str:
    """Rows that are missing, and sums that are too small: all values are positive, so duplicates only add."""
    if isinstance(expected, Counter):
        return str(dict(list((expected - found).items())[:3])) if expected - found else ""
    for key, values in expected.items():
        if key not in found or any(have < want for have, want in zip(found[key], values, strict=True)):
            return f"{key}: {found.get(key)} instead of {values}"
    return ""


def _lost_rank(found: Any, expected: Any) -> str:
    """A row counted twice may dethrone a window's winner; the best itself can only rise."""
    best: dict[int, int] = {}
    for (window, _), (count,) in found.items():
        best[window] = max(count, best.get(window, 0))
    short = [(window, best.get(window), count) for (window, _), (count,) in expected.items()]
    return str([part for part in short if part[1] is None or part[1] < part[2]][:3] or "")


# The first four are the shapes that a protocol is judged by; the others are for event time.
QUERIES = {
    "stateless": Query(samples.stateless(2), samples.expected_stateless, _lost),
    "windowed": Query(samples.windowed(2), samples.expected_windowed, _lost),
    "joined": Query(samples.joined(2), samples.expected_joined, _lost),
    "chained": Query(samples.chained(2), samples.expected_chained, _lost),
    "ranked": Query(samples.ranked(2), samples.expected_ranked, _lost_rank),
    "late": Query(samples.windowed(2), samples.expected_windowed, _lost, eager_us=700),
}


class PlainFold(Fold):
    """The sink's rows as they came; the answer is made of them in plain Python, apart from the product's own fold."""

    def __init__(self, answer: Answer) -> None:
        self._key, self._value = answer.key, answer.value
        self.parts: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self.parts.append(batch)

    def result(self) -> pa.Table:
        return pa.Table.from_batches(self.parts)

    def answer(self) -> Any:
        """Last value per key, or how often each row came."""
        folded: dict[tuple[int, ...], tuple[int, ...]] = {}
        counted: Counter[tuple[int, ...]] = Counter()
        for batch in self.parts:
            values = list(zip(*(batch.column(name).to_pylist() for name in self._value), strict=True))
            if not self._key:
                counted.update(values)
                continue
            keys = zip(*(batch.column(name).to_pylist() for name in self._key), strict=True)
            for key, value, op in zip(keys, values, batch.column("op").to_pylist(), strict=True):
                if op:
                    folded.pop(key, None)
                else:
                    folded[key] = value
        return folded if self._key else counted


class SimulatedSink(Sink):
    """The real sink without its stop-watch. If it `save`s its place after each step, a new one goes on from there."""

    def __init__(
        self,
        ctx: Context,
        layout: Layout,
        protocol: Protocol,
        *,
        start_us: int,
        base_us: int,
        last: "SimulatedSink | None",
        save: bool,
    ) -> None:
        super().__init__(ctx, layout, protocol, start_us=start_us, base_us=base_us)
        self.plain = PlainFold(layout.graph.answer)
        self.fold = self.plain
        self._save = save
        self.saved: tuple[bytes, int, dict[str, Any]] | None = None
        if last is not None and last.saved is not None:
            self.saved = last.saved
            place, parts, edges = last.saved
            self._observer.load(place)
            self._edges.load(edges)
            self.plain.parts = last.plain.parts[:parts]

    def step(self, now_ms: float) -> bool:
        moved = super().step(now_ms)
        if moved and self._save:
            self.saved = (self._observer.save(), len(self.plain.parts), self._edges.dump())
        return moved

    def _measure(self, *_: object) -> None:
        """Nobody asks for latency here."""


def judge(
    guarantee: Guarantee, query: Query, workload: TinyWorkload, sink: SimulatedSink, late_rows: int = 0
) -> tuple[bool, str | None]:
    """Whether the answer is right; and what breaks the promise, if anything does.

    `late_rows`: what the tasks have dropped.
    """
    found = sink.plain.answer()
    expected = query.expected(workload.rows())
    edges = mismatches(sink.edges())
    if query.eager_us:
        return _judge_late(guarantee, found, expected, late_rows, edges)
    exact = found == expected and not edges and not (late_rows and guarantee is Guarantee.EXACTLY_ONCE)
    if exact or guarantee is Guarantee.NONE:
        return exact, None
    if guarantee is Guarantee.AT_LEAST_ONCE:
        lost = query.lost(found, expected)
        return False, f"lost: {lost}" if lost else None
    wrong = _difference(found, expected)
    dropped = f"{late_rows} rows dropped as late, though watermarks are exact" if late_rows else ""
    return False, "; ".join(
        [*(["wrong answer: " + wrong] if wrong else []), *([dropped] if dropped else []), *map(str, edges)]
    )


def _judge_late(
    guarantee: Guarantee, found: Any, expected: Any, late_rows: int, edges: Sequence[object]
) -> tuple[bool, str | None]:
    """Sums and counts per window where some rows are dropped: what is dropped and what is counted make all rows."""
    events = sum(count for _, count in expected.values())
    counted = sum(count for _, count in found.values())
    more = [key for key, values in found.items() if key not in expected or values > expected[key]]
    balanced = counted + late_rows == events
    exact = balanced and not more and not edges
    if exact or guarantee is Guarantee.NONE:
        return exact, None
    if guarantee is Guarantee.AT_LEAST_ONCE:
        short = counted + late_rows < events
        return False, f"lost: {counted} rows counted and {late_rows} dropped of {events}" if short else None
    wrong = f"{counted} rows counted and {late_rows} dropped of {events}, too much in {more[:3]}"
    return False, "; ".join(["wrong answer: " + wrong, *map(str, edges)])


def _difference(found: Any, expected: Any) -> str:
    if found == expected:
        return ""
    keys = [key for key in expected.keys() | found.keys() if found.get(key) != expected.get(key)]
    some = ", ".join(f"{key}: {found.get(key)} instead of {expected.get(key)}" for key in sorted(keys)[:3])
    return f"{len(keys)} of {len(expected)} differ: {some}"
