"""What the embedded log promises beyond the conformance suite: damage, limits, forks, power cuts, idle cost."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sharedlog import check as check_module
from sharedlog.check import check
from sharedlog.embedded import EmbeddedLog, EmbeddedLogSpec
from sharedlog.errors import Corrupted, LogError, LogFull, UnknownFormat
from sharedlog.index import HEAD_KEY, head_of, rows
from sharedlog.log import Entry, Header, Kind, SharedLog
from tests.sharedlog import workers
from tests.sharedlog.backends import KIB, embedded, processes
from tests.sharedlog.workers import EVERYTHING

HEADER = Header(Kind.DATA, "tester")
ROOT = Path(__file__).parents[2]


def script(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python text in a fresh process."""
    return subprocess.run(
        [sys.executable, "-c", text, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def filled(tmp_path: Path, entries: int = 5) -> tuple[EmbeddedLogSpec, EmbeddedLog]:
    spec = embedded(tmp_path)
    log = spec.open()
    for number in range(entries):
        log.append([Entry(("a", "b"), HEADER, bytes([number]) * 1000)])
    return spec, log


def segment_file(spec: EmbeddedLogSpec) -> Path:
    [path] = Path(spec.path, "segments").iterdir()
    return path


class TestDamage:
    @pytest.mark.parametrize("offset", [0, 5, 9, 17, 30, 60, 110, 150, 192, 700, 1191])
    def test_any_flipped_byte_of_an_entry_is_found(self, tmp_path: Path, offset: int) -> None:
        spec, log = filled(tmp_path)
        damaged = _locations(log)[2]
        with open(segment_file(spec), "r+b") as file:
            file.seek(damaged.offset + min(offset, damaged.length - 1))
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 0x40]))
        with pytest.raises(Corrupted, match=rf"LSN 3 in .*{segment_file(spec).name}"):
            log.read("a", 0, max_bytes=EVERYTHING)
        assert [record.lsn for record in log.read("a", 0, max_bytes=2000)] == [1]
        assert [record.lsn for record in log.read("a", 3, max_bytes=EVERYTHING)] == [4, 5]
        assert check(spec.path).problems
        log.close()

    def test_a_truncated_or_missing_segment_is_found(self, tmp_path: Path) -> None:
        spec, log = filled(tmp_path)
        log.close()
        path = segment_file(spec)
        os.truncate(path, 3000)
        log = spec.open()
        with pytest.raises(Corrupted, match="file ends"):
            log.read("a", 0, max_bytes=EVERYTHING)
        log.close()
        path.unlink()
        log = spec.open()
        with pytest.raises(Corrupted, match=path.name):
            log.read("a", 0, max_bytes=EVERYTHING)
        with pytest.raises(Corrupted, match=path.name):
            log.last("a")
        assert check(spec.path).problems
        log.close()

    def test_unknown_formats(self, tmp_path: Path) -> None:
        spec, log = filled(tmp_path)
        log.close()
        file = Path(spec.path, "FORMAT")
        for content in ('{"format": 99, "durability": "process"}', "rubbish", '{"format": 1}'):
            file.write_text(content)
            with pytest.raises(UnknownFormat, match="FORMAT"):
                spec.open()
        file.unlink()
        with pytest.raises(UnknownFormat, match="FORMAT"):
            spec.open()

    def test_another_durability_is_refused(self, tmp_path: Path) -> None:
        _, log = filled(tmp_path)
        log.close()
        with pytest.raises(LogError, match="durability=process"):
            embedded(tmp_path, durability="always").open()


