"""Ctrl-C in the middle of a run: workers gone, the log closed, what was measured kept and marked incomplete."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from nexmark.fingerprint import Fingerprint
from nexmark.generator import Generator
from nexmark.parameters import Q1, Q4
from nexmark.queries import build
from runners.spark import interruptible
from runners.verify import expected

ROOT = Path(__file__).resolve().parents[2]


def test_an_interrupted_run_leaves_results_and_no_processes(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    arguments = ["query=q5", "rate=5000", "duration_s=60", f"hydra.run.dir={directory}"]
    running = subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        _await_clock(directory / "events.jsonl", running)
        time.sleep(2)
        family = psutil.Process(running.pid).children(recursive=True)
        assert len(family) > 5, "a JVM, a daemon and the roles"
        running.send_signal(signal.SIGINT)
        output, _ = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130, output
    _, alive = psutil.wait_procs(family, timeout=15)
    assert alive == []
    summary = json.loads((directory / "run.json").read_text())
    assert summary["complete"] is False
    assert summary["invalid_reasons"] == ["interrupted"]
    assert summary["log_entries"]["input"] > 0
    assert (directory / "tasks.parquet").exists()
    assert not (directory / "log").exists()


def _await_clock(events: Path, running: "subprocess.Popen[bytes]") -> None:
    """Until the first event is due."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert running.poll() is None, running.communicate()
        if events.exists() and '"clock"' in events.read_text():
            return
        time.sleep(0.1)
    raise AssertionError("the run did not start within 120 s")


def test_ctrl_c_while_spark_is_asked_is_an_interrupt(spark: Any) -> None:
    """PySpark's clean-up fails after it, and its error would hide the interrupt: a sweep went on with the next cell."""
    query, generator = Q4(), Generator(total=3_000_000)
    answer = build(query, 1).answer
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            expected(spark, query, generator, answer)
    finally:
        timer.join()
    assert isinstance(expected(spark, Q1(), Generator(total=100), build(Q1(), 1).answer), Fingerprint)  # still at work


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(ZeroDivisionError), interruptible():
        raise ZeroDivisionError
