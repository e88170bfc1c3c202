"""A log directory that something else has written to: the check says what is wrong, and never dies or hangs over it."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sharedlog.embedded import EmbeddedLogSpec
from sharedlog.log import Entry, Header, Kind

ROOT = Path(__file__).parents[2]
FILES = (
    "index/data.mdb",
    "index/data.mdb",
    "index/lock.mdb",
    "segments/0000000001.segment",
    "FORMAT",
    "BOOT",
    "STRESS",
)
HOW = ("flip", "cut", "zero", "gone", "junk")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "sound"
    log = EmbeddedLogSpec(path=str(path), segment_bytes=1 << 20).open()
    for number in range(300):
        header = Header(Kind.DATA, "p", 1, sequence=number)
        log.append([Entry((f"d/{number % 3}",), header, bytes([number % 256]) * (100 + number))])
    log.increment("instance/p")
    log.close()
    return path


def damage(file: Path, rng: random.Random) -> str:
    how, size = rng.choice(HOW), file.stat().st_size
    if how == "gone":
        file.unlink()
    elif how == "cut":
        os.truncate(file, rng.randrange(max(1, size)))
    else:
        content = bytearray(file.read_bytes())
        start, length = rng.randrange(max(1, min(size, 120_000))), rng.choice([1, 8, 64, 4096])
        for place in range(start, min(size, start + length)):
            content[place] = {"flip": content[place] ^ 1 << rng.randrange(8), "zero": 0}.get(how, rng.randrange(256))
        file.write_bytes(content)
    return how


def checked(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sharedlog.check", str(directory)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_a_sound_log_is_called_sound(sound: Path) -> None:
    done = checked(sound)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "sound"), done.stderr


@pytest.mark.parametrize("seed", range(24))
def test_damage_is_reported_or_harmless(sound: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    broken = tmp_path / "log"
    shutil.copytree(sound, broken)
    name = rng.choice(FILES)
    how = damage(broken / name, rng)
    done = checked(broken)
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1, 2), (seed, name, how, said)
    assert "Traceback" not in said, (seed, name, how, said)
    assert said.strip(), (seed, name, how)


def test_bytes_of_an_entry_are_never_taken_for_others(sound: Path, tmp_path: Path) -> None:
    broken = tmp_path / "log"
    shutil.copytree(sound, broken)
    segment = broken / "segments/0000000001.segment"
    content = bytearray(segment.read_bytes())
    content[5000] ^= 4
    segment.write_bytes(content)
    done = checked(broken)
    assert done.returncode == 1
    assert "damaged" in done.stdout
