"""Recorded streams: the same answers as the stream that was recorded, and bad rows named before anything starts."""

import json
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from nexmark.__main__ import main
from nexmark.errors import ParameterError, ReplayError
from nexmark.events import bids, numbers
from nexmark.export import Format, export
from nexmark.generator import Generator
from nexmark.oracle import ANSWERS, answer, answer_table, fingerprint_of
from nexmark.parameters import QUERIES
from nexmark.replay import Replay
from nexmark.workload import END_OF_TIME

TOTAL = 20_000


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(seed=7, total=TOTAL)


@pytest.fixture(scope="module", params=["jsonl", "parquet"])
def recorded(request: pytest.FixtureRequest, generator: Generator, tmp_path_factory: pytest.TempPathFactory) -> Replay:
    return record(generator, tmp_path_factory.mktemp("recorded"), request.param)


def record(generator: Generator, directory: Path, format: Format) -> Replay:
    export(generator, directory / "data", format)
    return Replay(directory=str(directory / "data"), cache=str(directory))


def test_a_recording_is_the_stream_that_was_recorded(recorded: Replay, generator: Generator) -> None:
    replay = pickle.loads(pickle.dumps(recorded))
    positions = np.arange(TOTAL, dtype=np.int64)
    assert (replay.total, replay.base_time_us) == (TOTAL, generator.base_time_us)
    assert replay.timestamps_are_intended
    assert replay.events(0, TOTAL).equals(generator.events(0, TOTAL))
    assert replay.events(16_380, 16_399).equals(generator.events(16_380, 16_399))
    assert replay.events(7, 7).equals(generator.events(7, 7))
    assert np.array_equal(replay.offset_us(positions), generator.offset_us(positions))
    for stop in (0, 1, 4_711, TOTAL - 1, TOTAL):
        assert replay.watermark_after(stop) == generator.watermark_after(stop)
    for offset in (0, 1, 99, 100, 101, 1_000_000, 10**9):
        assert replay.count_before(offset) == generator.count_before(offset)


def assert_same_answers(spark: Any, replay: Replay, generator: Generator, names: Iterable[str] = ANSWERS) -> None:
    for name in names:
        contract = ANSWERS[name]
        params = QUERIES[name]()
        if contract.key:
            expected = answer_table(spark, name, params, generator)
            assert answer_table(spark, name, params, replay).equals(expected), name
        else:
            frames = [answer(spark, name, params, workload) for workload in (replay, generator)]
            assert fingerprint_of(frames[0], contract.value) == fingerprint_of(frames[1], contract.value), name


