"""Keyed state of one task, with change capture.

Protocols see a task's state as opaque buffers: they take changes, append them, and hand them back after a crash.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import pyarrow as pa


class Store(ABC):
    """One named, typed part of a task's state."""

    schema: pa.Schema  # of changes and of snapshots; the first column, `op`, is int8: 0 upsert, 1 delete

    @abstractmethod
    def take_changes(self) -> pa.RecordBatch | None:
        """Net upserts and deletes since the last call; None if there are none. Only meaningful while capturing."""

    @abstractmethod
    def apply(self, changes: pa.RecordBatch) -> None:
        """Replay changes in the order in which they were taken. Is not captured again."""

    @abstractmethod
    def snapshot(self) -> pa.RecordBatch:
        """All of the store as upserts; an independent copy that later writes do not touch."""

    @abstractmethod
    def clear(self) -> None:
        """Back to the empty state, pending changes forgotten."""

    @abstractmethod
    def capture(self, on: bool) -> None:
        """Whether changes are recorded at all."""

    @property
    @abstractmethod
    def rows(self) -> int: ...


class TaskState:
    """All stores of one task, whole or not at all."""

    def __init__(self, stores: Mapping[str, Store]) -> None: ...
    def take_changes(self) -> pa.Buffer | None: ...
    def apply(self, changes: pa.Buffer) -> int: ...
    def snapshot(self) -> pa.Buffer: ...
    def restore(self, snapshot: pa.Buffer | None) -> int: ...
    def capture(self, on: bool) -> None: ...
