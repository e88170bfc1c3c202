"""Progress marking as scripts: what a reader does with entries and markers, one after the other."""

import pytest

from protocols.base import Broken, Context, Job, Plan, ProtocolError
from protocols.progress_marking import MarkedInbox, Marker, ProgressMarking, Range, Snapshot
from sharedlog.log import Entry, Header, Kind
from sharedlog.memory import MemoryLog, MemorySnapshotStore

TAG, OTHER = "d/rows/0", "d/rows/1"


class Script:
    """A log with one substream, its producers p and q, and a reader."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        job = Job(
            sources=(),
            source_tags=(),
            tasks={"p": Plan("p", {}, (TAG, OTHER)), "q": Plan("q", {}, (TAG, OTHER))},
            sink_inputs={TAG: ("p", "q")},
        )
        self.ctx = Context(
            job=job,
            name="reader",
            instance=1,
            log=self.log,
            snapshots=MemorySnapshotStore(),
            uploads=None,  # type: ignore[arg-type]
            channel=None,  # type: ignore[arg-type]
            now_us=lambda: 0,
        )
        self.reader = MarkedInbox(self.ctx, job.sink_inputs)

    def data(self, producer: str, instance: int, sequence: int, *, end: bool = False) -> int:
        header = Header(Kind.DATA, producer, instance, sequence, rows=1, end=end)
        return self.log.append([Entry((TAG,), header, f"{producer}{instance}.{sequence}".encode())])[0]

    def marker(self, producer: str, instance: int, first: int = 0, last: int = 0) -> int:
        ranges = {TAG: Range(first, last)} if first else {}
        marker = Marker({}, ranges, Snapshot(), False)
        return self.log.append([Entry((TAG,), Header(Kind.MARKER, producer, instance), marker.encode())])[0]

    def read(self, entries: int = 1_000) -> list[str]:
        """What the reader delivers of the next so many entries."""
        after = self.reader.inputs()[TAG]
        records = self.log.read(TAG, after, max_bytes=1 << 20)[:entries]
        return [
            delivery.record.body.to_pybytes().decode()
            for group in self.reader.admit({TAG: records})
            for delivery in group
        ]

    def crash(self) -> None:
        """A new reader goes on from where the old one's place says."""
        place = self.reader.save()
        self.reader = MarkedInbox(self.ctx, self.ctx.job.sink_inputs)
        self.reader.load(place)


@pytest.fixture
def script() -> Script:
    return Script()


def test_an_entry_waits_for_its_marker(script: Script) -> None:
    first = script.data("p", 1, 1)
    assert script.read() == []
    script.data("p", 1, 2)
    script.marker("p", 1, first, 2)
    assert script.read() == ["p1.1", "p1.2"]


def test_a_range_may_begin_in_the_markers_own_append(script: Script) -> None:
    header = Header(Kind.DATA, "p", 1, 1, rows=1)
    marker = Marker({}, {TAG: Range(-1, 1)}, Snapshot(), False)
    script.log.append([Entry((TAG,), header, b"p1.1"), Entry((TAG,), Header(Kind.MARKER, "p", 1), marker.encode())])
    assert script.read() == ["p1.1"]


def test_nothing_overtakes_inside_a_substream(script: Script) -> None:
    waiting = script.data("q", 1, 1)
    first = script.data("p", 1, 1)
    script.marker("p", 1, first, 1)
    assert script.read() == []
    script.marker("q", 1, waiting, 1)
    assert script.read() == ["q1.1", "p1.1"]


def test_the_position_is_the_last_decided_head(script: Script) -> None:
    first = script.data("p", 1, 1)
    script.marker("p", 1, first, 1)
    script.data("q", 1, 1)
    script.read()
    assert script.reader.lanes[TAG].position == first


def test_an_orphan_is_dropped_when_its_successor_speaks(script: Script) -> None:
    script.data("p", 1, 1)
    assert script.read() == []
    script.marker("p", 2)
    first = script.data("p", 2, 1)
    script.marker("p", 2, first, 1)
    assert script.read() == ["p2.1"]


def test_a_zombies_entry_inside_its_successors_range_is_dropped(script: Script) -> None:
    script.marker("p", 2)
    first = script.data("p", 2, 1)
    script.data("p", 1, 7)
    script.data("p", 2, 2)
    script.marker("p", 2, first, 2)
    assert script.read() == ["p2.1", "p2.2"]


def test_a_committed_entry_is_delivered_though_its_successor_is_known(script: Script) -> None:
    first = script.data("p", 1, 1)
    script.marker("p", 1, first, 1)
    script.marker("p", 2)
    assert script.read() == ["p1.1"]


def test_an_orphan_after_the_resumed_position_is_dropped(script: Script) -> None:
    """The successor's marker lies before the position, so the place has to remember it."""
    script.marker("p", 2)
    script.read()
    script.crash()
    script.data("p", 1, 1)
    first = script.data("q", 1, 1)
    script.marker("q", 1, first, 1)
    assert script.read() == ["q1.1"]


def test_a_fence_read_ahead_of_the_position_does_no_harm(script: Script) -> None:
    """Behind an undecided head: a new reader meets the entry before the marker that covers it."""
    blocking = script.data("q", 1, 1)
    first = script.data("p", 1, 1)
    script.marker("p", 1, first, 1)
    script.marker("p", 2)
    assert script.read() == []
    script.crash()
    script.marker("q", 1, blocking, 1)
    assert script.read(2) == []
    assert script.read() == ["q1.1", "p1.1"]


def test_a_fence_read_ahead_does_no_harm_to_small_reads(script: Script) -> None:
    """The same, when the lane moves on in small reads: every entry meets only the markers before it and its own."""
    blocking = script.data("q", 1, 1)
    first = script.data("p", 1, 1)
    script.marker("p", 1, first, 1)
    script.marker("p", 2)
    script.marker("q", 1, blocking, 1)
    assert script.read(4) == []
    script.crash()
    assert [entry for _ in range(5) for entry in script.read(1)] == ["q1.1", "p1.1"]


def test_a_gap_inside_a_range_is_a_bug(script: Script) -> None:
    first = script.data("p", 1, 1)
    script.data("p", 1, 3)
    script.marker("p", 1, first, 3)
    with pytest.raises(Broken, match="delivered sequence 3"):
        script.read()


def test_a_range_that_was_not_delivered_whole_is_a_bug(script: Script) -> None:
    first = script.data("p", 1, 1)
    script.marker("p", 1, first, 2)
    assert script.read() == ["p1.1"]
    script.data("p", 1, 2)
    with pytest.raises(Broken, match="was passed"):
        script.read()


def test_a_marker_survives_its_encoding() -> None:
    marker = Marker({TAG: [3, {"p": [1, 2, 3, 0, 1]}]}, {TAG: Range(-2, 5)}, Snapshot("k", 1, 2, 3), True)
    header = Header(Kind.MARKER, "p", 1)
    log = MemoryLog()
    log.append([Entry((TAG,), header, marker.encode())])
    assert Marker.decode(log.read(TAG, 0, max_bytes=1)[0].body) == marker


@pytest.mark.parametrize("options", [{"commit_interval_ms": 0}, {"snapshot_interval_ms": -1}])
def test_bad_intervals_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ProtocolError, match="progress_marking"):
        ProgressMarking(**options)
