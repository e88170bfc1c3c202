"""How fast the stages of every query are, on one core, without log and runtime.

    python -m tests.bench.bench_operators [events per batch] [number of batches] [query …]

For every stage: rows that it takes in per second of CPU time, and microseconds per batch; capturing changes, taking
them after every batch and cutting the output into two substreams are included. The line `all` is what the query would
do if one core did nothing but its stages.
"""

import sys
import time
from dataclasses import dataclass

import pyarrow as pa

from dataflow.graph import Graph, Operator
from dataflow.partition import partition
from nexmark.events import count
from nexmark.generator import Generator
from nexmark.parameters import QUERIES
from nexmark.queries import build
from nexmark.rates import Constant

RATE = 200_000


@dataclass
class Timing:
    seconds: float = 0.0
    rows: int = 0
    batches: int = 0
    changes: int = 0


def measure(graph: Graph, batches: list[tuple[pa.RecordBatch, int]]) -> dict[str, Timing]:
    """Run one task per stage, batch after batch, and clock each stage apart."""
    operators: dict[str, Operator] = {stage.name: stage.logic.build() for stage in graph.stages}
    timings = {stage.name: Timing() for stage in graph.stages}
    for operator in operators.values():
        operator.state.capture(True)
    for batch, watermark in batches:
        flowing = {graph.source: [batch]}
        for stage in graph.stages:
            operator, timing = operators[stage.name], timings[stage.name]
            inputs = [(stream, part) for stream in stage.inputs for part in flowing.pop(stream, [])]
            started = time.process_time()
            outputs = [output for stream, part in inputs for output in operator.process(stream, part)]
            outputs += operator.advance(watermark)
            changes = operator.state.take_changes()
            for output in outputs:
                stream = graph.streams[output.stream]
                if stream.key is not None:
                    partition(output.batch, stream.key, 2)
            timing.seconds += time.process_time() - started
            timing.rows += sum(count(part) if stream == graph.source else part.num_rows for stream, part in inputs)
            timing.batches += max(len(inputs), 1)
            timing.changes += 0 if changes is None else changes.size
            for output in outputs:
                flowing.setdefault(output.stream, []).append(output.batch)
    for stage in graph.stages:
        print(f"      state of {stage.name}: {operators[stage.name].state.rows:,} rows", file=sys.stderr)
    return timings


def main(arguments: list[str]) -> None:
    size = int(arguments[0]) if arguments else 10_000
    number = int(arguments[1]) if len(arguments) > 1 else 60
    generator = Generator(total=size * number, rate=Constant(events_per_s=RATE))
    batches = [
        (generator.events(at * size, (at + 1) * size), generator.watermark_after((at + 1) * size))
        for at in range(number)
    ]
    pa.set_cpu_count(1)
    print(f"{size:,} events per batch, {number} batches, {RATE:,} events/s of event time")
    for name in arguments[2:] or QUERIES:
        timings = measure(build(QUERIES[name](), 2), batches)
        for stage, timing in timings.items():
            print(
                f"{name} {stage:8} {timing.rows / timing.seconds / 1e6:8.2f} M rows/s"
                f" {timing.seconds / timing.batches * 1e6:8.0f} µs per batch"
                f" {timing.rows / number:9.0f} rows per batch {timing.changes / number / 1024:7.1f} KiB changes"
            )
        total = sum(timing.seconds for timing in timings.values())
        print(f"{name} {'all':8} {size * number / total / 1e6:8.2f} M events/s")


if __name__ == "__main__":
    main(sys.argv[1:])
