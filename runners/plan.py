"""From a graph to roles and tags: who runs, who reads what, who writes where."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from dataflow.graph import Graph
from protocols.base import Job, Plan

SINK = "sink"
WATERMARK_INTERVAL_MS = 100.0  # event time passes at least so often where no rows do


def data_tag(stream: str, substream: int) -> str:
    return f"d/{stream}/{substream}"


def task_tag(role: str) -> str:
    return f"t/{role}"


REPORTS = "r"
"""The tag of all roles' reports."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A graph spread over tasks: the job's names, and the tags of every stream."""

    graph: Graph
    job: Job
    tags: Mapping[str, tuple[str, ...]]  # stream → the tags of its substreams

    def stream_of(self, tag: str) -> str:
        return tag.split("/")[1]

    def schema_of(self, stream: str) -> pa.Schema:
        """What travels in the log: the runtime stamps the rows of the result stream when they are handed over."""
        schema = self.graph.streams[stream].schema
        return schema.append(pa.field("emit_us", pa.int64())) if stream == self.graph.result else schema

    def stage_of(self, task: str) -> str:
        return task.split("/")[0]


def lay_out(
    graph: Graph,
    *,
    sources: int,
    flush_interval_ms: float = 10,
    flush_bytes: int = 128 * 1024,
    watermark_interval_ms: float = WATERMARK_INTERVAL_MS,
    max_held_bytes: int = 256 * 1024 * 1024,
) -> Layout:
    """Name every role and every substream. A stream has one substream for each task of its consumer."""
    tags = {}
    writers: dict[str, tuple[str, ...]] = {graph.source: tuple(f"source/{g}" for g in range(sources))}
    for stream in graph.streams:
        consumer = graph.consumer(stream)
        substreams = consumer.parallelism if consumer is not None else 1
        tags[stream] = tuple(data_tag(stream, i) for i in range(substreams))
        producer = graph.producer(stream)
        if producer is not None:
            writers[stream] = tuple(f"{producer.name}/{i}" for i in range(producer.parallelism))
    tasks = {
        name: Plan(
            name,
            {tags[stream][index]: writers[stream] for stream in stage.inputs},
            tuple(tag for stream in stage.outputs for tag in tags[stream]),
        )
        for stage in graph.stages
        for index in range(stage.parallelism)
        for name in [f"{stage.name}/{index}"]
    }
    job = Job(
        sources=writers[graph.source],
        source_tags=tags[graph.source],
        tasks=tasks,
        sink_inputs={tags[graph.result][0]: writers[graph.result]},
        flush_interval_ms=flush_interval_ms,
        flush_bytes=flush_bytes,
        watermark_interval_ms=watermark_interval_ms,
        max_held_bytes=max_held_bytes,
    )
    return Layout(graph=graph, job=job, tags=tags)
