"""Operators that remember nothing: map, filter and branch, for streams of rows and for streams of revisions.

A step takes a batch and gives a batch. Steps are chained into a route, and a stage sends every batch down all of its
routes, each to an output stream of its own. Repartitioning is the output stream's affair: it names its key.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.columns import operations
from dataflow.graph import Logic, Operator, Output
from dataflow.state import DELETE, TaskState

Step = Callable[[pa.RecordBatch], pa.RecordBatch]
Predicate = Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]


@dataclass(frozen=True)
class Filter:
    """Keep the rows that the predicate holds for."""

    predicate: Predicate

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mask = self.predicate(batch)
        return batch if mask.all() else batch.filter(pa.array(mask))


@dataclass(frozen=True)
class TableMap:
    """Map the values of revisions. The step keeps keys and the number of rows; `op` passes through."""

    step: Step

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mapped = self.step(batch)
        return mapped.set_column(mapped.schema.get_field_index("op"), batch.schema.field("op"), batch.column("op"))


@dataclass(frozen=True)
class TableFilter:
    """Filter a table by its revisions: a row that the predicate does not hold for any more has to go downstream too.

    So an upsert that fails becomes a delete of its key, whether or not the key was ever let through.
    """

    predicate: Predicate

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        op = np.where(self.predicate(batch), operations(batch), DELETE).astype(np.int8)
        return batch.set_column(batch.schema.get_field_index("op"), batch.schema.field("op"), pa.array(op))


@dataclass(frozen=True, kw_only=True)
class Branch(Logic):
    """A stateless stage: every route is an output stream and the steps that lead to it, first to last."""

    routes: tuple[tuple[str, tuple[Step, ...]], ...]

    def build(self) -> Operator:
        return _Branch(self.routes)


class _Branch(Operator):
    def __init__(self, routes: tuple[tuple[str, tuple[Step, ...]], ...]) -> None:
        self.state = TaskState({})
        self._routes = routes

    def process(self, stream: str, batch: pa.RecordBatch) -> Iterable[Output]:
        for output, steps in self._routes:
            rows = batch
            for step in steps:
                rows = step(rows)
            if rows.num_rows:
                yield Output(output, rows)
