"""Ctrl-C in the middle of a run: workers gone, the log closed, what was measured kept and marked incomplete."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

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
