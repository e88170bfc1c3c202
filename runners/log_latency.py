"""How long does an append take to reach a reader in another process? The experiment of the paper's Table 2.

Open loop: appends are due at fixed times whatever happened before, and latency counts from the moment an append begins;
appends that begin late are reported beside it. Writer and reader are processes of their own; both stamp with the host's
monotonic clock, which they share.
"""

import argparse
import math
import multiprocessing
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sharedlog.embedded import EmbeddedLogSpec
from sharedlog.log import Entry, Header, Kind, LogSpec

ENTRY_BYTES = 16 * 1024
RATES = (10, 50, 100, 1000)
_TAG = "d/latency/0"
_STAMP = struct.Struct("<qq")  # when the append began, and when it was due; ns
_PATIENCE_S = 60.0
_WARM_UP = 20  # appends that are not counted: first touches of files and maps

# Impeller, Table 2: p50 and p99 in µs by appends/s; 16 KiB, three replicas, other machines.
PUBLISHED: dict[str, dict[int, tuple[int, int]]] = {
    "Boki": {10: (2714, 3711), 50: (2604, 3832), 100: (2546, 3596)},
    "Kafka": {10: (2074, 4448), 50: (1596, 3463), 100: (1449, 2942)},
}


@dataclass(frozen=True, kw_only=True)
class LatencyRow:
    """One rate. Latencies run from the begin of the append to the entry being read elsewhere."""

    rate: int
    appends: int
    latency_us_p50: float
    latency_us_p99: float
    latency_us_max: float
    begin_delay_us_p99: float


def measure(
    spec: LogSpec,
    rates: Sequence[int] = RATES,
    seconds_each: float = 5.0,
    progress: Callable[[float], None] | None = None,
) -> list[LatencyRow]:
    """One row per rate. `progress` is told the fraction done, about ten times a second.

    Raises `TimeoutError` when writer or reader do not finish, and `RuntimeError` when one of them fails.
    """
    if not rates or min(rates) < 1 or seconds_each <= 0:
        raise ValueError(f"cannot measure rates {list(rates)} for {seconds_each} s each; use positive numbers")
    counts = [max(1, math.ceil(rate * seconds_each)) for rate in rates]
    total_s = sum(count / rate for count, rate in zip(counts, rates, strict=True))
    done_s = 0.0
    rows = []
    for rate, count in zip(rates, counts, strict=True):

        def tell(elapsed_s: float, done_s: float = done_s, limit_s: float = count / rate) -> None:
            if progress is not None:
                progress((done_s + min(elapsed_s, limit_s)) / total_s)

        rows.append(_measure_rate(spec, rate, count, tell))
        done_s += count / rate
        tell(0.0, done_s)
    return rows


def format_table(rows: Sequence[LatencyRow]) -> str:
    """The rows beside the published figures, ready to print."""
    systems = list(PUBLISHED)
    lines = [
        f"append → read in another process, {ENTRY_BYTES // 1024} KiB, p50 / p99 in µs",
        f"{'appends/s':>10}  {'this log':>15}"
        + "".join(f"  {name + ' (paper)':>15}" for name in systems)
        + f"  {'n':>6}",
    ]
    for row in rows:
        cells = [f"{row.latency_us_p50:.0f} / {row.latency_us_p99:.0f}"]
        for name in systems:
            published = PUBLISHED[name].get(row.rate)
            cells.append(f"{published[0]} / {published[1]}" if published else "–")
        lines.append(f"{row.rate:>10}" + "".join(f"  {cell:>15}" for cell in cells) + f"  {row.appends:>6}")
    worst_us = max(row.begin_delay_us_p99 for row in rows)
    lines.append(f"Appends began up to {worst_us:.0f} µs (p99) after they were due.")
    lines.append(
        "The paper's logs replicate to three machines over a network; this one is one host's. Compare the shape."
    )
    return "\n".join(lines)


