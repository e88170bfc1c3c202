"""`python -m nexmark export` writes a stream to files; `python -m nexmark stats` prints what a stream looks like."""

import argparse
import sys
import time
from pathlib import Path

from nexmark.errors import WorkloadError
from nexmark.export import export
from nexmark.generator import Generator
from nexmark.rates import Constant
from nexmark.replay import Replay
from nexmark.statistics import EXPECTED, measure
from nexmark.workload import UNBOUNDED, Workload


class Progress:
    """A line on stderr once a second, from the fifth second on."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._started = time.monotonic()
        self._next = self._started + 5

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now >= self._next and done:
            left_s = (now - self._started) * (self._total - done) / done
            line = f"{done:,} of {self._total:,} events ({100 * done // self._total}%), about {left_s:.0f} s left"
            print(line, file=sys.stderr, flush=True)
            self._next = now + 1


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _export(options) if options.command == "export" else _stats(options)
    except (WorkloadError, OSError) as error:
        print(f"python -m nexmark {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nexmark", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    exporting = commands.add_parser("export", help="write a generated stream as persons, auctions and bids files")
    exporting.add_argument("directory", type=Path, metavar="DIR", help="where to; must not hold such files yet")
    exporting.add_argument("--format", choices=("jsonl", "parquet"), default="parquet", help="default: %(default)s")
    _add_stream(exporting, 200_000)
    stats = commands.add_parser("stats", help="print the statistics of a stream next to the reference's")
    stats.add_argument("--replay", type=Path, metavar="DIR", help="of these files instead of the generator")
    _add_stream(stats, 1_000_000)
    return parser


def _add_stream(parser: argparse.ArgumentParser, events: int) -> None:
    parser.add_argument("--seed", type=int, default=7, help="default: %(default)s")
    parser.add_argument("--events", type=int, default=events, help="how many; default: %(default)s")
    parser.add_argument("--rate", type=int, default=10_000, help="events/s of event time; default: %(default)s")
    parser.add_argument("--out-of-order-group", type=int, default=1, help="permute inside groups of this size")
    parser.add_argument("--late-fraction", type=float, default=0.0, help="share of late events, up to 0.5")
    parser.add_argument("--late-max-us", type=int, default=0, help="longest delay of a late event")


def _generator(options: argparse.Namespace) -> Generator:
    if options.events >= UNBOUNDED:
        raise WorkloadError(f"--events must be below {UNBOUNDED}, got {options.events}")
    return Generator(
        seed=options.seed,
        total=options.events,
        rate=Constant(events_per_s=options.rate),
        out_of_order_group=options.out_of_order_group,
        late_fraction=options.late_fraction,
        late_max_us=options.late_max_us,
    )


def _export(options: argparse.Namespace) -> int:
    generator = _generator(options)
    for path in export(generator, options.directory, options.format, Progress(generator.total)).values():
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    return 0


def _stats(options: argparse.Namespace) -> int:
    workload: Workload = Replay(directory=str(options.replay)) if options.replay else _generator(options)
    if workload.total < 1000:
        raise WorkloadError(f"statistics need at least 1000 events, got {workload.total}")
    measured = measure(workload, Progress(workload.total))
    print(f"{'statistic':42} {'measured':>14} {'reference':>14} {'tolerance':>10}")
    for expected in EXPECTED:
        value = measured[expected.name]
        mark = "" if abs(value - expected.value) <= expected.tolerance else "  outside"
        numbers = f"{value:14,.2f} {expected.value:14,.2f} {expected.tolerance:10,.2f}"
        print(f"{expected.name:42} {numbers} {expected.unit}{mark}")
    print(f"{workload.total:,} events; tolerances hold for 5 million events or more at 10,000 events/s with defaults")
    return 0


if __name__ == "__main__":
    sys.exit(main())
