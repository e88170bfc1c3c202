"""What every role of a query costs: CPU per event of the source, each task and the sink, over a real log.

    python -m tests.bench.bench_roles [--rate 150000] [--seconds 3] [--profile join/0] [query …]

All roles take turns in one process under a clock of its own, which moves on by one flush interval when everybody has
done what there was to do. So batches are as large as at that rate in real time, and nobody waits: CPU time is all that
is measured, and a busy machine disturbs it little. What two processes on two cores do to each other's caches is not in
it; a rate that needs less than two cores here may need more there.
"""

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from nexmark.generator import Generator
from nexmark.parameters import QUERIES
from nexmark.queries import build
from nexmark.rates import Constant
from protocols.base import Context, TaskContext
from protocols.unsafe import Unsafe
from runners.edges import mismatches
from runners.plan import SINK, lay_out
from runners.role import Role
from runners.sink import Sink
from runners.source import Share, Source
from runners.task import Task
from runners.uploads import ThreadUploads
from sharedlog.embedded import EmbeddedLogSpec
from tests.bench.measuring import table

FLUSH_MS = 10
START_US = 1_700_000_000_000_000
SEED = 7


class Pipeline:
    """All roles of one query with parallelism 1, in the order of the data's way."""

    def __init__(self, query: str, directory: str, *, rate: int, total: int) -> None:
        self.now_us = START_US
        protocol = Unsafe()
        spec = EmbeddedLogSpec(path=directory)
        self.log = spec.open()
        graph = build(QUERIES[query](), 1)
        layout = lay_out(graph, sources=1, flush_interval_ms=FLUSH_MS)
        workload = Generator(seed=SEED, total=total, rate=Constant(events_per_s=rate))

        def parts(name: str) -> dict[str, Any]:
            instance = self.log.increment(f"instance/{name}")
            uploads = ThreadUploads(spec.snapshots(), {})
            world = {"log": self.log, "snapshots": spec.snapshots(), "uploads": uploads, "channel": None}
            return {"job": layout.job, "name": name, "instance": instance, "now_us": lambda: self.now_us, **world}

        share = Share(index=0, sources=1, total=total, block=max(64, min(16_384, rate * FLUSH_MS // 1000)))
        (source,) = layout.job.sources
        self.roles: dict[str, Role] = {source: Source(Context(**parts(source)), layout, workload, share, START_US)}
        for stage in graph.stages:
            operator, name = stage.logic.build(), f"{stage.name}/0"
            ctx = TaskContext(plan=layout.job.tasks[name], state=operator.state, **parts(name))
            self.roles[name] = Task(ctx, layout, operator, protocol)
        self.sink = Sink(Context(**parts(SINK)), layout, protocol, start_us=START_US, base_us=workload.base_time_us)
        self.roles[SINK] = self.sink

    def run(self, profile: str | None = None) -> tuple[dict[str, float], cProfile.Profile]:
        """Seconds of CPU that each role took; and where the profiled one spent them."""
        spent = dict.fromkeys(self.roles, 0.0)
        profiler = cProfile.Profile()
        for role in self.roles.values():
            role.recover()
        trimmed_ms = 0.0
        while not self.sink.finished():
            self.now_us += FLUSH_MS * 1000
            now_ms = self.now_us / 1000
            for name, role in self.roles.items():
                if name == profile:
                    profiler.enable()
                began_s = time.process_time()
                while role.step(now_ms):
                    pass
                spent[name] += time.process_time() - began_s
                profiler.disable()
            if now_ms - trimmed_ms >= 200:
                trimmed_ms = now_ms
                self.log.trim(min(role.bound() for role in self.roles.values()))
        return spent, profiler


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    pa.set_cpu_count(1)
    rows = []
    for query in options.queries or QUERIES:
        total = int(options.rate * options.seconds)
        with tempfile.TemporaryDirectory(prefix="tidemark-roles-") as directory:
            pipeline = Pipeline(query, directory, rate=options.rate, total=total)
            spent, profiler = pipeline.run(options.profile)
        if broken := mismatches(pipeline.sink.edges()):
            raise AssertionError(f"{query}: {broken[0]}")
        if options.profile:
            pstats.Stats(profiler).sort_stats(options.sort).print_stats(options.lines)
        costs = {name: 1e6 * seconds / total for name, seconds in spent.items()}
        whole = sum(costs.values())
        detail = " ".join(f"{name} {cost:.2f}" for name, cost in costs.items())
        rows.append([query, f"{whole:.2f}", f"{2e6 / whole:,.0f}", detail])
        print(table(["query", "µs per event", "events/s on two cores", "of which"], rows[-1:]), flush=True)
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="CPU per event of every role, in one process over a real log.")
    parser.add_argument("queries", nargs="*", metavar="query", help="default: all")
    parser.add_argument("--rate", type=int, default=150_000, help="events/s of the clock (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3, help="of event time (default: %(default)s)")
    parser.add_argument("--profile", metavar="role", help="print where this role spends its time, e.g. source/0")
    parser.add_argument("--sort", default="tottime")
    parser.add_argument("--lines", type=int, default=25)
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