def _measure_rate(spec: LogSpec, rate: int, count: int, tell: Callable[[float], None]) -> LatencyRow:
    """Reader first, so that it waits already when the first append comes."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe(duplex=False)
    log = spec.open()
    after = log.tail()
    expected = count + _WARM_UP
    reader = context.Process(target=_read, args=(spec, after, expected, theirs), daemon=True)
    writer = context.Process(target=_write, args=(spec, rate, expected, f"latency/{after}"), daemon=True)
    try:
        reader.start()
        writer.start()
        theirs.close()
        if not pipe.poll(_PATIENCE_S):
            raise TimeoutError(f"the reader was not ready after {_PATIENCE_S} s")
        pipe.recv_bytes()
        log.increment(f"latency/{after}")  # the starting signal
        began = time.monotonic()
        while not pipe.poll(0.1):
            tell(time.monotonic() - began)
            if time.monotonic() - began > expected / rate + _PATIENCE_S:
                raise TimeoutError(
                    f"{count} appends at {rate}/s were not read after {expected / rate + _PATIENCE_S:.0f} s"
                )
        stamps = np.frombuffer(pipe.recv_bytes(), dtype=np.int64).reshape(-1, 3)[_WARM_UP:]
    except EOFError:
        raise RuntimeError(f"writer or reader failed at {rate} appends/s; see its message above") from None
    finally:
        for process in (reader, writer):
            if process.pid is not None:
                process.join(1)
                process.kill()
        log.close()
    began_ns, due_ns, read_ns = stamps.T
    latency_us = (read_ns - began_ns) / 1000
    return LatencyRow(
        rate=rate,
        appends=len(stamps),
        latency_us_p50=float(np.percentile(latency_us, 50)),
        latency_us_p99=float(np.percentile(latency_us, 99)),
        latency_us_max=float(latency_us.max()),
        begin_delay_us_p99=float(np.percentile((began_ns - due_ns) / 1000, 99)),
    )


def _write(spec: LogSpec, rate: int, count: int, signal: str) -> None:
    log = spec.open()
    filling = np.random.default_rng(1).bytes(ENTRY_BYTES - _STAMP.size)
    header = Header(Kind.DATA, "latency")
    deadline = time.monotonic() + _PATIENCE_S
    while log.get(signal) == 0:
        if time.monotonic() > deadline:
            raise TimeoutError("no starting signal came; is the driver gone?")
        time.sleep(0.005)
    start_ns = time.monotonic_ns() + 10_000_000
    for number in range(count):
        due_ns = start_ns + number * 1_000_000_000 // rate
        left_ns = due_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)
        log.append([Entry((_TAG,), header, _STAMP.pack(time.monotonic_ns(), due_ns) + filling)])
    log.close()


def _read(spec: LogSpec, after: int, count: int, pipe: Connection) -> None:
    log = spec.open()
    seen: list[tuple[int, int, int]] = []
    pipe.send_bytes(b"ready")
    while len(seen) < count:
        if not log.wait({_TAG: after}, _PATIENCE_S * 1000):
            raise TimeoutError(f"nothing came for {_PATIENCE_S} s after {len(seen)} entries")
        for record in log.read(_TAG, after, max_bytes=1 << 20):
            after = record.lsn
            seen.append((*_STAMP.unpack_from(record.body), time.monotonic_ns()))
    pipe.send_bytes(np.array(seen, dtype=np.int64).tobytes())
    log.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each rate (default: %(default)s)")
    parser.add_argument("--durability", default="process", choices=("process", "group", "always"))
    options = parser.parse_args(arguments)
    columns = (TextColumn("measuring the log"), BarColumn(), TimeRemainingColumn())
    with tempfile.TemporaryDirectory(prefix="tidemark-log-") as directory, Progress(*columns, transient=True) as bar:
        spec = EmbeddedLogSpec(path=str(Path(directory, "log")), durability=options.durability)
        task = bar.add_task("", total=1.0)
        rows = measure(spec, RATES, options.seconds, lambda done: bar.update(task, completed=done))
    print(format_table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