class TestCheck:
    """The checker itself is shown wrong answers."""

    def test_a_sound_log(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        spec, log = filled(tmp_path)
        log.close()
        assert check_module.main([spec.path]) == 0
        assert capsys.readouterr().out.endswith("sound\n")
        report = check(spec.path)
        assert (report.entries, report.rows, report.problems, report.leftovers) == (5, 10, (), ())

    def test_it_finds_a_missing_row(self, tmp_path: Path) -> None:
        self._find(tmp_path, "not indexed under its tag 'a'", lambda txn, keys: txn.delete(keys[0]))

    def test_it_finds_a_row_of_nothing(self, tmp_path: Path) -> None:
        self._find(
            tmp_path,
            "in the index and in no segment",
            lambda txn, keys: txn.put(keys[0][:-1] + b"\x63", txn.get(keys[0])),
        )

    def test_it_finds_a_row_that_points_elsewhere(self, tmp_path: Path) -> None:
        self._find(tmp_path, "is indexed at", lambda txn, keys: txn.put(keys[0], txn.get(keys[1])))

    def test_it_finds_a_wrong_head(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        spec = self._find(tmp_path, "LSN 6 is in no segment", _move_head)
        assert check_module.main([spec.path]) == 1
        assert "damaged" in capsys.readouterr().out

    def test_it_tells_of_what_is_no_log(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert check_module.main([str(tmp_path)]) == 1
        assert "FORMAT" in capsys.readouterr().err

    def _find(self, tmp_path: Path, problem: str, damage) -> EmbeddedLogSpec:  # type: ignore[no-untyped-def]
        spec, log = filled(tmp_path)
        with log._hold().core.index.write() as txn:
            damage(txn, [key for key in txn.cursor().iternext(values=False) if key.startswith(b"\x03")])
        assert any(problem in one for one in check(spec.path).problems), check(spec.path).problems
        log.close()
        return spec


def _move_head(txn, keys) -> None:  # type: ignore[no-untyped-def]
    txn.put(HEAD_KEY, head_of(txn)._replace(next_lsn=7).pack())


def _locations(log: EmbeddedLog):  # type: ignore[no-untyped-def]
    with log._hold().core.index.read() as txn:
        return [location for tag, _, location in rows(txn) if tag == "a"]


FULL = """
import resource, sys
from sharedlog.embedded import EmbeddedLogSpec
from sharedlog.errors import LogFull
from sharedlog.log import Entry, Header, Kind
path, limit, body_bytes, map_bytes = sys.argv[1], *map(int, sys.argv[2:5])
log = EmbeddedLogSpec(path=path, segment_bytes=65536, map_bytes=map_bytes).open()
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
tags = tuple(f"tag/{number}/" + "x" * 200 for number in range(20))
def append():
    return log.append([Entry(tags, Header(Kind.DATA, "w"), bytes(body_bytes)) for _ in range(3)])
for round in range(3):
    acknowledged = log.tail()
    try:
        while True:
            acknowledged = append()[-1]
    except LogFull as full:
        print(round, acknowledged, full)
    assert log.tail() == acknowledged, "half an append is visible"
    for tag in tags:
        count = sum(1 for _ in log.read(tag, log.first() - 1, max_bytes=1 << 40))
        assert count == acknowledged + 1 - log.first(), (tag, count, acknowledged)
    log.trim(log.tail() + 1)
    assert append(), "usable again"
log.close()
from sharedlog.check import check
assert check(path).problems == (), check(path).problems
print("well")
"""


class TestFull:
    def test_file_size_limit_hits_the_index(self, tmp_path: Path) -> None:
        done = script(FULL, str(tmp_path / "log"), str(400 * KIB), "10", str(64 << 20))
        assert done.stdout.endswith("well\n"), done
        assert "data.mdb" in done.stdout

    def test_file_size_limit_hits_a_segment(self, tmp_path: Path) -> None:
        spec, log = filled(tmp_path)
        text = """
import resource, sys
from sharedlog.embedded import EmbeddedLogSpec
from sharedlog.errors import LogFull
from sharedlog.log import Entry, Header, Kind
log = EmbeddedLogSpec(path=sys.argv[1], segment_bytes=65536).open()
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
for _ in range(3):
    try:
        log.append([Entry(("a",), Header(Kind.DATA, "w"), bytes(500_000))])
        print("no error")
    except LogFull as full:
        print(full)
print(log.append([Entry(("a",), Header(Kind.DATA, "w"), bytes(1000))]))
"""
        done = script(text, spec.path)
        assert done.stdout.count(".segment") == 3, done
        assert done.stdout.endswith("[6]\n")
        report = check(spec.path)
        assert (report.problems, report.leftovers) == ((), ())
        assert [record.lsn for record in log.read("a", 4, max_bytes=EVERYTHING)] == [5, 6]
        log.close()

    def test_map_full(self, tmp_path: Path) -> None:
        done = script(FULL, str(tmp_path / "log"), "0", "10", str(1 << 20))
        assert done.stdout.endswith("well\n"), done
        assert "map is full" in done.stdout

    def test_disk_full(self, tmp_path: Path) -> None:
        """On a file system of 3 MB in a namespace of its own, where the machine allows that."""
        mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
        command = 'mount -t tmpfs -o size=3m none "$0" && exec "$@"'
        if shutil.which("unshare") is None or subprocess.run([*mount, command, str(tmp_path), "true"]).returncode:
            pytest.skip("no user namespaces here")
        for body_bytes in ("10", "20000"):
            arguments = [sys.executable, "-c", FULL, str(tmp_path / "log"), "0", body_bytes, str(64 << 20)]
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                [*mount, command, str(tmp_path), *arguments],
                env=environment, capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.stdout.endswith("well\n"), done

    def test_repeated_failures_leave_nothing(self, tmp_path: Path) -> None:
        spec = embedded(tmp_path, max_bytes=128 * KIB)
        log = spec.open()
        log.append([Entry(("a",), HEADER, bytes(60 * KIB))])
        for _ in range(50):
            with pytest.raises(LogFull):
                log.append([Entry(("a",), HEADER, bytes(100 * KIB))])
        report = check(spec.path)
        assert (report.problems, report.leftovers) == ((), ())
        assert report.segments < 60
        log.trim(2)
        assert check(spec.path).segments == 0
        log.close()


class TestProcess:
    def test_a_second_open_shares_the_first(self, tmp_path: Path) -> None:
        spec = embedded(tmp_path)
        one, two = spec.open(), spec.open()
        one.append([Entry(("a",), HEADER)])
        one.close()
        one.close()
        assert two.tail() == 1
        with pytest.raises(LogError, match="after close"):
            one.tail()
        with pytest.raises(LogError, match="same"):
            embedded(tmp_path, max_bytes=KIB * KIB).open()
        two.close()

    def test_a_log_is_not_used_across_a_fork(self, tmp_path: Path) -> None:
        text = """
import os, sys
from sharedlog.embedded import EmbeddedLogSpec
from sharedlog.errors import LogError
from sharedlog.log import Entry, Header, Kind
spec = EmbeddedLogSpec(path=sys.argv[1])
log = spec.open()
entry = Entry(("a",), Header(Kind.DATA, "w"))
log.append([entry])
child = os.fork()
if child == 0:
    try:
        log.append([entry])
    except LogError as error:
        print(error, flush=True)
    log.close()
    own = spec.open()
    print("child", own.append([entry]), flush=True)
    own.close()
    os._exit(0)
os.waitpid(child, 0)
print("parent", log.append([entry]), log.tail())
log.close()
"""
        done = script(text, str(tmp_path / "log"))
        assert "call open() in the process that uses it" in done.stdout, done
        assert "child [2]\nparent [3] 3\n" in done.stdout, done

    def test_many_openers_at_once(self, tmp_path: Path) -> None:
        spec = embedded(tmp_path)
        writers = [processes().submit(workers.write, spec, number, 3, number) for number in range(8)]
        assert sum(len(writer.result(60)) for writer in writers) == 24
        assert check(spec.path).problems == ()

    def test_idle_readers_cost_nearly_nothing(self, tmp_path: Path) -> None:
        spec = embedded(tmp_path)
        seconds = 2.0
        # Two rounds of the four workers; what counts is the sum.
        readers = [processes().submit(workers.idle, spec, seconds) for _ in range(8)]
        share = sum(reader.result(60) for reader in readers) / seconds
        print(f"8 idle readers use {share:.2%} of one core")
        assert share < 0.05

    @pytest.mark.parametrize(
        "wrong",
        [
            {"path": ""},
            {"durability": "maybe"},
            {"group_ms": 0},
            {"segment_bytes": 1},
            {"max_bytes": 1},
            {"map_bytes": 4097},
        ],
    )
    def test_wrong_settings(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ValueError, match="log "):
            EmbeddedLogSpec(**({"path": "x"} | wrong))  # type: ignore[arg-type]


class TestPowerCut:
    """A changed boot id stands for a power cut, and a damaged live index for what was not yet on disk."""

    def cut(self, spec: EmbeddedLogSpec) -> None:
        path = Path(spec.path)
        (path / "BOOT").write_text("another boot\n")
        (path / "index" / "data.mdb").write_bytes(b"rubbish" * 10_000)

    def test_group_returns_to_its_recovery_point(self, tmp_path: Path) -> None:
        spec = embedded(tmp_path, durability="group")
        text = """
import os, sys, time, pickle
spec = pickle.loads(bytes.fromhex(sys.argv[1]))
from sharedlog.log import Entry, Header, Kind
log = spec.open()
for number in range(50):
    log.append([Entry(("a",), Header(Kind.DATA, "w"), bytes(5000))])
    log.increment("k")
    if number % 10 == 0:
        log.trim(log.tail() - 20)
log._hold().syncer.checkpoint()
print(log.tail(), log.first(), log.get("k"), flush=True)
log._hold().syncer._stop.set()  # no more recovery points: what follows is lost
for number in range(5):
    log._hold().core.append([Entry(("a",), Header(Kind.DATA, "w"), bytes(50_000))], {})
os._exit(0)
"""
        done = script(text, pickle.dumps(spec).hex())
        assert done.stdout == "50 21 50\n", done
        self.cut(spec)
        log = spec.open()
        assert (log.tail(), log.first(), log.get("k")) == (50, 21, 50)
        report = check(spec.path)
        assert (report.problems, report.leftovers, report.entries) == ((), (), 30)
        assert log.append([Entry(("a",), HEADER, bytes(100_000))]) == [51]
        assert len(log.read("a", 20, max_bytes=EVERYTHING)) == 31
        log.close()

    def test_group_syncs_by_itself(self, tmp_path: Path) -> None:
        spec = embedded(tmp_path, durability="group")
        log = spec.open()
        log.append([Entry(("a",), HEADER)])
        deadline = 400
        while not Path(spec.path, "checkpoint.mdb").exists() and deadline:
            deadline -= 1
            log.wait({"never": 0}, 25)
        assert deadline, "no recovery point after ten seconds"
        log.close()

    def test_without_a_recovery_point_the_log_is_empty(self, tmp_path: Path) -> None:
        spec = embedded(tmp_path, durability="group")
        log: SharedLog = spec.open()
        log.append([Entry(("a",), HEADER)])
        log.close()
        Path(spec.path, "checkpoint.mdb").unlink()
        self.cut(spec)
        log = spec.open()
        assert (log.first(), log.tail()) == (1, 0)
        log.append([Entry(("a",), HEADER)])
        assert check(spec.path).problems == ()
        log.close()
