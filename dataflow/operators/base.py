"""What the stateful operators have in common: their output, their stores, and the count of rows that came too late."""

from collections.abc import Mapping

from dataflow.graph import Operator
from dataflow.state import CounterStore, Store, TaskState


class KeyedOperator(Operator):
    """An operator with stores. Late rows are counted in the state: a recovered task must not forget them."""

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self._late = CounterStore()
        self.state = TaskState({**stores, "late": self._late})

    def drop_late(self, rows: int) -> None:
        if rows:
            self._late.add("rows", int(rows))

    @property
    def late_rows(self) -> int:
        return self._late["rows"][0]


def first_open(watermark_us: int, *, window_us: int, slide_us: int, grace_us: int) -> int:
    """The start of the earliest window that still takes rows: it ends, grace included, after the watermark."""
    return (watermark_us - window_us - grace_us) // slide_us * slide_us + slide_us
