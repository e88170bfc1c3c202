"""Parameters of the eight queries, shared by the streaming graphs and by the oracle; nothing else is shared by them.

One class per query, built from `configs/query/<name>.yaml`. Defaults are the reference's. All times are microseconds
of event time; `grace_us` is how long after its end a window (or an auction) still takes rows, and never changes the
final answer of a stream whose disorder stays inside it. So the oracle does not read it.
"""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from nexmark.errors import ParameterError, require_int


@dataclass(frozen=True, kw_only=True)
class Query(ABC):
    """Common part: the name, and the visible p99 beyond which a rate does not count as sustained."""

    name: ClassVar[str]
    limit_adds_commit_interval: ClassVar[bool] = False

    limit_ms: int = 1000

    def __post_init__(self) -> None:
        require_int(self.name, "limit_ms", self.limit_ms, 1)

    def visible_limit_ms(self, commit_interval_ms: float) -> float:
        """Stateless queries wait for nothing but the commit, so their limit is relative to it."""
        return self.limit_ms + (commit_interval_ms if self.limit_adds_commit_interval else 0)


@dataclass(frozen=True, kw_only=True)
class Q1(Query):
    """Currency conversion: price × rate_numerator, an integer with `scale` decimal places."""

    name: ClassVar[str] = "q1"
    limit_adds_commit_interval: ClassVar[bool] = True

    limit_ms: int = 60
    rate_numerator: int = 908
    scale: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.name, "rate_numerator", self.rate_numerator, 1, 10**9)
        require_int(self.name, "scale", self.scale, 0, 18)


@dataclass(frozen=True, kw_only=True)
class Q2(Query):
    """Selection: bids whose auction is a multiple of `modulus`."""

    name: ClassVar[str] = "q2"
    limit_adds_commit_interval: ClassVar[bool] = True

    limit_ms: int = 60
    modulus: int = 123

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.name, "modulus", self.modulus, 1)


@dataclass(frozen=True, kw_only=True)
class Q3(Query):
    """Local items: persons of some states with their auctions of one category."""

    name: ClassVar[str] = "q3"

    category: int = 10
    states: tuple[str, ...] = ("OR", "ID", "CA")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.name, "category", self.category, 0)
        states: object = self.states
        if not isinstance(states, list | tuple) or not all(isinstance(state, str) for state in states) or not states:
            raise ParameterError(f"{self.name}: states must be a list of strings, got {states!r}; quote them")
        object.__setattr__(self, "states", tuple(states))


@dataclass(frozen=True, kw_only=True)
class Q4(Query):
    """Average closing price per category."""

    name: ClassVar[str] = "q4"

    grace_us: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.name, "grace_us", self.grace_us, 0)


@dataclass(frozen=True, kw_only=True)
class Q5(Query):
    """Hot items per hopping window. Windows start at multiples of the slide."""

    name: ClassVar[str] = "q5"

    window_us: int = 10_000_000
    slide_us: int = 2_000_000
    grace_us: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.name, "window_us", self.window_us, 1)
        require_int(self.name, "slide_us", self.slide_us, 1)
        require_int(self.name, "grace_us", self.grace_us, 0)
        if self.slide_us > self.window_us:
            raise ParameterError(
                f"{self.name}: slide_us={self.slide_us} leaves gaps between windows of window_us={self.window_us}; "
                f"set slide_us to at most {self.window_us}"
            )


@dataclass(frozen=True, kw_only=True)
class Q6(Query):
    """Average selling price per seller over the last `rows` auctions."""

    name: ClassVar[str] = "q6"

    rows: int = 10
    grace_us: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.name, "rows", self.rows, 1)
        require_int(self.name, "grace_us", self.grace_us, 0)


@dataclass(frozen=True, kw_only=True)
class _Tumbling(Query):
    window_us: int = 10_000_000
    grace_us: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.name, "window_us", self.window_us, 1)
        require_int(self.name, "grace_us", self.grace_us, 0)


@dataclass(frozen=True, kw_only=True)
class Q7(_Tumbling):
    """Highest bids per tumbling window."""

    name: ClassVar[str] = "q7"


@dataclass(frozen=True, kw_only=True)
class Q8(_Tumbling):
    """Persons who opened an auction in the tumbling window in which they joined."""

    name: ClassVar[str] = "q8"


QUERIES: Mapping[str, type[Query]] = MappingProxyType({query.name: query for query in (Q1, Q2, Q3, Q4, Q5, Q6, Q7, Q8)})
