"""A slow or full disk on purpose, and who holds the write lock."""

import os
import signal
import time
from pathlib import Path

import pytest

from sharedlog.embedded import EmbeddedLog
from sharedlog.errors import LogError, LogFull
from sharedlog.log import Entry, Header, Kind
from sharedlog.stress import Stress
from tests.sharedlog.backends import embedded
from tests.sharedlog.killing import FORKSERVER, hold_write_lock

ENTRY = Entry(("a",), Header(Kind.DATA, "tester"), b"body")


def test_a_full_disk_on_purpose(tmp_path: Path) -> None:
    spec = embedded(tmp_path)
    log = spec.open()
    log.append([ENTRY])
    stress = Stress(spec.path)
    stress.set(full=True)
    for _ in range(3):
        with pytest.raises(LogFull, match="STRESS"):
            log.append([ENTRY])
    assert (log.tail(), len(log.read("a", 0, max_bytes=1000)), log.increment("k")) == (1, 1, 1)
    stress.clear()
    assert log.append([ENTRY]) == [2]
    log.close()


def test_a_slow_disk_on_purpose(tmp_path: Path) -> None:
    spec = embedded(tmp_path)
    log = spec.open()
    Stress(spec.path).set(append_delay_ms=50)
    began = time.monotonic()
    log.append([ENTRY])
    assert time.monotonic() - began >= 0.05
    Stress(spec.path).set(append_delay_ms=20, full=True)
    began = time.monotonic()
    with pytest.raises(LogFull):
        log.append([ENTRY])
    assert time.monotonic() - began >= 0.02
    Stress(spec.path).clear()
    assert log.append([ENTRY]) == [2]
    log.close()


def test_other_processes_suffer_too(tmp_path: Path) -> None:
    spec = embedded(tmp_path)
    log = spec.open()
    pipe, theirs = FORKSERVER.Pipe()
    child = FORKSERVER.Process(target=_append_when_told, args=(spec, theirs), daemon=True)
    child.start()
    answers = []
    for full in (False, True, False):
        Stress(spec.path).set(full=full)
        pipe.send(None)
        assert pipe.poll(30)
        answers.append(pipe.recv())
    assert answers == [[1], "full", [2]]
    pipe.send("stop")
    child.join(30)
    log.close()


def test_wrong_stress(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="open the log once"):
        Stress(tmp_path)
    spec = embedded(tmp_path)
    spec.open().close()
    with pytest.raises(ValueError, match="append_delay_ms"):
        Stress(spec.path).set(append_delay_ms=-1)


def test_write_lock_holder(tmp_path: Path) -> None:
    spec = embedded(tmp_path)
    log = spec.open()
    assert log.write_lock_holder() is None
    with log._hold().core.index.turn():
        assert log.write_lock_holder() == os.getpid()
    assert log.write_lock_holder() is None
    child = FORKSERVER.Process(target=hold_write_lock, args=(spec,), daemon=True)
    child.start()
    assert child.pid is not None
    assert _holder_within(log, child.pid, 30)
    os.kill(child.pid, signal.SIGSTOP)
    assert log.write_lock_holder() == child.pid
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)
    assert log.write_lock_holder() is None
    log.close()


def _holder_within(log: EmbeddedLog, pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if log.get("begun") and log.write_lock_holder() == pid:
            return True
        time.sleep(0.01)
    return False


def _append_when_told(spec, pipe) -> None:  # type: ignore[no-untyped-def]
    log = spec.open()
    while pipe.recv() is None:
        try:
            pipe.send(log.append([ENTRY]))
        except LogFull:
            pipe.send("full")
    log.close()
