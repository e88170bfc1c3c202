"""Messages between tasks and coordinators over TCP: non-blocking, and lossy as the contract allows.

Every role that uses its channel listens on a port of its own and announces it, under its instance number, in the
snapshot store. A broken connection loses what was under way; protocols repeat their requests. An old process may
still be there, paused, and its kernel goes on accepting what is sent to it: so a sender looks now and then whether a
newer instance was announced, and at once when the other side speaks over a new connection.
"""

import contextlib
import os
import selectors
import socket
import struct
import time

from protocols.base import Channel
from sharedlog.log import SnapshotStore

_FRAME = struct.Struct("<II")  # bytes of the sender's name, bytes of the message
_MAX_FRAME = 1 << 24


_LOOK_AGAIN_S = 0.1  # for a newer instance of whom one talks to


def _addresses(role: str) -> str:
    """What the keys of a role's announcements begin with; the instance number follows, so that they sort."""
    return f"address/{role}/"


class SocketChannel(Channel):
    """Opened by its first use, so that protocols without messages pay nothing."""

    def __init__(self, name: str, directory: SnapshotStore, instance: int = 1) -> None:
        self._name = name.encode()
        self._key = f"{_addresses(name)}{instance:010d}"
        self._directory = directory
        self._selector: selectors.DefaultSelector | None = None
        self._listener: socket.socket | None = None
        self._incoming: dict[socket.socket, bytearray] = {}
        self._speaker: dict[socket.socket, str] = {}  # who was heard over it
        self._outgoing: dict[str, socket.socket] = {}
        self._reached: dict[str, str] = {}  # the announcement behind each of them
        self._looked_s: dict[str, float] = {}

    def fileno(self) -> int | None:
        """Becomes readable when a message may have arrived; None before the first use."""
        return self._selector.fileno() if isinstance(self._selector, selectors.EpollSelector) else None

    def send(self, to: str, message: bytes) -> None:
        self._open()
        frame = _FRAME.pack(len(self._name), len(message)) + self._name + message
        self._leave_predecessor(to)
        for _ in range(2):  # a stale connection shows itself by an error; the second try is a fresh one
            connection = self._outgoing.get(to) or self._connect(to)
            if connection is None:
                return
            try:
                connection.sendall(frame)
                return
            except OSError:
                self._hang_up(to)

    def receive(self) -> list[tuple[str, bytes]]:
        selector = self._open()
        arrived: list[tuple[str, bytes]] = []
        for key, _ in selector.select(0):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, socket.socket):
                arrived += self._read(key.fileobj)
        return arrived

    def close(self) -> None:
        for connection in (*self._incoming, *self._outgoing.values()):
            connection.close()
        if self._listener is not None and self._selector is not None:
            self._selector.close()
            self._listener.close()

    def _open(self) -> selectors.DefaultSelector:
        if self._selector is None:
            host = os.environ.get("SPARK_LOCAL_IP") or socket.gethostbyname(socket.gethostname())
            self._listener = socket.create_server((host, 0))
            self._listener.setblocking(False)
            self._selector = selectors.DefaultSelector()
            self._selector.register(self._listener, selectors.EVENT_READ)
            port = self._listener.getsockname()[1]
            self._directory.put(self._key, [f"{host}:{port}".encode()])
        return self._selector

    def _leave_predecessor(self, to: str) -> None:
        """Hang up on a process that has a successor by now."""
        now_s = time.monotonic()
        if to in self._outgoing and now_s - self._looked_s[to] >= _LOOK_AGAIN_S:
            self._looked_s[to] = now_s
            if self._directory.list(_addresses(to))[-1:] != [self._reached[to]]:
                self._hang_up(to)

    def _connect(self, to: str) -> socket.socket | None:
        """To the newest instance that answers: a newer one may have been fenced and be gone."""
        self._looked_s[to] = time.monotonic()
        for key in reversed(self._directory.list(_addresses(to))):
            announced = self._directory.get(key)
            if announced is None:
                continue
            host, port = announced.to_pybytes().decode().rsplit(":", 1)
            try:
                connection = socket.create_connection((host, int(port)), timeout=1.0)
            except OSError:
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._outgoing[to], self._reached[to] = connection, key
            return connection
        return None

    def _accept(self) -> None:
        assert self._listener is not None
        assert self._selector is not None
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._incoming[connection] = bytearray()
            self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> list[tuple[str, bytes]]:
        pending = self._incoming[connection]
        try:
            received = connection.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            received = b""
        pending += received
        arrived = []
        while len(pending) >= _FRAME.size:
            name_size, size = _FRAME.unpack_from(pending)
            end = _FRAME.size + name_size + size
            if end > _MAX_FRAME:
                received = b""
                break
            if len(pending) < end:
                break
            name = bytes(pending[_FRAME.size : _FRAME.size + name_size]).decode()
            arrived.append((name, bytes(pending[_FRAME.size + name_size : end])))
            if self._speaker.get(connection) != name:
                self._speaker[connection] = name
                self._hang_up(name)
            del pending[:end]
        if not received:
            assert self._selector is not None
            self._selector.unregister(connection)
            del self._incoming[connection]
            self._speaker.pop(connection, None)
            connection.close()
        return arrived

    def _hang_up(self, name: str) -> None:
        known = self._outgoing.pop(name, None)
        if known is not None:
            known.close()
