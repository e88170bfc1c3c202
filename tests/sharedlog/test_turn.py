"""The writers' queue, and that LMDB's own mutexes are met in turn only."""

import logging
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from sharedlog.log import Entry, Header, Kind
from sharedlog.turn import Turn
from tests.sharedlog.backends import embedded
from tests.sharedlog.killing import FORKSERVER

ENTRY = Entry(("a",), Header(Kind.DATA, "tester"), b"body")


def hold_turn(file: Path, pipe) -> None:  # type: ignore[no-untyped-def]
    turn = Turn(file)
    turn.take()
    pipe.send("mine")
    time.sleep(60)


def test_a_long_wait_names_the_holder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    turn = Turn(tmp_path / "turn", patience_s=0.1)
    turn.take()
    turn.leave()
    pipe, theirs = FORKSERVER.Pipe()
    child = FORKSERVER.Process(target=hold_turn, args=(tmp_path / "turn", theirs), daemon=True)
    child.start()
    assert child.pid is not None
    assert pipe.poll(30)
    os.kill(child.pid, signal.SIGSTOP)
    waiter = threading.Thread(target=turn.take)
    with caplog.at_level(logging.WARNING, logger="sharedlog.turn"):
        waiter.start()
        deadline = time.monotonic() + 30
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.02)
    assert f"held by process {child.pid} (T (stopped))" in "".join(caplog.messages)
    os.kill(child.pid, signal.SIGKILL)
    waiter.join(30)
    assert not waiter.is_alive(), "the kernel did not pass the turn on"
    assert turn.holder() == os.getpid()
    turn.leave()
    assert turn.holder() is None
    turn.close()
    child.join(30)


class Watched(Turn):
    """Counts how often the turn was taken."""

    taken = 0

    def take(self) -> None:
        super().take()
        self.taken += 1


def test_a_read_takes_the_turn_only_for_a_new_slot(tmp_path: Path) -> None:
    """A slot is free again once nobody refers to the transaction that used it; until then the next read needs one."""
    log = embedded(tmp_path).open()
    index = log._hold().core.index
    index.queue.close()
    queue = index.queue = Watched(tmp_path / "log" / "index" / "turn")
    log.append([ENTRY])
    assert queue.taken == 2  # a segment, and the commit
    for _ in range(5):
        log.read("a", 0, max_bytes=100)
        log.last("a")
    assert (queue.taken, _slots(log)) == (2, 1)
    with index.read() as kept:
        assert kept.id()
    with index.read() as other:
        assert other.id()
    assert (queue.taken, _slots(log)) == (3, 2)
    del kept, other
    log.tail()
    log.tail()
    assert (queue.taken, _slots(log)) == (3, 1)
    log.close()


def _slots(log) -> int:  # type: ignore[no-untyped-def]
    """Rows of LMDB's table of readers, below a line of titles."""
    readers: str = log._hold().core.index.env.readers()
    return len(readers.strip().splitlines()) - 1
