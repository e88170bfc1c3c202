"""What a simulated role holds instead of the world: every call is an operation of its process, and a place to die."""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from protocols.base import Channel, Uploads
from runners.simworld import Process, World
from sharedlog.log import Entry, Kind, Record, SharedLog, SnapshotStore


def _found(records: Sequence[Record]) -> str:
    return f"lsn {records[0].lsn}…{records[-1].lsn}" if records else "nothing"


def _told(entries: Sequence[Entry], lsns: Sequence[int]) -> str:
    return " ".join(
        f"{lsn}:{entry.header.kind.name}{'/END' if entry.header.end else ''}[{','.join(entry.tags)}]"
        for lsn, entry in zip(lsns, entries, strict=True)
    )


class SimulatedLog(SharedLog):
    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._log = process.world.log

    def append(self, entries: Sequence[Entry], *, expect: Mapping[str, int] | None = None) -> list[int]:
        entries = list(entries)
        expect = dict(expect) if expect else None

        def land() -> list[int]:
            lsns = self._log.append(entries, expect=expect)
            self._world.appended(entries)
            return lsns

        return self._process.operate("append", land, lambda lsns: _told(entries, lsns))

    def read(self, tag: str, after: int, *, max_bytes: int) -> list[Record]:
        return self._process.operate(
            "read",
            lambda: self._log.read(tag, after, max_bytes=max_bytes),
            lambda records: f"{tag} after {after}: {_found(records)}",
        )

    def wait(self, positions: Mapping[str, int], timeout_ms: float, *, wake_fd: int | None = None) -> bool:
        raise NotImplementedError("a step machine never waits; whoever drives it does")

    def last(self, tag: str, *, kind: Kind | None = None) -> Record | None:
        return self._process.operate(
            "last", lambda: self._log.last(tag, kind=kind), lambda found: f"{tag}: {_found([found] if found else [])}"
        )

    def first(self) -> int:
        return self._process.operate("first", self._log.first, str)

    def tail(self) -> int:
        return self._process.operate("tail", self._log.tail, str)

    def trim(self, before: int) -> None:
        return self._process.operate("trim", lambda: self._log.trim(before), lambda _: f"before {before}")

    def get(self, key: str) -> int:
        return self._process.operate("get", lambda: self._log.get(key), lambda value: f"{key} = {value}")

    def increment(self, key: str) -> int:
        return self._process.operate("increment", lambda: self._log.increment(key), lambda value: f"{key} = {value}")

    def size_bytes(self) -> int:
        return self._log.size_bytes()

    def close(self) -> None:
        return


class SimulatedSnapshots(SnapshotStore):
    def __init__(self, process: Process) -> None:
        self._process = process
        self._store = process.world.snapshots

    def put(self, key: str, parts: Sequence[pa.Buffer | bytes]) -> None:
        return self._process.operate("snapshot.put", lambda: self._store.put(key, parts), lambda _: key)

    def get(self, key: str) -> pa.Buffer | None:
        def shown(found: pa.Buffer | None) -> str:
            return f"{key}: {'absent' if found is None else f'{found.size} bytes'}"

        return self._process.operate("snapshot.get", lambda: self._store.get(key), shown)

    def delete(self, key: str) -> None:
        return self._process.operate("snapshot.delete", lambda: self._store.delete(key), lambda _: key)

    def list(self, prefix: str = "") -> list[str]:
        return self._process.operate("snapshot.list", lambda: self._store.list(prefix), str)


class SimulatedUploads(Uploads):
    """An upload lands some time after its start, whole or not at all; also that of a process which died meanwhile.

    One that is reported to have failed may have landed all the same: the answer was lost, not the work.
    """

    def __init__(self, process: Process) -> None:
        self._process = process

    def start(self, key: str, parts: Sequence[pa.Buffer | bytes]) -> None:
        process, world = self._process, self._process.world
        parts = list(parts)

        def land() -> None:
            if key not in process.uploads:
                return
            whole = process.uploads.pop(key)
            if whole or world.random.random() < 0.3:
                world.snapshots.put(key, parts)
            world.note(process, "uploaded" if whole else "upload failed", key)
            process.uploaded.append((key, whole))

        def begin() -> None:
            process.uploads[key] = True
            world.at(world.now_us + world.random.choice((200, 2_000, 8_000, 25_000)), land)

        process.operate("upload.start", begin, lambda _: key)

    def poll(self) -> list[tuple[str, bool]]:
        process = self._process
        if not process.uploaded:
            return []

        def take() -> list[tuple[str, bool]]:
            done, process.uploaded = process.uploaded, []
            return done

        return process.operate("upload.poll", take, str)


class SimulatedChannel(Channel):
    """Messages travel one by one: they overtake each other, and get lost, doubled or held up as the network has it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def send(self, to: str, message: bytes) -> None:
        process, world = self._process, self._process.world

        def post() -> None:
            network, random = world.network, world.random
            for _ in range(2 if random.random() < network.repeat else 1):
                if random.random() < network.lose:
                    continue
                late_us = random.randrange(10_000, 60_000) if random.random() < network.late else 0
                delay_us = random.randrange(100, 1_500) + late_us
                world.at(world.now_us + delay_us, _delivery(world, process.name, to, message))

        process.operate("send", post, lambda _: f"to {to}: {message[:120]!r}")

    def receive(self) -> list[tuple[str, bytes]]:
        process = self._process
        if not process.mailbox:
            return []

        def take() -> list[tuple[str, bytes]]:
            arrived, process.mailbox = process.mailbox, []
            return arrived

        return process.operate("receive", take, str)


def _delivery(world: World, sender: str, to: str, message: bytes) -> Callable[[], None]:
    """A name mostly leads to its newest instance, now and then to one that should be dead."""

    def arrive() -> None:
        living = world.living(to)
        if not living:
            return
        receiver = living[-1] if world.random.random() < 0.8 else world.random.choice(living)
        receiver.mailbox.append((sender, message))
        if receiver.waiting:
            world.wake(receiver)

    return arrive
