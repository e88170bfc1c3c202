"""All benchmarks, one after the other: `python -m tests.bench [--quick] [name …]`.

Each is a process of its own, so that none inherits another's threads, caches or Spark session. What it prints is shown
as it comes and kept in results/bench/<name>.json, next to its numbers where it writes them itself.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from runners.rundir import ROOT, RunDirectory, environment
from tests.bench.measuring import INTERRUPTED, RESULTS


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    what: str
    module: str
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    own_json: bool = False  # takes --json and writes its numbers there


BENCHMARKS = {
    "log": Benchmark(what="the log alone: appends, latency, steady state with trimming",
                     module="tests.bench.bench_log", quick=("--quick",)),
    "nexmark": Benchmark(what="the workload: generating, layouts, fingerprints", module="tests.bench.bench_nexmark"),
    "operators": Benchmark(what="the stages of every query on one core, without log and runtime",
                           module="tests.bench.bench_operators", quick=("5000", "10")),
    "pipeline": Benchmark(what="the whole pipeline: sustained rate of every query, and Structured Streaming",
                          module="tests.bench.bench_pipeline", quick=("--quick",), own_json=True),
    "protocols": Benchmark(what="the protocols: sustained rate and latency relative to unsafe",
                           module="tests.bench.bench_protocols", quick=("--quick",), own_json=True),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    names = options.names or list(BENCHMARKS)
    summary: list[tuple[str, int, float]] = []
    for number, name in enumerate(names, 1):
        print(f"\n=== [{number}/{len(names)}] {name}: {BENCHMARKS[name].what}", flush=True)
        began_s = time.monotonic()
        code = _run(name, quick=options.quick)
        summary.append((name, code, time.monotonic() - began_s))
        if code == INTERRUPTED:
            break
    print("\n=== summary" + (" (--quick: shows that everything works, not how fast it is)" if options.quick else ""))
    for name, code, seconds in summary:
        verdict = {0: "done", INTERRUPTED: "interrupted"}.get(code, f"FAILED with {code}")
        missed = _missed(name)
        bars = f"  bars not met: {missed}" if missed else ""
        print(f"{name:<10} {seconds:7.0f} s  {verdict:<12} {RESULTS.relative_to(ROOT) / name}.json{bars}")
    return max((code for _, code, _ in summary), default=0)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    known = "\n".join(f"  {name:<10} {benchmark.what}" for name, benchmark in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Run benchmarks; on two quiet cores log takes 85 s and pipeline 15 min, protocols longer.",
        epilog=f"benchmarks:\n{known}\n\nEach has options of its own: python -m tests.bench.bench_pipeline --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help="which (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few minutes in all: does everything work?")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    return options


def _run(name: str, *, quick: bool) -> int:
    """Run one in a child process; its stdout is shown and kept, its progress on stderr is shown."""
    benchmark = BENCHMARKS[name]
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # an old result must not pass for this one's
    command = [sys.executable, "-m", benchmark.module, *(benchmark.quick if quick else benchmark.full)]
    command += ["--json", str(path)] if benchmark.own_json else []
    started = f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}"
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}  # lines are shown as they come
    lines: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip("\n"))
            code = child.wait()
        except KeyboardInterrupt:  # the terminal has sent it to the child as well; let it end in order
            child.wait()
            code = INTERRUPTED
    code = INTERRUPTED if code in (-2, INTERRUPTED) else code
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    content = content or {"benchmark": name, "started": started, "environment": environment(0, "")}
    content |= {"command": command[1:], "quick": quick, "exit_code": code, "printed": lines}
    RunDirectory(RESULTS).write_json(path.name, content)
    return code


def _missed(name: str) -> int:
    """How many bars the benchmark itself calls missed."""
    path = RESULTS / f"{name}.json"
    printed: list[str] = json.loads(path.read_text())["printed"] if path.exists() else []
    return sum("NOT MET" in line for line in printed)


if __name__ == "__main__":
    raise SystemExit(main())
