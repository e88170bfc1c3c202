"""What every log must do, whichever backend it is. `backends.py` says which there are."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sharedlog.codec import MAX_BODY_BYTES
from sharedlog.errors import Fenced, InvalidEntry, LogFull, Trimmed
from sharedlog.log import Entry, Header, Kind, LogSpec, SharedLog
from tests.sharedlog import workers
from tests.sharedlog.backends import BACKENDS, KIB, Backend
from tests.sharedlog.workers import EVERYTHING

SEED = 20260117
HEADER = Header(Kind.DATA, "tester", 1, 2, 3, 4, -5, 6, 7, True)


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def spec(backend: Backend, tmp_path: Path) -> LogSpec:
    return backend.spec(tmp_path)


@pytest.fixture
def log(spec: LogSpec) -> Iterator[SharedLog]:
    opened = spec.open()
    yield opened
    opened.close()


def entry(*tags: str, body: bytes = b"", kind: Kind = Kind.DATA) -> Entry:
    return Entry(tags, Header(kind, "tester"), body)


def lsns(log: SharedLog, tag: str, after: int = 0, max_bytes: int = EVERYTHING) -> list[int]:
    return [record.lsn for record in log.read(tag, after, max_bytes=max_bytes)]


def _fill(log: SharedLog, entries: list[Entry]) -> int:
    """Append until the log is full; returns the last acknowledged LSN."""
    acknowledged = 0
    for _ in range(100_000):
        try:
            acknowledged = log.append(entries)[-1]
        except LogFull:
            return acknowledged
    raise AssertionError("the log was never full")


class TestOneUser:
    def test_an_empty_log(self, log: SharedLog) -> None:
        assert (log.first(), log.tail()) == (1, 0)
        assert log.read("a", 0, max_bytes=1) == []
        assert log.last("a") is None
        assert log.get("instance/a") == 0
        assert not log.wait({"a": 0}, 0)

    def test_an_entry_comes_back_as_it_was(self, log: SharedLog) -> None:
        assert log.append([Entry(("a",), HEADER, b"body")]) == [1]
        [record] = log.read("a", 0, max_bytes=EVERYTHING)
        assert (record.lsn, record.header, record.body.to_pybytes()) == (1, HEADER, b"body")
        assert isinstance(record.body, pa.Buffer)

    def test_lsns_are_consecutive_and_read_by_tag(self, log: SharedLog) -> None:
        assert log.append([entry("a"), entry("b"), entry("a", "b")]) == [1, 2, 3]
        assert log.append([entry("a")]) == [4]
        assert (lsns(log, "a"), lsns(log, "b")) == ([1, 3, 4], [2, 3])
        assert (lsns(log, "a", after=1), lsns(log, "a", after=4)) == ([3, 4], [])
        assert log.tail() == 4

    def test_tags_are_a_set(self, log: SharedLog) -> None:
        log.append([entry("a", "a")])
        assert lsns(log, "a") == [1]

    def test_one_tag_may_begin_with_another(self, log: SharedLog) -> None:
        log.append([entry("a"), entry("aa"), entry("a/"), entry("é"), entry("a\0")])
        assert [lsns(log, tag) for tag in ("a", "aa", "a/", "é", "a\0")] == [[1], [2], [3], [4], [5]]
        assert [log.last(tag).lsn for tag in ("a", "aa", "a/")] == [1, 2, 3]  # type: ignore[union-attr]

    def test_an_append_of_nothing(self, log: SharedLog) -> None:
        assert log.append([]) == []
        with pytest.raises(Fenced):
            log.append([], expect={"k": 1})

    def test_a_read_is_bounded_and_never_stuck(self, log: SharedLog) -> None:
        log.append([entry("a", body=bytes(1000)) for _ in range(10)])
        assert lsns(log, "a", max_bytes=0) == [1]
        assert 1 < len(lsns(log, "a", max_bytes=4000)) < 5
        assert len(lsns(log, "a")) == 10

    def test_last_by_kind(self, log: SharedLog) -> None:
        log.append([entry("t", kind=Kind.MARKER), entry("t"), entry("u", kind=Kind.MARKER), entry("t")])
        newest, marker = log.last("t"), log.last("t", kind=Kind.MARKER)
        assert newest is not None
        assert marker is not None
        assert (newest.lsn, marker.lsn, log.last("t", kind=Kind.REPORT)) == (4, 1, None)

    def test_counters(self, log: SharedLog) -> None:
        assert [log.increment("k"), log.increment("k"), log.increment("other")] == [1, 2, 1]
        log.trim(log.tail() + 1)
        assert (log.get("k"), log.get("other"), log.get("unknown")) == (2, 1, 0)

    def test_a_conditional_append(self, log: SharedLog) -> None:
        log.increment("k")
        assert log.append([entry("a")], expect={"k": 1, "never": 0}) == [1]
        with pytest.raises(Fenced) as fenced:
            log.append([entry("a"), entry("b")], expect={"k": 0, "never": 0})
        assert (fenced.value.expected, fenced.value.found) == ({"k": 0, "never": 0}, {"k": 1, "never": 0})
        assert (log.tail(), lsns(log, "a"), lsns(log, "b")) == (1, [1], [])
        assert log.append([entry("a")]) == [2]

    def test_trim(self, log: SharedLog) -> None:
        log.append([entry("a"), entry("b"), entry("a")])
        log.trim(3)
        assert (log.first(), log.tail()) == (3, 3)
        assert (lsns(log, "a", after=2), lsns(log, "b", after=2), log.last("b")) == ([3], [], None)
        with pytest.raises(Trimmed) as trimmed:
            log.read("a", 1, max_bytes=1)
        assert (trimmed.value.tag, trimmed.value.after, trimmed.value.first) == ("a", 1, 3)
        log.trim(2)
        assert log.first() == 3, "a trim never moves backwards"
        log.trim(1000)
        assert (log.first(), log.tail(), log.last("a")) == (4, 3, None)
        assert not log.wait({"a": 0}, 0)
        assert log.append([entry("a")]) == [4]
        assert log.wait({"a": 0}, 0)
        assert lsns(log, "a", after=3) == [4]

    def test_trim_frees_room(self, log: SharedLog) -> None:
        for _ in range(200):
            log.append([entry("a", body=bytes(8 * KIB))])
        full = log.size_bytes()
        log.trim(log.tail() + 1)
        assert full > 1600 * KIB
        assert log.size_bytes() < full / 2

    def test_reopening(self, spec: LogSpec, log: SharedLog) -> None:
        log.append([Entry(("a",), HEADER, b"body")])
        log.increment("k")
        log.trim(1)
        log.close()
        again = spec.open()
        [record] = again.read("a", 0, max_bytes=EVERYTHING)
        assert (record.header, record.body.to_pybytes(), again.get("k")) == (HEADER, b"body", 1)
        assert again.append([entry("a")]) == [2]
        again.close()

    def test_bodies_outlive_trim_and_close(self, log: SharedLog) -> None:
        log.append([entry("a", body=b"x" * 50_000)])
        [record] = log.read("a", 0, max_bytes=EVERYTHING)
        log.trim(2)
        for _ in range(10):
            log.append([entry("a", body=b"y" * 50_000)])
        log.close()
        assert record.body.to_pybytes() == b"x" * 50_000


class TestErrors:
    @pytest.mark.parametrize(
        "wrong",
        [
            entry(),
            entry(""),
            entry("a", ""),
            entry("x" * 300),
            Entry("abc", HEADER),  # type: ignore[arg-type]
            Entry(("a",), HEADER._replace(producer="x" * 33)),
            Entry(("a",), HEADER._replace(producer="nul\0")),
            Entry(("a",), HEADER._replace(epoch=-1)),
            Entry(("a",), HEADER._replace(rows=1 << 32)),
            Entry(("a",), HEADER._replace(kind=99)),  # type: ignore[arg-type]
            Entry(("a",), HEADER, bytes(MAX_BODY_BYTES + 1)),
        ],
        ids=lambda wrong: f"{wrong.tags!r:.12}-{len(wrong.body)}",
    )
    def test_invalid_entries_leave_no_trace(self, log: SharedLog, wrong: Entry) -> None:
        with pytest.raises(InvalidEntry):
            log.append([entry("a"), wrong])
        assert (log.tail(), lsns(log, "a")) == (0, [])
        assert log.append([entry("a")]) == [1]

    def test_invalid_names(self, log: SharedLog) -> None:
        for call in (
            lambda: log.read("", 0, max_bytes=1),
            lambda: log.last(""),
            lambda: log.wait({"": 0}, 0),
            lambda: log.get(""),
            lambda: log.increment("x" * 300),
        ):
            with pytest.raises(InvalidEntry):
                call()

    def test_a_full_log_takes_nothing_half_and_recovers(self, backend: Backend, tmp_path: Path) -> None:
        log = backend.small_spec(tmp_path).open()
        body = bytes(20 * KIB)
        acknowledged = _fill(log, [entry("a", body=body), entry("b", body=body)])
        assert acknowledged >= backend.small_bytes // (20 * KIB) // 2
        assert log.tail() == acknowledged
        assert len(lsns(log, "a")) == len(lsns(log, "b")) == acknowledged // 2
        with pytest.raises(LogFull):
            log.append([entry("a", body=body), entry("b", body=body)])
        log.trim(log.tail() + 1)
        assert log.append([entry("a", body=body)]) == [acknowledged + 1]
        log.close()


class TestWaiting:
    def test_wait_sees_what_is_there(self, log: SharedLog) -> None:
        log.append([entry("a"), entry("b")])
        assert log.wait({"a": 0, "b": 2}, 0)
        assert log.wait({"a": 1, "b": 1}, 0)
        assert not log.wait({"a": 1, "b": 2}, 0)
        assert not log.wait({"a": 1, "b": 2}, 5)
        assert not log.wait({}, 1)

    def test_wait_is_woken_by_any_of_its_tags(self, log: SharedLog) -> None:
        for tag in ("b", "c"):
            timer = threading.Timer(0.05, log.append, ([entry("zzz"), entry(tag)],))
            timer.start()
            position = log.tail() + 1
            assert log.wait({"a": 0, tag: position - 1}, 20_000)
            timer.join()

    def test_no_wake_up_is_lost(self, backend: Backend, spec: LogSpec) -> None:
        rounds = 300
        ping = backend.workers().submit(workers.play, spec, "ping", "pong", rounds)
        pong = backend.workers().submit(workers.play, spec, "pong", "ping", rounds)
        assert (ping.result(90), pong.result(90)) == (rounds, rounds)


class TestManyUsers:
    def test_all_readers_see_one_order(self, backend: Backend, spec: LogSpec) -> None:
        pool = backend.workers()
        log = spec.open()
        appends = 60
        readers = [
            pool.submit(workers.follow, spec, tags, "stop", SEED + number)
            for number, tags in enumerate([workers.TAGS, workers.TAGS[::-1]])
        ]
        writers = [pool.submit(workers.write, spec, number, appends, SEED + number) for number in range(2)]
        acknowledged = [writer.result(90) for writer in writers]
        log.increment("stop")
        truth = {
            record.lsn: workers.parse_body(record.body)
            for tag in workers.TAGS
            for record in log.read(tag, 0, max_bytes=EVERYTHING)
        }
        assert sorted(truth) == list(range(1, log.tail() + 1)), f"seed {SEED}: LSNs have gaps"
        for reader in readers:
            seen = reader.result(90)
            assert dict(seen) == truth, f"seed {SEED}: a reader saw another order"
        for writer, appended in enumerate(acknowledged):
            for number, its_lsns in enumerate(appended):
                assert its_lsns == list(range(its_lsns[0], its_lsns[-1] + 1)), "an append is not consecutive"
                parts = [workers.Part(writer, number, index, len(its_lsns)) for index in range(len(its_lsns))]
                assert [truth[lsn] for lsn in its_lsns] == parts, f"seed {SEED}"
        log.close()

    def test_an_append_is_visible_whole_or_not_at_all(self, backend: Backend, spec: LogSpec) -> None:
        pool = backend.workers()
        lookers = [pool.submit(workers.look_at_pairs, spec, 2) for _ in range(2)]
        writers = [pool.submit(workers.write_pairs, spec, number, 60) for number in range(2)]
        for writer in writers:
            writer.result(90)
        assert all(looker.result(90) > 0 for looker in lookers)

    def test_every_value_has_one_holder_and_newer_fences_older(self, backend: Backend, spec: LogSpec) -> None:
        rounds = 50
        racers = [backend.workers().submit(workers.contend, spec, number, rounds, SEED + number) for number in range(4)]
        results = [racer.result(90) for racer in racers]
        taken = sorted(epoch for epochs, _, _ in results for epoch in epochs)
        assert taken == list(range(1, 4 * rounds + 1)), "two contenders got the same epoch"
        log = spec.open()
        records = log.read("race", 0, max_bytes=EVERYTHING) if log.tail() else []
        in_log = [(record.lsn, record.header.epoch) for record in records]
        assert [epoch for _, epoch in in_log] == sorted({epoch for _, epoch in in_log}), (
            "an old epoch wrote after a new"
        )
        winners = sorted((lsn, epoch) for _, won, at in results for lsn, epoch in zip(at, won, strict=True))
        assert winners == in_log, f"seed {SEED}: acknowledged and stored appends differ"
        assert in_log[-1][1] == taken[-1], "the newest epoch was fenced by nobody and must be there"
        log.close()

    def test_no_value_has_two_winners(self, backend: Backend, spec: LogSpec) -> None:
        values = 40
        contenders = [backend.workers().submit(workers.claim, spec, number, values) for number in range(4)]
        won = sorted(value for contender in contenders for value in contender.result(90))
        log = spec.open()
        stored = [record.header.epoch for record in log.read("claims", 0, max_bytes=EVERYTHING)]
        assert len(won) == len(set(won)), "a value has two winners"
        assert sorted(stored) == won
        assert all(log.get(f"ticket/{value}") == 4 for value in range(values))
        log.close()

    def test_trim_while_reading(self, backend: Backend, spec: LogSpec) -> None:
        pool = backend.workers()
        readers = [pool.submit(workers.read_behind_trim, spec, SEED + number) for number in range(2)]
        pool.submit(workers.write_and_trim, spec, 400, 20, SEED).result(90)
        for reader in readers:
            count, _ = reader.result(90)
            assert count > 0, f"seed {SEED}"
