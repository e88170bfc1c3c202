"""What concurrent users of a log do in the conformance suite. Each function runs in a worker and opens the log itself.

A body says who wrote it and which part of which append it is, followed by bytes that follow from that, so that a reader
can tell a whole entry from a torn, mixed or foreign one.
"""

import random
import struct
import time
from typing import NamedTuple

from sharedlog import doorbell
from sharedlog.errors import Fenced, Trimmed
from sharedlog.log import Entry, Header, Kind, LogSpec, Record, SharedLog

_BODY = struct.Struct("<IIHHI")
TAGS = ("d/a/0", "d/a/1", "c/t", "t/t")
EVERYTHING = 1 << 40
PATIENCE_S = 60.0


class Part(NamedTuple):
    """Part `index` of the `count` entries of a writer's `number`-th append."""

    writer: int
    number: int
    index: int
    count: int


def make_body(part: Part, size: int) -> bytes:
    return _BODY.pack(*part, size) + random.Random(hash(part)).randbytes(size)


def parse_body(body: object) -> Part:
    """Raises `AssertionError` for a body that `make_body` did not make."""
    data = bytes(memoryview(body))  # type: ignore[arg-type]
    writer, number, index, count, size = _BODY.unpack_from(data)
    part = Part(writer, number, index, count)
    assert data == make_body(part, size), f"torn or foreign body, claims to be {part}"
    return part


def make_append(writer: int, number: int, rng: random.Random, max_body: int = 3000) -> list[Entry]:
    count = rng.randint(1, 4)
    entries = []
    for index in range(count):
        tags = tuple(rng.sample(TAGS, rng.randint(1, len(TAGS))))
        header = Header(rng.choice(list(Kind)), f"writer-{writer}", instance=writer, sequence=number)
        entries.append(Entry(tags, header, make_body(Part(writer, number, index, count), rng.randint(0, max_body))))
    return entries


def write(spec: LogSpec, writer: int, appends: int, seed: int) -> list[list[int]]:
    """Random appends; returns their LSNs."""
    log = spec.open()
    rng = random.Random(seed)
    try:
        return [log.append(make_append(writer, number, rng)) for number in range(appends)]
    finally:
        log.close()


def follow(spec: LogSpec, tags: tuple[str, ...], stop_key: str, seed: int) -> list[tuple[int, Part]]:
    """Read tags alternately until told to stop and nothing is left: what was seen, in the order of seeing it."""
    log = spec.open()
    rng = random.Random(seed)
    positions = dict.fromkeys(tags, 0)
    seen = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            stopping = log.get(stop_key) > 0
            if not log.wait(positions, 0 if stopping else 20) and stopping:
                return seen
            for tag in tags:
                for record in log.read(tag, positions[tag], max_bytes=rng.choice((1, 5000, EVERYTHING))):
                    assert record.lsn > positions[tag], f"{tag}: LSN {record.lsn} came after {positions[tag]}"
                    positions[tag] = record.lsn
                    seen.append((record.lsn, parse_body(record.body)))
        raise AssertionError("the writers never ended")
    finally:
        log.close()


def write_pairs(spec: LogSpec, writer: int, appends: int) -> None:
    """Appends of three entries, two of them under x and two under y."""
    log = spec.open()
    for number in range(appends):
        header = Header(Kind.DATA, "pairs", instance=writer, sequence=number)
        log.append([Entry(("x",), header, b"1"), Entry(("y",), header, b"2"), Entry(("x", "y"), header, b"3")])
    log.increment("pairs-done")
    log.close()


def look_at_pairs(spec: LogSpec, writers: int) -> int:
    """Whatever is seen under one tag must be there under the other, and twice under each."""
    log = spec.open()
    looks = 0
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        done = log.get("pairs-done") == writers
        for one, other in (("x", "y"), ("y", "x")):
            earlier = _appends(log, one)
            later = _appends(log, other)
            for numbers in (earlier, later):
                assert all(numbers.count(number) == 2 for number in set(numbers)), "half an append was visible"
            assert set(earlier) <= set(later), "an append was visible under one tag and not under another"
            looks += 1
        if done:
            log.close()
            return looks
    raise AssertionError("the writers never ended")


