"""Messages between tasks and coordinators over TCP: non-blocking, and lossy as the contract allows.

Every role that uses its channel listens on a port of its own and announces it in the snapshot store. A broken
connection loses what was under way; protocols repeat their requests. A sender that speaks over a new connection may be
a new process, while the old one is still there, paused: then its address is looked up again before it is answered.
"""

import contextlib
import os
import selectors
import socket
import struct

from protocols.base import Channel
from sharedlog.log import SnapshotStore

_FRAME = struct.Struct("<II")  # bytes of the sender's name, bytes of the message
_MAX_FRAME = 1 << 24


def _address_key(role: str) -> str:
    return f"address/{role}"


class SocketChannel(Channel):
    """Opened by its first use, so that protocols without messages pay nothing."""

    def __init__(self, name: str, directory: SnapshotStore) -> None:
        self._name = name.encode()
        self._directory = directory
        self._selector: selectors.DefaultSelector | None = None
        self._listener: socket.socket | None = None
        self._incoming: dict[socket.socket, bytearray] = {}
        self._speaker: dict[socket.socket, str] = {}  # who was heard over it
        self._outgoing: dict[str, socket.socket] = {}

    def fileno(self) -> int | None:
        """Becomes readable when a message may have arrived; None before the first use."""
        return self._selector.fileno() if isinstance(self._selector, selectors.EpollSelector) else None

    def send(self, to: str, message: bytes) -> None:
        self._open()
        frame = _FRAME.pack(len(self._name), len(message)) + self._name + message
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
            self._directory.put(_address_key(self._name.decode()), [f"{host}:{port}".encode()])
        return self._selector

    def _connect(self, to: str) -> socket.socket | None:
        announced = self._directory.get(_address_key(to))
        if announced is None:
            return None
        host, port = announced.to_pybytes().decode().rsplit(":", 1)
        try:
            connection = socket.create_connection((host, int(port)), timeout=1.0)
        except OSError:
            return None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._outgoing[to] = connection
        return connection

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
