"""The plan of a query: streams, and the stages between them.

A graph is a value: it is built on the driver, pickled to every role, and knows nothing of logs, tasks or protocols.
One stage runs as `parallelism` tasks; a stream has one substream for every task of the stage that consumes it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from dataflow.partition import row_hash_sum
from dataflow.state import TaskState


class GraphError(ValueError):
    """A graph that cannot run."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A named flow of rows of one schema.

    `key` is the int64 column whose stable hash chooses a row's substream; None spreads whole batches evenly.
    `identity` names the int64 columns that tell rows apart; both ends of an edge count and hash them. A stream whose
    batches are not plain rows brings its own `summary` (count, hash sum) instead.
    """

    name: str
    schema: pa.Schema
    key: str | None = None
    identity: tuple[str, ...] = ()
    summary: Callable[[pa.RecordBatch], tuple[int, int]] | None = None

    def summarise(self, batch: pa.RecordBatch | pa.Table) -> tuple[int, int]:
        """How many rows, and the sum of their hashes: what both ends of an edge compare."""
        if self.summary is not None:
            return self.summary(batch)
        return batch.num_rows, row_hash_sum(batch, self.identity)


class Output(NamedTuple):
    """Rows that a stage hands over to one of its output streams."""

    stream: str
    batch: pa.RecordBatch


class Operator(ABC):
    """The living part of one task. All its durable state is in the stores of `state`.

    Anything else that it keeps must be derivable from the stores: after `state` was restored, `rebuild` is called.
    """

    state: TaskState

    @abstractmethod
    def process(self, stream: str, batch: pa.RecordBatch) -> Iterable[Output]:
        """Take rows of one input stream; give the net revisions that they cause."""

    def advance(self, watermark_us: int) -> Iterable[Output]:
        """No row with a smaller time will come: close windows, expire state. Called with rising values only."""
        return ()

    def rebuild(self) -> None:  # noqa: B027  Most operators derive nothing.
        """Recompute what was derived from the stores. Called after every restore, also of an empty state."""

    @property
    def late_rows(self) -> int:
        """Rows dropped since the start because they came after their window's grace."""
        return 0


class Logic(ABC):
    """What a stage does, as a picklable value. `build` makes the operator of one task."""

    @abstractmethod
    def build(self) -> Operator: ...


@dataclass(frozen=True, kw_only=True)
class Stage:
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    logic: Logic
    parallelism: int = 1


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How the result stream folds into an answer: last value per key, or (no key) the multiset of all rows."""

    key: tuple[str, ...]
    value: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Stages in topological order, from the stream `source` to the stream `result`."""

    name: str
    source: str
    result: str
    answer: Answer
    streams: Mapping[str, Stream] = field(default_factory=dict)
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        known = {self.source}
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise GraphError(f"graph {self.name!r}: stage names must differ, got {names}")
        for stage in self.stages:
            for stream in (*stage.inputs, *stage.outputs):
                if stream not in self.streams:
                    raise GraphError(f"graph {self.name!r}: stage {stage.name!r} names unknown stream {stream!r}")
            if missing := set(stage.inputs) - known:
                raise GraphError(f"graph {self.name!r}: stage {stage.name!r} reads {missing} before it is produced")
            if stage.parallelism < 1:
                raise GraphError(f"graph {self.name!r}: stage {stage.name!r} needs a parallelism of at least 1")
            known.update(stage.outputs)
        if self.result not in known:
            raise GraphError(f"graph {self.name!r}: nothing produces the result stream {self.result!r}")

    def producer(self, stream: str) -> Stage | None:
        """The stage that writes the stream; None for the source stream."""
        return next((stage for stage in self.stages if stream in stage.outputs), None)

    def consumer(self, stream: str) -> Stage | None:
        """The stage that reads the stream; None for the result stream, which the sink reads."""
        return next((stage for stage in self.stages if stream in stage.inputs), None)

    def with_parallelism(self, parallelism: int) -> "Graph":
        return replace(self, stages=tuple(replace(stage, parallelism=parallelism) for stage in self.stages))
