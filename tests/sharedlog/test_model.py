"""Random sequences of operations do the same to the embedded log as to the memory log."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sharedlog.check import check
from sharedlog.errors import LogError
from sharedlog.log import Entry, Header, Kind, Record, SharedLog
from sharedlog.memory import MemoryLog
from tests.sharedlog.backends import embedded

TAGS = st.sampled_from(["a", "ab", "d/x/0", "é", ""])
KEYS = st.sampled_from(["k", "l"])
LSNS = st.integers(0, 40)
BODIES = st.one_of(st.binary(max_size=20), st.integers(1000, 40_000).map(bytes))
HEADERS = st.builds(
    Header,
    kind=st.sampled_from(list(Kind)),
    producer=st.sampled_from(["p", "täsk", ""]),
    instance=st.integers(0, 2**32 - 1),
    sequence=st.integers(0, 2**64 - 1),
    watermark=st.integers(-(2**63), 2**63 - 1),
    end=st.booleans(),
)
ENTRIES = st.builds(Entry, tags=st.lists(TAGS, max_size=3).map(tuple), header=HEADERS, body=BODIES)


def outcome(call: Callable[[], object]) -> object:
    """What a call returned or raised, in a form that can be compared between backends."""
    try:
        return comparable(call())
    except LogError as error:
        return type(error), {key: value for key, value in vars(error).items() if not key.startswith("_")}


def comparable(value: object) -> object:
    if isinstance(value, Record):
        return value.lsn, value.header, value.body.to_pybytes()
    if isinstance(value, list):
        return [comparable(one) for one in value]
    return value


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="tidemark-model-"))
        self.spec = embedded(self.directory)
        self.model: SharedLog = MemoryLog()
        self.log: SharedLog = self.spec.open()

    def same(self, call: Callable[[SharedLog], object]) -> None:
        expected, found = outcome(lambda: call(self.model)), outcome(lambda: call(self.log))
        assert found == expected, f"embedded: {found!r:.500}, memory: {expected!r:.500}"

    @rule(entries=st.lists(ENTRIES, max_size=4))
    def append(self, entries: list[Entry]) -> None:
        self.same(lambda log: log.append(entries))

    @rule(entries=st.lists(ENTRIES, max_size=2), expect=st.dictionaries(KEYS, st.integers(0, 3)))
    def append_if(self, entries: list[Entry], expect: dict[str, int]) -> None:
        self.same(lambda log: log.append(entries, expect=expect))

    @rule(tag=TAGS, after=LSNS, max_bytes=st.integers(0, 100_000))
    def read(self, tag: str, after: int, max_bytes: int) -> None:
        self.same(lambda log: log.read(tag, after, max_bytes=max_bytes))

    @rule(tag=TAGS, kind=st.none() | st.sampled_from(list(Kind)))
    def last(self, tag: str, kind: Kind | None) -> None:
        self.same(lambda log: log.last(tag, kind=kind))

    @rule(positions=st.dictionaries(TAGS, LSNS))
    def wait(self, positions: dict[str, int]) -> None:
        self.same(lambda log: log.wait(positions, 0))

    @rule(before=LSNS)
    def trim(self, before: int) -> None:
        self.same(lambda log: log.trim(before))

    @rule(key=KEYS)
    def increment(self, key: str) -> None:
        self.same(lambda log: log.increment(key))

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = self.spec.open()

    @invariant()
    def bounds_and_counters_agree(self) -> None:
        self.same(lambda log: (log.first(), log.tail(), log.get("k"), log.get("l")))

    def teardown(self) -> None:
        report = check(self.spec.path)
        self.log.close()
        shutil.rmtree(self.directory)
        assert report.problems == ()
        assert report.leftovers == ()


# Derandomised: every run tries the same sequences, and a failure prints the shortest one.
LogMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestEmbeddedIsMemory = LogMachine.TestCase


def test_the_comparison_can_fail() -> None:
    """A log that forgets one tag of an entry is found out."""

    class Forgetful(MemoryLog):
        def append(self, entries, *, expect=None):  # type: ignore[no-untyped-def]
            return super().append([one._replace(tags=one.tags[:1]) for one in entries], expect=expect)

    entry = Entry(("a", "b"), Header(Kind.DATA, "p"))
    logs = [MemoryLog(), Forgetful()]
    for log in logs:
        log.append([entry])
    assert outcome(lambda: logs[0].read("b", 0, max_bytes=9)) != outcome(lambda: logs[1].read("b", 0, max_bytes=9))
