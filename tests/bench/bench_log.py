"""The log against its bars, as a small table. Ratios are taken between things measured in the same run."""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runners.log_latency import measure
from sharedlog.embedded import EmbeddedLogSpec
from sharedlog.log import Entry, Header, Kind

_MB = 1_000_000
_CHUNK = 128 * 1024
_STEADY_MB_PER_S = 200.0
_KEEP_BYTES = 400 * _MB
_DISK_LIMIT_BYTES = 2000 * _MB


@dataclass(frozen=True, kw_only=True)
class Line:
    """One bar; `met` says whether this run cleared it."""

    what: str
    bar: str
    found: str
    met: bool


def append_speed(directory: Path, total_bytes: int, rounds: int) -> tuple[Line, float]:
    """128 KiB appends against plain writes of the same bytes, by turns; the ratio of the two medians.

    Many short rounds, because other processes disturb some of them; each writes `total_bytes` into files of its own.
    """
    body = np.random.default_rng(1).bytes(_CHUNK)
    header = Header(Kind.DATA, "bench")
    raw, log_rates = [], []
    for number in range(rounds):
        path = directory / f"raw-{number}"
        began = time.perf_counter()
        with open(path, "wb", buffering=0) as file:
            for _ in range(total_bytes // _CHUNK):
                file.write(body)
        raw.append(total_bytes / (time.perf_counter() - began) / _MB)
        path.unlink()
        log = EmbeddedLogSpec(path=str(directory / f"append-{number}")).open()
        began = time.perf_counter()
        for _ in range(total_bytes // _CHUNK):
            log.append([Entry(("d/bench/0",), header, body)])
        log_rates.append(total_bytes / (time.perf_counter() - began) / _MB)
        log.trim(log.tail() + 1)
        log.close()
    raw_rate = float(np.median(raw))
    ratio = float(np.median(log_rates)) / raw_rate
    line = Line(
        what="128 KiB appends / raw writes",
        bar="≥ 50%",
        found=f"{ratio:.0%} ({np.median(log_rates):.0f} of {raw_rate:.0f} MB/s)",
        met=ratio >= 0.5,
    )
    return line, raw_rate


def latency(directory: Path, seconds: float) -> Line:
    [row] = measure(EmbeddedLogSpec(path=str(directory / "latency")), [100], seconds)
    p50_ms, p99_ms = row.latency_us_p50 / 1000, row.latency_us_p99 / 1000
    return Line(
        what="16 KiB append → read at 100/s",
        bar="p50 ≤ 1 ms, p99 ≤ 5 ms",
        found=f"p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms",
        met=p50_ms <= 1 and p99_ms <= 5,
    )


def steady(directory: Path, seconds: float, raw_rate: float) -> list[Line]:
    """Paced appends with a trim behind them.

    The bar is on what was achieved; bytes per second spent in append show how much room there was to spare.
    """
    target = min(_STEADY_MB_PER_S, 0.8 * raw_rate) * _MB
    log = EmbeddedLogSpec(path=str(directory / "steady")).open()
    body = np.random.default_rng(2).bytes(_CHUNK)
    entry = Entry(("d/bench/0",), Header(Kind.DATA, "bench"), body)
    keep = _KEEP_BYTES // _CHUNK
    stop = threading.Event()
    largest = [0]

    def trim_behind() -> None:
        while not stop.wait(0.5):
            largest[0] = max(largest[0], _disk_bytes(directory / "steady"))
            log.trim(log.tail() - keep)

    trimmer = threading.Thread(target=trim_behind)
    trimmer.start()
    began = time.perf_counter()
    samples: list[tuple[float, float]] = []  # (when, seconds spent in append)
    appended = 0
    while (now := time.perf_counter() - began) < seconds:
        due = appended * _CHUNK / target
        if due > now:
            time.sleep(due - now)
        start = time.perf_counter()
        log.append([entry])
        samples.append((start - began, time.perf_counter() - start))
        appended += 1
    elapsed = time.perf_counter() - began
    stop.set()
    trimmer.join()
    log.close()
    window = min(10.0, seconds / 3)
    first = _achieved([s for s in samples if s[0] < window], window)
    last = _achieved([s for s in samples if s[0] >= elapsed - window], window)
    busy_first, busy_last = _busy(samples, 0, window), _busy(samples, elapsed - window, elapsed)
    return [
        Line(
            what=f"{seconds:.0f} s at {target / _MB:.0f} MB/s with a trim behind",
            bar="last ≥ 80% of first",
            found=f"{last / first:.0%} ({first:.0f} → {last:.0f} MB/s; in append {busy_first:.0f} → {busy_last:.0f})",
            met=last >= 0.8 * first,
        ),
        Line(
            what="disk use meanwhile",
            bar="≤ 2 GB",
            found=f"{largest[0] / _MB:.0f} MB",
            met=largest[0] <= _DISK_LIMIT_BYTES,
        ),
    ]


def _achieved(samples: list[tuple[float, float]], window: float) -> float:
    return len(samples) * _CHUNK / window / _MB


def _busy(samples: list[tuple[float, float]], start: float, end: float) -> float:
    spent = [seconds for when, seconds in samples if start <= when < end]
    return len(spent) * _CHUNK / sum(spent) / _MB


def _disk_bytes(directory: Path) -> int:
    total = 0
    for parent, _, files in os.walk(directory):
        for name in files:
            try:
                total += os.stat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; the exit code is 0 either way, because a busy machine is no defect."""
    parser = argparse.ArgumentParser(description="Benchmark the embedded log.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the time, for a first impression")
    parser.add_argument("--directory", help="where to write (default: the temporary directory)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-", dir=options.directory) as name:
        directory = Path(name)
        first, raw_rate = append_speed(directory, 64 * 1024 * 1024, rounds=5 if options.quick else 41)
        _show(first)
        _show(latency(directory, 3 if options.quick else 20))
        for line in steady(directory, 6 if options.quick else 60, raw_rate):
            _show(line)
    return 0


def _show(line: Line) -> None:
    verdict = "met" if line.met else "NOT MET"
    print(f"{line.what:<42}  {line.bar:<24}  {line.found:<62}  {verdict}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
