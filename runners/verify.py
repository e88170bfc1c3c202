"""After the clock has stopped: is the answer right, and do both ends of every edge agree?"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from dataflow.graph import Answer
from nexmark.fingerprint import Fingerprint
from nexmark.oracle import answer as oracle_answer
from nexmark.oracle import fingerprint_of
from nexmark.parameters import Query
from nexmark.workload import Workload
from protocols.base import Guarantee
from runners.edges import mismatches

SHOWN = 5
MOST_REMEMBERED = 32  # answers; a sweep has about that many different inputs


@dataclass(kw_only=True)
class Verification:
    """What was compared and what differed. Keys missing are lost, keys too many duplicated, other values wrong."""

    checked: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    edges_ok: bool = True
    edges_at_least: bool = True
    keyed: bool = False
    examples: list[str] = field(default_factory=list)

    @property
    def answers_ok(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong)

    def holds(self, guarantee: Guarantee) -> bool | None:
        """Whether the run kept what its protocol promises; None where nothing is promised."""
        if guarantee is Guarantee.EXACTLY_ONCE:
            return self.answers_ok and self.edges_ok
        if guarantee is Guarantee.AT_LEAST_ONCE:
            # A row counted twice may make another key win, so missing keys of a fold prove no loss; the edges do.
            return self.edges_at_least and (self.keyed or self.lost == 0)
        return None


def verify(spark: Any, query: Query, workload: Workload, answer: Answer, sink: dict[str, Any]) -> Verification:
    """Compare the sink's fold with the oracle's batch answer over the same events, and the counts on all edges."""
    want = expected(spark, query, workload, answer)
    found = pa.ipc.open_stream(sink["answer"]).read_all()
    if isinstance(want, Fingerprint):
        result = _compare_multiset(want, found, sink["numbers"])
        if result is None:  # Only now it matters which rows there should have been.
            numbers = oracle_answer(spark, query.name, query, workload).select("number").toArrow()["number"]
            result = compare_numbers(numbers.to_numpy(), np.asarray(sink["numbers"]))
    else:
        result = compare_keyed(want, found, answer)
    check_edges(result, sink["edges"])
    return result


def expected(spark: Any, query: Query, workload: Workload, answer: Answer) -> pa.Table | Fingerprint:
    """The oracle's answer as rows, or the fingerprint of a multiset.

    Protocols and repetitions of a sweep share their input, so an answer is remembered. It is a function of the query's
    and the workload's parameters, and those of a replay include the signature of its files.
    """
    key = f"{query!r} over {workload!r}"
    known = _remembered.get(key)
    if known is None:
        frame = oracle_answer(spark, query.name, query, workload)
        known = frame.toArrow() if answer.key else fingerprint_of(frame, answer.value)
        while len(_remembered) >= MOST_REMEMBERED:
            del _remembered[next(iter(_remembered))]
        _remembered[key] = known
    return known


_remembered: dict[str, pa.Table | Fingerprint] = {}


def check_edges(result: Verification, edges: dict[str, Sequence[int]]) -> None:
    found = mismatches(edges)
    result.edges_ok = not found
    result.edges_at_least = all(edge.taken >= edge.sent for edge in found)
    result.examples += [f"edge {edge}" for edge in found[:SHOWN]]


def compare_keyed(expected: pa.Table, found: pa.Table, answer: Answer) -> Verification:
    """Full outer join by key."""
    key, value = list(answer.key), list(answer.value)
    want = _frame(expected, key + value).with_columns(pl.lit(True).alias("wanted"))
    have = _frame(found, key + value).with_columns(pl.lit(True).alias("had"))
    both = want.join(have, on=key, how="full", suffix="_found", coalesce=True)
    missing = both.filter(pl.col("had").is_null())
    extra = both.filter(pl.col("wanted").is_null())
    differs = pl.any_horizontal([pl.col(name) != pl.col(f"{name}_found") for name in value]) if value else pl.lit(False)
    wrong = both.filter(pl.col("wanted").is_not_null() & pl.col("had").is_not_null() & differs)
    result = Verification(
        checked=want.height, lost=missing.height, duplicated=extra.height, wrong=wrong.height, keyed=True
    )
    for label, rows in (("lost", missing), ("extra", extra), ("wrong", wrong)):
        result.examples += [f"{label} {row}" for row in rows.drop("wanted", "had").head(SHOWN).to_dicts()]
    return result


def _frame(table: pa.Table, columns: list[str]) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table.select(columns)))


def _compare_multiset(want: Fingerprint, found: pa.Table, numbers: npt.NDArray[np.int64] | None) -> Verification | None:
    """By count and hash sum. None if they differ and the event numbers can tell more."""
    count, total = found["count"][0].as_py(), found["hash"][0].as_py()
    result = Verification(checked=want.rows)
    if (count, total) == (want.rows, want.digest):
        return result
    if numbers is not None:
        return None
    result.wrong = max(1, abs(count - want.rows))
    result.examples.append(f"{count} rows instead of {want.rows}; too many to name them")
    return result


def compare_numbers(wanted: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> Verification:
    """Which event numbers are missing or came too often. If none did, some row has other values."""
    have, times = np.unique(numbers, return_counts=True)
    lost = np.setdiff1d(wanted, have)
    extra = np.concatenate([have[times > 1], np.setdiff1d(have, wanted)])
    duplicated = int((times - 1).sum()) + len(np.setdiff1d(have, wanted))
    result = Verification(checked=len(wanted), lost=len(lost), duplicated=duplicated)
    result.wrong = int(not len(lost) and not duplicated)
    result.examples += [f"lost event {number}" for number in lost[:SHOWN].tolist()]
    result.examples += [f"repeated or foreign event {number}" for number in extra[:SHOWN].tolist()]
    return result
