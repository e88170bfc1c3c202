"""The command line refuses what cannot run: one clear message, exit code 2, nothing started."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "run.py"), f"hydra.run.dir={directory}/run", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["query=q9"], "q9"),
        (["protocol=nothing"], "nothing"),
        (["nonsense=1"], "nonsense"),
        (["rate=-5"], "events_per_s"),
        (["rate=fast"], "events_per_s"),
        (["duration_s=0"], "duration_s"),
        (["warmup_s=30"], "warmup_s"),
        (["parallelism=two"], "parallelism"),
        (["parallelism=100"], "slots"),
        (["query=q5", "query.window_us=-1"], "window_us"),
        (["query=q5", "query.colour=red"], "colour"),
        (["heartbeat_timeout_ms=100"], "heartbeat_timeout_ms"),
        (["source=replay"], "directory"),
        (["source=replay", "source.directory=/does/not/exist"], "/does/not/exist"),
        (["failure=kill", "failure.role=nobody/*"], "nobody"),
        (["failure=kill", "failure.at_s=500"], "at_s"),
        (["log.durability=maybe"], "durability"),
        (["cluster.slots=0"], "slot"),
        (["experiment=nothing"], "latency_throughput"),
        (["experiment=smoke", "scale=huge"], "small or paper"),
        (["experiment=smoke", "rate=fast"], "events_per_s"),
        (["experiment=smoke", "experiment.repetitions=many"], "repetitions"),
        (["experiment=smoke", "experiment.axes.protocol=nix*"], "fits none"),
        (["experiment=smoke", "parallelism=100"], "slots"),
        (["experiment=recovery", "experiment.axes.protocol=[unsafe]"], "snapshot_interval_ms"),
        (["experiment=sustained", "experiment.tolerance=2"], "tolerance"),
        (["experiment=log_latency", "experiment.rates=none"], "appends per second"),
    ],
)
def test_bad_configuration_is_one_message_and_code_two(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 4, done.stderr
    assert not (tmp_path / "run").exists(), "nothing is left behind"


def test_a_damaged_manifest_is_bad_configuration(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{")
    done = run(tmp_path, "experiment=log_latency")
    assert done.returncode == 2
    assert "manifest.json is damaged" in done.stderr


def test_the_log_alone_leaves_its_rows_and_is_not_measured_twice(tmp_path: Path) -> None:
    arguments = ("experiment=log_latency", "experiment.rates=[200]", "experiment.seconds_each=0.2")
    assert run(tmp_path, *arguments).returncode == 0
    (path,) = (tmp_path / "run").glob("cells/*/log_latency.json")
    (row,) = json.loads(path.read_text())
    assert (row["rate"], row["count"]) == (200, 40)
    assert 0 < row["p50_us"] <= row["p99_us"]
    written = path.stat().st_mtime_ns
    again = run(tmp_path, *arguments)
    assert again.returncode == 0
    assert "finished already" in again.stderr
    assert path.stat().st_mtime_ns == written


def test_help_names_the_groups() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for group in (
        "query",
        "protocol",
        "cluster",
        "failure",
        "rate: 20000",
        "experiment=latency_throughput",
        "force=true",
    ):
        assert group in done.stdout
