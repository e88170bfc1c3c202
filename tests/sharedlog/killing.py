"""Writers to be killed, and the judge of what they leave behind.

A writer appends, trims and increments at random, and after each acknowledged append sends its number and LSNs through a
pipe. The judge then knows what must be in the log: everything acknowledged, and at most one append more per writer,
which may be there whole or not at all.
"""

import multiprocessing
import os
import random
import signal
import struct
import time
from collections import defaultdict
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from sharedlog.check import check
from sharedlog.embedded import EmbeddedLogSpec
from sharedlog.errors import Trimmed
from sharedlog.log import SharedLog
from sharedlog.snapshots import FileSnapshotStore
from tests.sharedlog.workers import EVERYTHING, TAGS, Part, make_append, make_body, parse_body

_ACKNOWLEDGED = struct.Struct("<IQI")  # append number, first LSN, entries
# Children come from a server that has imported everything and never opened a log, so they start within milliseconds.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["sharedlog.embedded", "tests.sharedlog.killing"])


def write_until_killed(spec: EmbeddedLogSpec, writer: int, seed: int, trims: bool, pipe: Connection) -> None:
    rng = random.Random(seed)
    log = spec.open()
    number = 0
    while True:
        lsns = log.append(make_append(writer, number, rng, max_body=20_000 if trims else 300))
        pipe.send_bytes(_ACKNOWLEDGED.pack(number, lsns[0], len(lsns)))
        number += 1
        if not trims:
            time.sleep(0.003)  # The judge reads everything each time; at full speed it would never catch up.
        chance = rng.random()
        if chance < 0.05 and trims:
            log.trim(log.tail() - rng.randint(0, 200))
        elif chance < 0.1:
            log.increment("k")
        elif chance < 0.12:
            log.close()
            log = spec.open()


@dataclass
class Writer:
    """One life of a writer, seen from outside."""

    spec: EmbeddedLogSpec
    number: int
    seed: int
    trims: bool = True
    acknowledged: dict[int, range] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pipe, theirs = FORKSERVER.Pipe(duplex=False)
        arguments = (self.spec, self.number, self.seed, self.trims, theirs)
        self.process = FORKSERVER.Process(target=write_until_killed, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def listen(self) -> None:
        """Take in what was acknowledged so far."""
        try:
            while self.pipe.poll():
                number, lsn, count = _ACKNOWLEDGED.unpack(self.pipe.recv_bytes())
                self.acknowledged[number] = range(lsn, lsn + count)
        except EOFError:
            pass

    def kill(self) -> None:
        assert self.process.pid is not None
        assert self.process.is_alive(), f"writer {self.number} (seed {self.seed}) died by itself"
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
        assert self.process.exitcode == -signal.SIGKILL
        self.listen()
        self.pipe.close()


def judge(log: SharedLog, spec: EmbeddedLogSpec, writers: list[Writer]) -> None:
    """Raises `AssertionError` unless the log holds what it must. Writers may go on meanwhile."""
    for writer in writers:
        if not writer.pipe.closed:
            writer.listen()
    report = check(spec.path)
    assert report.problems == (), report.problems
    first, found = _read_all(log)
    by_append: dict[tuple[int, int], list[tuple[int, Part]]] = defaultdict(list)
    for lsn, part in sorted(found.items()):
        by_append[part.writer, part.number].append((lsn, part))
    for (writer_number, number), parts in by_append.items():
        lsn, part = parts[0]
        start = lsn - part.index
        expected = [(start + index, part._replace(index=index)) for index in range(part.count)]
        assert parts == [one for one in expected if one[0] >= first], f"append {writer_number}/{number} is not whole"
    for writer in writers:
        for number, lsns in writer.acknowledged.items():
            for index, lsn in enumerate(lsns):
                expected_part = Part(writer.number, number, index, len(lsns))
                assert lsn < first or found.get(lsn) == expected_part, f"acknowledged {expected_part} is not at {lsn}"
        if writer.pipe.closed:  # Nothing more comes from it.
            extra = {number for owner, number in by_append if owner == writer.number} - set(writer.acknowledged)
            assert len(extra) <= 1, f"writer {writer.number} left {len(extra)} appends that it did not acknowledge"


def _read_all(log: SharedLog) -> tuple[int, dict[int, Part]]:
    """All entries from one first LSN on, although others trim: (that LSN, entries)."""
    while True:
        first, tail = log.first(), log.tail()
        try:
            records = [record for tag in TAGS for record in log.read(tag, first - 1, max_bytes=EVERYTHING)]
        except Trimmed:
            continue
        # Tags are read one after the other; what was there before the first look is there under all of them.
        return first, {record.lsn: parse_body(record.body) for record in records if record.lsn <= tail}


def hold_write_lock(spec: EmbeddedLogSpec) -> None:
    log = spec.open()
    log.increment("begun")
    with log._hold().core.index.write() as txn:
        txn.put(b"\x02torn", b"12345678")
        time.sleep(60)


def hold_read(spec: EmbeddedLogSpec, number: int) -> None:
    log = spec.open()
    with log._hold().core.index.read():
        Path(spec.path, f"reading-{number}").touch()
        time.sleep(60)


def put_until_killed(directory: Path, seed: int) -> None:
    store = FileSnapshotStore(directory, sync=False)
    rng = random.Random(seed)
    number = 0
    while True:
        number += 1
        store.put(f"task/{rng.randrange(3)}", [make_body(Part(0, number, 0, 1), rng.randint(0, 300_000))])
