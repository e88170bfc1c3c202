"""The eight queries as Spark SQL over the views person, auction and bid: the definition of the right answer.

Written from the semantics in `nexmark/README.md`, for a bounded input. Nothing here is shared with the streaming
operators: the only common parts are the parameters and the names of the result's columns.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dataflow.graph import Answer
from nexmark.parameters import Q1, Q2, Q3, Q4, Q5, Q6, Q7, Q8, Query

ANSWERS: Mapping[str, Answer] = MappingProxyType(
    {
        "q1": Answer(key=(), value=("number", "auction", "bidder", "price", "ts", "extra")),
        "q2": Answer(key=(), value=("number", "auction", "price")),
        "q3": Answer(key=("auction",), value=("name", "city", "state")),
        "q4": Answer(key=("category",), value=("total", "count")),
        "q5": Answer(key=("window", "auction"), value=("count",)),
        "q6": Answer(key=("seller",), value=("total", "count")),
        "q7": Answer(key=("window", "number"), value=("auction", "bidder", "price", "ts")),
        "q8": Answer(key=("window", "person"), value=("name",)),
    }
)
"""Key and value columns of each answer; no key means a multiset of rows. Integers are int64, the rest are strings."""


def _q1(p: Q1) -> str:
    return f"SELECT number, auction, bidder, price * {p.rate_numerator}L AS price, ts, extra FROM bid"


def _q2(p: Q2) -> str:
    return f"SELECT number, auction, price FROM bid WHERE auction % {p.modulus} = 0"


def _q3(p: Q3) -> str:
    states = ", ".join("'" + state.replace("\\", "\\\\").replace("'", "\\'") + "'" for state in p.states)
    return f"""
        SELECT a.id AS auction, p.name, p.city, p.state
        FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = {p.category} AND p.state IN ({states})"""


# The bids that count: made while their auction was open, both ends included.
_IN_TIME = "FROM auction a JOIN bid b ON b.auction = a.id AND b.ts BETWEEN a.ts AND a.expires"


def _q4(p: Q4) -> str:
    return f"""
        SELECT category, sum(highest) AS total, count(*) AS count
        FROM (SELECT a.id, a.category, max(b.price) AS highest {_IN_TIME} GROUP BY a.id, a.category)
        GROUP BY category"""


def _q5(p: Q5) -> str:
    # A pane is the largest interval that every window contains whole or not at all; counting panes first keeps the
    # number of rows that are repeated per window small.
    pane = math.gcd(p.window_us, p.slide_us)
    windows = -(-p.window_us // p.slide_us)
    return f"""
        WITH panes AS (
            SELECT auction, ts - pmod(ts, {pane}) AS pane, count(*) AS bids FROM bid GROUP BY 1, 2
        ), placed AS (
            SELECT auction, bids, pane, pane - pmod(pane, {p.slide_us}) - step * {p.slide_us} AS window
            FROM panes LATERAL VIEW explode(sequence(0L, {windows - 1}L)) AS step
        ), counts AS (
            SELECT window, auction, sum(bids) AS count FROM placed
            WHERE pane < window + {p.window_us} GROUP BY window, auction
        )
        SELECT window, auction, count
        FROM (SELECT *, max(count) OVER (PARTITION BY window) AS most FROM counts)
        WHERE count = most"""


def _q6(p: Q6) -> str:
    return f"""
        WITH ranked AS (
            SELECT a.id, a.seller, b.price, b.ts,
                   row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts, b.number) AS place {_IN_TIME}
        ), recent AS (
            SELECT seller, price, row_number() OVER (PARTITION BY seller ORDER BY ts DESC, id DESC) AS age
            FROM ranked WHERE place = 1
        )
        SELECT seller, sum(price) AS total, count(*) AS count FROM recent WHERE age <= {p.rows} GROUP BY seller"""


def _q7(p: Q7) -> str:
    # The highest price first, then a join: a window function would sort all bids of a window in one task.
    return f"""
        WITH placed AS (
            SELECT ts - pmod(ts, {p.window_us}) AS window, number, auction, bidder, price, ts FROM bid
        ), highest AS (
            SELECT window, max(price) AS price FROM placed GROUP BY window
        )
        SELECT window, number, auction, bidder, price, ts FROM placed JOIN highest USING (window, price)"""


def _q8(p: Q8) -> str:
    return f"""
        SELECT p.ts - pmod(p.ts, {p.window_us}) AS window, p.id AS person, p.name
        FROM person p LEFT SEMI JOIN auction a
        ON a.seller = p.id AND a.ts - pmod(a.ts, {p.window_us}) = p.ts - pmod(p.ts, {p.window_us})"""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """SQL of a query, and the columns of each view that it reads (all others stay out of Spark)."""

    text: Callable[[Any], str]
    reads: Mapping[str, tuple[str, ...]]


DEFINITIONS: Mapping[str, Definition] = MappingProxyType(
    {
        "q1": Definition(text=_q1, reads={"bid": ("number", "auction", "bidder", "price", "ts", "extra")}),
        "q2": Definition(text=_q2, reads={"bid": ("number", "auction", "price")}),
        "q3": Definition(
            text=_q3, reads={"person": ("id", "name", "city", "state"), "auction": ("id", "seller", "category")}
        ),
        "q4": Definition(
            text=_q4, reads={"auction": ("id", "ts", "expires", "category"), "bid": ("auction", "ts", "price")}
        ),
        "q5": Definition(text=_q5, reads={"bid": ("auction", "ts")}),
        "q6": Definition(
            text=_q6, reads={"auction": ("id", "ts", "expires", "seller"), "bid": ("number", "auction", "ts", "price")}
        ),
        "q7": Definition(text=_q7, reads={"bid": ("number", "auction", "bidder", "price", "ts")}),
        "q8": Definition(text=_q8, reads={"person": ("id", "ts", "name"), "auction": ("seller", "ts")}),
    }
)


def sql(query: Query) -> str:
    """The query's text with its parameters filled in."""
    return DEFINITIONS[query.name].text(query)
