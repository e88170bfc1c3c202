"""What a person sees while a run goes on: one live line on a terminal, a line every few seconds elsewhere."""

import sys
import time
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True, kw_only=True)
class Status:
    elapsed_s: float
    duration_s: float
    offered: int
    processed: int
    rows: int
    lag_rows: int
    visible_p50_us: float | None
    visible_p99_us: float | None
    commits: int
    restarts: int


class Display:
    """Shows a status now and then; never more than four times a second, and quietly when nobody watches."""

    def __init__(self, label: str, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._label = label
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self._interval_s = 0.25 if self._live else 5.0
        self._quiet = quiet
        self._shown_s = 0.0 if self._live else time.monotonic()
        self._before: Status | None = None

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self._clear()
            print(text, file=self._stream, flush=True)

    def update(self, status: Status) -> None:
        now = time.monotonic()
        if self._quiet or now - self._shown_s < self._interval_s:
            return
        line = self._line(status)
        self._shown_s = now
        self._before = status
        if self._live:
            columns = _columns(self._stream)
            print(f"\r\x1b[K{line[: columns - 1]}", end="", file=self._stream, flush=True)
        else:
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        self._clear()

    def _line(self, status: Status) -> str:
        before = self._before
        span = status.elapsed_s - before.elapsed_s if before else status.elapsed_s
        offered = (status.offered - (before.offered if before else 0)) / span if span > 0 else 0.0
        processed = (status.processed - (before.processed if before else 0)) / span if span > 0 else 0.0
        latency = (
            f"p50/p99 {status.visible_p50_us / 1000:.0f}/{status.visible_p99_us / 1000:.0f} ms"
            if status.visible_p50_us is not None and status.visible_p99_us is not None
            else "p50/p99 –"
        )
        return (
            f"{self._label} {status.elapsed_s:4.0f}/{status.duration_s:.0f} s"
            f" · {offered / 1000:.0f}k→{processed / 1000:.0f}k ev/s · lag {status.lag_rows}"
            f" · {latency} · commits {status.commits} · restarts {status.restarts}"
        )

    def _clear(self) -> None:
        if self._live and not self._quiet:
            print("\r\x1b[K", end="", file=self._stream, flush=True)


def _columns(stream: TextIO) -> int:
    import os

    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80