def test_the_oracle_answers_alike(spark: Any, recorded: Replay, generator: Generator) -> None:
    """Three kinds of answers here, as the events were compared one by one above; all eight in the long test below."""
    assert_same_answers(spark, recorded, generator, ("q1", "q3", "q6"))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_the_oracle_answers_alike_on_the_exported_example(spark: Any, format: Format, tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ["--seed", "7", "--events", "200000", "--rate", "10000", "--format", format]
    assert main(["export", *options, str(data)]) == 0
    assert_same_answers(spark, Replay(directory=str(data), cache=str(tmp_path)), Generator(seed=7, total=200_000))


def test_disorder_is_measured(tmp_path: Path) -> None:
    shuffled = Generator(seed=7, total=5_000, out_of_order_group=50, late_fraction=0.1, late_max_us=100_000)
    replay = record(shuffled, tmp_path, "parquet")
    due = replay.offset_us(np.arange(5_000, dtype=np.int64))
    assert not replay.timestamps_are_intended
    assert 0 < replay.disorder_us <= 100_000
    assert (np.diff(due) >= 0).all()
    assert sorted(numbers(replay.events(0, 5_000)).tolist()) == list(range(5_000))
    times = np.concatenate([times_by_position(replay), [END_OF_TIME]])
    assert all(replay.watermark_after(stop) == times[stop:].min() for stop in range(0, 5_001, 97))


def times_by_position(replay: Replay) -> Any:
    return np.array([first_time(replay.events(position, position + 1)) for position in range(replay.total)])


def first_time(batch: pa.RecordBatch) -> int:
    return int(next(row["ts"] for column in batch.columns for row in column[0].as_py()))


def test_speeds(recorded: Replay) -> None:
    fixed = Replay(directory=recorded.directory, cache=recorded.cache, speed="fixed", events_per_s=1_000)
    assert fixed.offset_us(np.array([0, 1, 500])).tolist() == [0, 1_000, 500_000]
    assert (fixed.count_before(500_000), fixed.count_before(10**12)) == (500, TOTAL)
    unlimited = Replay(directory=recorded.directory, cache=recorded.cache, speed="unlimited")
    assert unlimited.offset_us(np.array([0, TOTAL - 1])).tolist() == [0, 0]
    assert (unlimited.count_before(0), unlimited.count_before(1)) == (0, TOTAL)
    assert not fixed.timestamps_are_intended
    assert not unlimited.timestamps_are_intended
    with pytest.raises(ParameterError, match="speed must be"):
        Replay(directory=recorded.directory, speed="slow")  # type: ignore[arg-type]


PERSON = {"ts": 5, "id": 1, "name": "A", "email": "", "credit_card": "", "city": "", "state": "", "extra": ""}
AUCTION = {
    **dict.fromkeys(("ts", "id", "initial_bid", "reserve", "expires", "seller", "category"), 7),
    **dict.fromkeys(("item_name", "description", "extra"), ""),
}
BID = {**dict.fromkeys(("ts", "auction", "bidder", "price"), 6), **dict.fromkeys(("channel", "url", "extra"), "")}


def write(directory: Path, **changed: list[Any]) -> str:
    lines: dict[str, list[Any]] = {
        "persons": [PERSON],
        "auctions": [AUCTION],
        "bids": [BID, {**BID, "ts": 9}],
        **changed,
    }
    directory.mkdir(exist_ok=True)
    for kind, rows in lines.items():
        text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
        (directory / f"{kind}.jsonl").write_text(text)
    return str(directory)


def test_files_without_numbers_are_numbered_in_the_order_of_emission(tmp_path: Path) -> None:
    replay = Replay(directory=write(tmp_path / "data"), cache=str(tmp_path))
    times = [(first_time(replay.events(n, n + 1)), numbers(replay.events(n, n + 1)).tolist()) for n in range(4)]
    assert times == [(5, [0]), (6, [1]), (7, [2]), (9, [3])]
    assert (replay.base_time_us, replay.count_before(2), replay.disorder_us) == (5, 2, 0)


def test_several_files_of_a_kind_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    data = Path(write(tmp_path / "data", bids=[]))
    for index, ts in ((1, 30), (0, 20)):
        (data / f"bids-{index}.jsonl").write_text(json.dumps({**BID, "ts": ts}) + "\n")
    replay = Replay(directory=str(data), cache=str(tmp_path))
    assert bids(replay.events(0, 4))["ts"].to_pylist() == [20, 30]


def test_an_empty_recording_is_a_stream(tmp_path: Path) -> None:
    replay = Replay(directory=write(tmp_path / "data", persons=[], auctions=[], bids=[]), cache=str(tmp_path))
    assert (replay.total, replay.count_before(10), replay.watermark_after(0)) == (0, 0, END_OF_TIME)
    assert len(numbers(replay.events(0, 0))) == 0


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    assert Replay(directory=write(tmp_path / "data"), cache=str(tmp_path)).total == 4
    assert Replay(directory=write(tmp_path / "data", bids=[BID]), cache=str(tmp_path)).total == 3


def without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bids": [BID, BID, without(BID, "price")]}, "bids.jsonl row 3 field 'price': is missing"),
        ({"bids": [BID, {**BID, "price": None}]}, "bids.jsonl row 2 field 'price': is missing"),
        ({"bids": [BID, {**BID, "price": "12"}]}, "bids.jsonl row 2 field 'price': needs a whole number"),
        ({"bids": [{**BID, "price": 1.5}]}, "bids.jsonl row 1 field 'price': needs a whole number"),
        ({"bids": [{**BID, "price": 2**63}]}, "bids.jsonl row 1 field 'price': needs a whole number"),
        ({"bids": [{**BID, "url": 5}]}, "bids.jsonl row 1 field 'url': needs a string"),
        ({"bids": [BID, {**BID, "ts": -1}]}, "bids.jsonl row 2 field 'ts': must not be negative, got -1"),
        ({"auctions": [{**AUCTION, "expires": -5}]}, "auctions.jsonl row 1 field 'expires': must not be negative"),
        ({"auctions": [AUCTION, AUCTION]}, "auctions.jsonl row 2 field 'id': must be unique, and 7 occurred before"),
        ({"bids": [{**BID, "number": 4}, BID]}, "bids.jsonl row 2 field 'number': is missing"),
        ({"bids": [BID, {**BID, "number": 4}]}, "bids.jsonl row 2 field 'number': is given here but not"),
        ({"bids": [{**BID, "number": 4}]}, "persons.jsonl row 1 field 'number': is missing, and bids.jsonl has it"),
        ({"persons": [PERSON, "{nonsense"]}, "persons.jsonl row 2 is not JSON"),
        ({"persons": [PERSON, "[1]"]}, "persons.jsonl row 2 must be a JSON object"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, changed: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(ReplayError) as error:
        Replay(directory=write(tmp_path / "data", **changed), cache=str(tmp_path))
    assert message in str(error.value)
    assert str(tmp_path / "data") in str(error.value)
    assert not list(tmp_path.glob("tidemark-replay-*")), "nothing is left behind"


def test_numbers_are_unique_over_all_kinds(tmp_path: Path) -> None:
    rows = {"persons": [{**PERSON, "number": 1}], "auctions": [{**AUCTION, "number": 2}]}
    with pytest.raises(ReplayError, match=r"bids\.jsonl row 2 field 'number': must be unique, and 1 occurred before"):
        Replay(directory=write(tmp_path / "data", **rows, bids=[{**BID, "number": 3}, {**BID, "number": 1}]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["seller"]), "row 1 field 'seller': is missing, here and in every row"),
        (
            lambda table: replace(table, "category", pa.array([1.5] * 6)),
            "field 'category': needs int64, and the column",
        ),
        (lambda table: replace(table, "seller", pa.array([1, 2, None, 4, 5, 6])), "row 3 field 'seller': is missing"),
        (lambda table: replace(table, "ts", pa.array([1, 2, 3, -4, 5, 6])), "row 4 field 'ts': must not be negative"),
    ],
)
def test_bad_columns_of_parquet_are_named(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    export(Generator(seed=7, total=100), tmp_path / "data", "parquet")
    path = tmp_path / "data" / "auctions.parquet"
    pyarrow.parquet.write_table(change(pyarrow.parquet.read_table(path)), path)
    with pytest.raises(ReplayError, match=r"auctions\.parquet") as error:
        Replay(directory=str(tmp_path / "data"), cache=str(tmp_path))
    assert message in str(error.value)


def replace(table: Any, name: str, column: Any) -> Any:
    return table.set_column(table.column_names.index(name), name, column)


def test_times_of_other_types_are_taken_as_microseconds(tmp_path: Path) -> None:
    export(Generator(seed=7, total=100), tmp_path / "data", "parquet")
    path = tmp_path / "data" / "persons.parquet"
    table = pyarrow.parquet.read_table(path)
    changed = replace(table, "ts", table["ts"].cast(pa.timestamp("us", "UTC")))
    pyarrow.parquet.write_table(replace(changed, "id", table["id"].cast(pa.int32())), path)
    replay = Replay(directory=str(tmp_path / "data"), cache=str(tmp_path))
    assert replay.events(0, 100).equals(Generator(seed=7, total=100).events(0, 100))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="not a directory"):
        Replay(directory=str(tmp_path / "nowhere"))
    write(tmp_path / "data")
    (tmp_path / "data" / "bids.jsonl").unlink()
    with pytest.raises(ReplayError, match=r"has no bids\.parquet or bids\.jsonl"):
        Replay(directory=str(tmp_path / "data"))
    (tmp_path / "data" / "bids.parquet").write_text("nonsense")
    with pytest.raises(ReplayError, match=r"bids\.parquet cannot be read as Parquet"):
        Replay(directory=str(tmp_path / "data"))


def test_a_host_with_other_files_is_noticed(tmp_path: Path) -> None:
    replay = Replay(directory=write(tmp_path / "data"), cache=str(tmp_path))
    object.__setattr__(replay, "total", 5)
    with pytest.raises(ReplayError, match="copy the same files to every host"):
        replay.events(0, 1)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where the cache of the replay goes
    data = str(tmp_path / "data")
    assert main(["export", "--events", "2000", "--format", "jsonl", data]) == 0
    assert "bids.jsonl" in capsys.readouterr().out
    assert main(["export", "--events", "2000", data]) == 2
    assert "already holds" in capsys.readouterr().err
    assert main(["stats", "--replay", data]) == 0
    assert "bids by the hot bidder" in capsys.readouterr().out
    assert main(["stats", "--events", "10"]) == 2
    assert "at least 1000 events" in capsys.readouterr().err
    assert main(["export", "--rate", "0", data]) == 2
    assert "events_per_s must be at least 1" in capsys.readouterr().err