def _appends(log: SharedLog, tag: str) -> list[tuple[int, int]]:
    records = log.read(tag, 0, max_bytes=EVERYTHING)
    return [(record.header.instance, record.header.sequence) for record in records]


def contend(spec: LogSpec, contender: int, rounds: int, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Take a new epoch and append under it, over and over: (epochs taken, epochs won, their LSNs)."""
    log = spec.open()
    rng = random.Random(seed)
    taken, won, lsns = [], [], []
    for _ in range(rounds):
        epoch = log.increment("epoch")
        taken.append(epoch)
        if rng.random() < 0.5:
            time.sleep(rng.random() * 0.001)
        try:
            header = Header(Kind.MARKER, "contender", instance=contender, epoch=epoch)
            lsns += log.append([Entry(("race",), header)], expect={"epoch": epoch})
            won.append(epoch)
        except Fenced as fenced:
            found = fenced.found["epoch"]
        else:
            continue
        assert found > epoch, "fenced by an older epoch"
    log.close()
    return taken, won, lsns


def claim(spec: LogSpec, contender: int, values: int) -> list[int]:
    """All contenders try to be the one who moves a counter on from each value; returns the values won."""
    log = spec.open()
    won = []
    for value in range(values):
        ticket = log.increment(f"ticket/{value}")
        try:
            header = Header(Kind.MARKER, "claim", instance=contender, epoch=value)
            log.append([Entry(("claims",), header)], expect={f"ticket/{value}": 1})
            won += [value] if ticket == 1 else []
        except Fenced:
            pass
    log.close()
    return won


def write_and_trim(spec: LogSpec, appends: int, keep: int, seed: int) -> None:
    log = spec.open()
    rng = random.Random(seed)
    for number in range(appends):
        log.append([Entry((TAGS[0],), Header(Kind.DATA, "w"), make_body(Part(0, number, 0, 1), rng.randint(0, 8000)))])
        if number % 7 == 0:
            log.trim(log.tail() - keep)
    log.increment("stop")
    log.close()


def read_behind_trim(spec: LogSpec, seed: int) -> tuple[int, int]:
    """Follow a trimmed tag, holding on to bodies: (entries read, times that the trim was faster)."""
    log = spec.open()
    rng = random.Random(seed)
    position = trimmed = count = 0
    held = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        stopping = log.get("stop") > 0
        try:
            records: list[Record] | None = log.read(TAGS[0], position, max_bytes=rng.choice((1, 20_000)))
        except Trimmed as error:
            first, records = error.first, None
        if records is None:
            assert first > position + 1, "trimmed, although the next entry is still there"
            position = first - 1
            trimmed += 1
            continue
        if not records and stopping:
            break
        for record in records:
            assert record.lsn > position
            position = record.lsn
            count += 1
            held.append(record)
        if rng.random() < 0.05:
            time.sleep(0.005)  # fall behind
    log.close()
    numbers = [parse_body(record.body).number for record in held]  # after close, and long after their files went
    assert numbers == sorted(set(numbers))
    return count, trimmed


def play(spec: LogSpec, mine: str, other: str, rounds: int) -> int:
    """Ping-pong: answer each entry of the other as soon as `wait` says so. No fallback helps a lost wake-up here."""
    log = spec.open()
    position = 0
    fallback_ms, doorbell.FALLBACK_MS = doorbell.FALLBACK_MS, 1e6
    try:
        for number in range(rounds):
            if mine == "ping":
                log.append([Entry((mine,), Header(Kind.DATA, mine, sequence=number))])
            assert log.wait({other: position, "never": 0}, PATIENCE_S * 1000 / 3), f"{mine} slept through {number}"
            [record] = log.read(other, position, max_bytes=EVERYTHING)
            assert record.header.sequence == number
            position = record.lsn
            if mine == "pong":
                log.append([Entry((mine,), Header(Kind.DATA, mine, sequence=number))])
        return rounds
    finally:
        doorbell.FALLBACK_MS = fallback_ms
        log.close()


def idle(spec: LogSpec, seconds: float) -> float:
    """CPU seconds of a reader that waits for what never comes."""
    log = spec.open()
    log.wait({"never": 0}, 1)
    before = time.process_time()
    assert not log.wait({"never": 0, "ever": 0}, seconds * 1000)
    used = time.process_time() - before
    log.close()
    return used
