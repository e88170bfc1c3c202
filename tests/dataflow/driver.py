"""Runs a graph in memory: p tasks per stage, batches in an order of the test's choosing, no log and no protocol.

Everything that a task gets (rows of an input, a watermark) is an item in its queue. A producer's rows stay in order,
queues of different producers interleave as `choose` says, and a task's watermark is the least of all its producers'.
"""

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dataflow.columns import LATENCY
from dataflow.graph import Graph, Operator, Stage
from dataflow.partition import partition

END = 2**62


@dataclass
class Task:
    stage: Stage
    operator: Operator
    queues: dict[tuple[str, str], deque[tuple[str, Any]]]
    watermarks: dict[str, int]
    watermark: int = -(2**62)
    peak_rows: int = 0


@dataclass
class Driver:
    """`crash` is the probability with which a task, between two batches, is replaced by one recovered from its last
    snapshot and the changes since. `backlog` is the probability with which work is left lying when the next batch
    comes."""

    graph: Graph
    seed: int = 0
    crash: float = 0.0
    backlog: float = 0.3
    results: list[pa.RecordBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.tasks: dict[str, Task] = {}
        for stage in self.graph.stages:
            for number in range(stage.parallelism):
                self.tasks[f"{stage.name}/{number}"] = Task(stage, stage.logic.build(), {}, {})
        self._snapshots: dict[str, tuple[pa.Buffer, list[pa.Buffer]]] = {}
        if self.crash:
            for name, task in self.tasks.items():
                task.operator.state.capture(True)
                self._snapshots[name] = (task.operator.state.snapshot(), [])
        self._turn = 0
        self._sources: list[str] = []

    def run(self, batches: Sequence[tuple[pa.RecordBatch, int]], sources: int = 1) -> "Driver":
        """Batches of the source stream, each with the watermark that holds after it, dealt to `sources`."""
        self._sources = [f"source/{number}" for number in range(sources)]
        for number, (batch, watermark) in enumerate(batches):
            self._send(f"source/{number % sources}", self.graph.source, batch)
            self._watermark(f"source/{number % sources}", (self.graph.source,), watermark)
            while self.random.random() >= self.backlog and self._step():
                pass
        for source in range(sources):
            self._watermark(f"source/{source}", (self.graph.source,), END)
        while self._step():
            pass
        return self

    def answer(self) -> Any:
        """The folded result: a dict, or a multiset of rows for a stream without a key."""
        answer = self.graph.answer
        if not answer.key:
            return Counter(
                tuple(row[name] for name in answer.value) for batch in self.results for row in batch.to_pylist()
            )
        folded: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for batch in self.results:
            keys = [tuple(row[name] for name in answer.key) for row in batch.to_pylist()]
            assert len(set(keys)) == len(keys), "a batch has at most one revision per key"
            for key, row in zip(keys, batch.to_pylist(), strict=True):
                if row["op"] == 0:
                    folded[key] = tuple(row[name] for name in answer.value)
                else:
                    folded.pop(key, None)
        return folded

    @property
    def late_rows(self) -> int:
        return sum(task.operator.late_rows for task in self.tasks.values())

    def state_rows(self, stage: str) -> int:
        return sum(task.operator.state.rows for task in self.tasks.values() if task.stage.name == stage)

    def _send(self, producer: str, stream: str, batch: pa.RecordBatch) -> None:
        description = self.graph.streams[stream]
        assert batch.schema.equals(description.schema), (stream, batch.schema, description.schema)
        consumer = self.graph.consumer(stream)
        if consumer is None:
            assert set(LATENCY) <= set(batch.schema.names)
            self.results.append(batch)
            return
        if description.key is None:
            self._turn += 1
            parts: list[pa.RecordBatch | None] = [None] * consumer.parallelism
            parts[self._turn % consumer.parallelism] = batch
        else:
            parts = partition(batch, description.key, consumer.parallelism)
        for number, part in enumerate(parts):
            if part is not None:
                task = self.tasks[f"{consumer.name}/{number}"]
                task.queues.setdefault((producer, stream), deque()).append(("rows", part))

    def _watermark(self, producer: str, streams: Sequence[str], watermark: int) -> None:
        for stream in streams:
            consumer = self.graph.consumer(stream)
            if consumer is not None:
                for number in range(consumer.parallelism):
                    task = self.tasks[f"{consumer.name}/{number}"]
                    task.queues.setdefault((producer, stream), deque()).append(("watermark", watermark))

    def _step(self) -> bool:
        ready = [(name, edge) for name, task in self.tasks.items() for edge, queue in task.queues.items() if queue]
        if not ready:
            return False
        name, edge = self.random.choice(ready)
        task = self.tasks[name]
        kind, item = task.queues[edge].popleft()
        if kind == "rows":
            for output in task.operator.process(edge[1], item):
                self._send(name, output.stream, output.batch)
        else:
            self._advance(name, task, f"{edge[0]}:{edge[1]}", item)
        task.peak_rows = max(task.peak_rows, task.operator.state.rows)
        self._maybe_crash(name, task)
        return True

    def _advance(self, name: str, task: Task, edge: str, watermark: int) -> None:
        task.watermarks[edge] = watermark
        edges = {f"{producer}:{stream}" for stream in task.stage.inputs for producer in self._producers_of(stream)}
        reached = min(task.watermarks.get(known, -END) for known in edges)
        if reached > task.watermark:
            task.watermark = reached
            for output in task.operator.advance(reached):
                self._send(name, output.stream, output.batch)
            self._watermark(name, task.stage.outputs, reached)

    def _producers_of(self, stream: str) -> set[str]:
        producer = self.graph.producer(stream)
        if producer is None:
            return set(self._sources)
        return {f"{producer.name}/{number}" for number in range(producer.parallelism)}

    def _maybe_crash(self, name: str, task: Task) -> None:
        if not self.crash:
            return
        snapshot, changes = self._snapshots[name]
        taken = task.operator.state.take_changes()
        if taken is not None:
            changes.append(taken)
        if self.random.random() < 0.2:
            self._snapshots[name] = (task.operator.state.snapshot(), [])
            snapshot, changes = self._snapshots[name]
        if self.random.random() < self.crash:
            rows = task.operator.state.rows
            task.operator = task.stage.logic.build()
            task.operator.state.capture(True)
            task.operator.state.restore(snapshot)
            for change in changes:
                task.operator.state.apply(change)
            task.operator.rebuild()
            assert task.operator.state.rows == rows
            assert task.operator.state.take_changes() is None, "replayed changes are not captured again"
