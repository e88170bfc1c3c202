"""SIGKILL at random instants: the log opens, nothing is torn, and everything acknowledged is there."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from sharedlog.embedded import EmbeddedLogSpec
from sharedlog.log import Entry, Header, Kind
from sharedlog.snapshots import FileSnapshotStore
from tests.sharedlog.backends import embedded
from tests.sharedlog.killing import FORKSERVER, Writer, hold_read, hold_write_lock, judge, put_until_killed
from tests.sharedlog.workers import Part, make_body, parse_body

WRITERS = 3


@pytest.mark.parametrize("durability", ["process", "group", "always"])
@pytest.mark.parametrize(
    ("kills", "trims", "seed"),
    [
        (8, True, 7),
        pytest.param(120, True, 11, marks=pytest.mark.slow),
        pytest.param(40, False, 13, marks=pytest.mark.slow),
    ],
)
def test_killed_writers(tmp_path: Path, durability: str, kills: int, trims: bool, seed: int) -> None:
    """With trims, old acknowledged appends are gone on purpose; without, every one since the start must be there."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    spec = embedded(tmp_path, durability=durability)
    writers: list[Writer] = []
    alive: list[Writer] = []
    killed = acknowledged = 0
    # On a busy machine writers are killed before they wrote anything; then more of them are.
    while killed < kills or (acknowledged <= kills and killed < 10 * kills):
        while len(alive) < WRITERS:
            writers.append(Writer(spec, len(writers), rng.randrange(1 << 30), trims))
            alive.append(writers[-1])
        time.sleep(rng.random() ** 2 * 0.15)  # often while they open the log, too
        for victim in rng.sample(alive, rng.choice((1, 1, 1, WRITERS))):
            victim.kill()
            alive.remove(victim)
            killed += 1
        log = spec.open()
        judge(log, spec, writers)
        log.append([Entry(("after",), Header(Kind.REPORT, "judge"), make_body(Part(9999, killed, 0, 1), 100))])
        log.close()
        acknowledged = sum(len(writer.acknowledged) for writer in writers)
    for writer in alive:
        writer.kill()
    assert acknowledged > kills, f"seed {seed}: the writers hardly wrote"


def test_the_judge_finds_a_lost_append(tmp_path: Path) -> None:
    spec = embedded(tmp_path)
    log, writer = _written_and_killed(spec)
    judge(log, spec, [writer])
    writer.acknowledged[max(writer.acknowledged) + 2] = range(log.tail() + 5, log.tail() + 6)
    with pytest.raises(AssertionError, match="is not at"):
        judge(log, spec, [writer])
    log.close()


def test_the_judge_finds_half_an_append(tmp_path: Path) -> None:
    spec = embedded(tmp_path)
    log, writer = _written_and_killed(spec)
    half = Entry(("d/a/0",), Header(Kind.DATA, "liar"), make_body(Part(77, 0, 0, 2), 10))
    log.append([half])
    with pytest.raises(AssertionError, match="not whole"):
        judge(log, spec, [writer])
    log.close()


def _written_and_killed(spec: EmbeddedLogSpec):  # type: ignore[no-untyped-def]
    writer = Writer(spec, 0, 1)
    log = spec.open()
    assert log.wait({"d/a/0": 0}, 30_000)
    while not writer.acknowledged:
        writer.listen()
    writer.kill()
    return log, writer


def test_a_writer_killed_inside_its_transaction_stops_nobody(tmp_path: Path) -> None:
    spec = embedded(tmp_path)
    log = spec.open()
    holder = FORKSERVER.Process(target=hold_write_lock, args=(spec,), daemon=True)
    holder.start()
    while log.get("begun") == 0:
        time.sleep(0.001)
    time.sleep(0.05)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert log.append([Entry(("a",), Header(Kind.DATA, "next"))]) == [1]
    assert log.get("torn") == 0
    log.close()


def test_dead_readers_are_cleaned_up(tmp_path: Path) -> None:
    spec = embedded(tmp_path)
    log = spec.open()
    readers = [FORKSERVER.Process(target=hold_read, args=(spec, number), daemon=True) for number in range(3)]
    for reader in readers:
        reader.start()
    while not all(Path(spec.path, f"reading-{number}").exists() for number in range(3)):
        time.sleep(0.001)
    for reader in readers:
        reader.kill()
        reader.join()
    env = log._hold().core.index.env
    assert _other_readers(env.readers()) == 3
    log.trim(1)
    assert _other_readers(env.readers()) == 0
    log.close()


def _other_readers(table: str) -> int:
    return sum(
        line.split()[0] not in ("pid", str(os.getpid())) for line in table.splitlines() if line.strip()[:1].isdigit()
    )


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_a_snapshot_is_whole_or_absent(tmp_path: Path, kills: int) -> None:
    seed = 5
    print(f"seed {seed}")
    rng = random.Random(seed)
    whole = 0
    for kill in range(kills):
        writer = FORKSERVER.Process(target=put_until_killed, args=(tmp_path / "s", seed + kill), daemon=True)
        writer.start()
        time.sleep(0.01 + rng.random() * 0.1)
        writer.kill()
        writer.join()
        store = FileSnapshotStore(tmp_path / "s", sync=False)
        assert not list((tmp_path / "s").glob(".new-*")), "a dead process's file was left behind"
        for key in store.list("task/"):
            body = store.get(key)
            assert body is not None
            parse_body(body)
            whole += 1
    assert whole > 0, f"seed {seed}: no snapshot was ever written"
