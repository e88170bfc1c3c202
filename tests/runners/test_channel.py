"""Messages between roles: who is answered when a role has two processes, one of them paused."""

import time

from runners.channel import SocketChannel
from sharedlog.memory import MemorySnapshotStore


def heard(channel: SocketChannel, count: int) -> list[tuple[str, bytes]]:
    """What arrives, once there are `count` messages."""
    found: list[tuple[str, bytes]] = []
    deadline = time.monotonic() + 10
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += channel.receive()
        time.sleep(0.001)
    return found


def test_a_successor_is_answered_though_its_predecessor_is_still_there() -> None:
    store = MemorySnapshotStore()
    coordinator, zombie = SocketChannel("coordinator/0", store), SocketChannel("a/0", store, 1)
    successor = SocketChannel("a/0", store, 2)
    try:
        coordinator.receive()  # announces itself
        zombie.send("coordinator/0", b"from the first")
        assert heard(coordinator, 1) == [("a/0", b"from the first")]
        coordinator.send("a/0", b"to the first")
        assert heard(zombie, 1) == [("coordinator/0", b"to the first")]
        successor.send("coordinator/0", b"from the second")
        assert heard(coordinator, 1) == [("a/0", b"from the second")]
        coordinator.send("a/0", b"to the second")
        assert heard(successor, 1) == [("coordinator/0", b"to the second")]
        zombie.send("coordinator/0", b"awake again")
        assert heard(coordinator, 1) == [("a/0", b"awake again")]
        coordinator.send("a/0", b"to the second still")
        assert heard(successor, 1) == [("coordinator/0", b"to the second still")]
        assert zombie.receive() == []
    finally:
        for channel in (coordinator, zombie, successor):
            channel.close()


def test_a_role_that_died_and_came_back_is_found_again() -> None:
    store = MemorySnapshotStore()
    task, first = SocketChannel("a/0", store), SocketChannel("coordinator/0", store)
    first.receive()
    task.send("coordinator/0", b"one")
    assert heard(first, 1) == [("a/0", b"one")]
    first.close()
    second = SocketChannel("coordinator/0", store, 2)
    second.receive()
    deadline = time.monotonic() + 10
    found: list[tuple[str, bytes]] = []
    while not found:  # a message into the broken connection may be lost: that is the contract
        assert time.monotonic() < deadline
        task.send("coordinator/0", b"two")
        time.sleep(0.01)
        found = second.receive()
    assert found[0] == ("a/0", b"two")
    task.close()
    second.close()


def until_heard(sender: SocketChannel, to: str, listener: SocketChannel) -> None:
    """A request that is repeated, as protocols do, gets through."""
    deadline = time.monotonic() + 10
    while not listener.receive():
        assert time.monotonic() < deadline
        sender.send(to, b"again")
        time.sleep(0.01)


def test_a_request_reaches_the_successor_of_a_paused_coordinator() -> None:
    """The paused one's kernel takes all that is sent, and the successor does not speak first."""
    store = MemorySnapshotStore()
    task, paused = SocketChannel("a/0", store), SocketChannel("coordinator/0", store, 1)
    successor = SocketChannel("coordinator/0", store, 2)
    try:
        paused.receive()
        until_heard(task, "coordinator/0", paused)
        successor.receive()  # announces itself and waits for requests
        until_heard(task, "coordinator/0", successor)
    finally:
        for channel in (task, paused, successor):
            channel.close()


def test_a_late_announcement_does_not_hide_the_successor() -> None:
    store = MemorySnapshotStore()
    task, late = SocketChannel("a/0", store), SocketChannel("coordinator/0", store, 1)
    successor = SocketChannel("coordinator/0", store, 2)
    try:
        successor.receive()
        late.receive()
        late.close()  # fenced, and gone
        until_heard(task, "coordinator/0", successor)
    finally:
        task.close()
        successor.close()


def test_who_lives_on_is_found_though_a_newer_instance_died() -> None:
    store = MemorySnapshotStore()
    task, lives, dead = (SocketChannel(*who) for who in (("c/0", store), ("a/0", store, 1), ("a/0", store, 2)))
    try:
        lives.receive()
        dead.receive()
        dead.close()
        until_heard(task, "a/0", lives)
    finally:
        task.close()
        lives.close()
