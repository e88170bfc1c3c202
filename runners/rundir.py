"""A run's directory explains itself: what ran, where, what came out. Written here, read by analysis and people."""

import hashlib
import json
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pyspark", "pyarrow", "numpy", "polars", "lmdb", "hydra-core", "pandas")
CODE = ("sharedlog", "dataflow", "nexmark", "protocols", "runners", "infra")


class RunDirectoryError(ValueError):
    """A directory that is not a complete run."""


@dataclass(frozen=True)
class RunDirectory:
    """Paths and files of one run. Field names are stable; see results/README.md."""

    path: Path

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Whole or not at all: an interrupted write leaves the old file."""
        partial = self.path / f".{name}.partial"
        partial.write_text(json.dumps(content, indent=2, default=str) + "\n")
        partial.replace(self.path / name)

    def write_parquet(self, name: str, frame: pd.DataFrame) -> None:
        frame.to_parquet(self.path / name, index=False)

    def run(self) -> dict[str, Any]:
        """The summary, run.json."""
        return self._json("run.json")

    def environment(self) -> dict[str, Any]:
        return self._json("environment.json")

    def latency(self) -> pd.DataFrame:
        """Histogram rows: second, metric, value_us (a bucket's lower edge), count."""
        return self._parquet("latency.parquet")

    def tasks(self) -> pd.DataFrame:
        """A row for each role and second."""
        return self._parquet("tasks.parquet")

    def lag(self) -> pd.DataFrame:
        """About twenty rows a second: elapsed_s, behind_ms (of a reader of the results), lag_rows."""
        return self._parquet("lag.parquet")

    def resources(self) -> pd.DataFrame:
        """A row for each second: memory and open files of roles and driver, bytes of the log."""
        return self._parquet("resources.parquet")

    def events(self) -> list[dict[str, Any]]:
        path = self._existing("events.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines() if line]

    def _json(self, name: str) -> dict[str, Any]:
        path = self._existing(name)
        try:
            content: dict[str, Any] = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise RunDirectoryError(f"{path} is not JSON ({error}); the run was cut off, so run it again") from error
        return content

    def _parquet(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self._existing(name))

    def _existing(self, name: str) -> Path:
        path = self.path / name
        if not path.is_file():
            raise RunDirectoryError(f"{self.path} has no {name}; it is not the directory of a finished run")
        return path


def environment(seed: int, input_hash: str) -> dict[str, Any]:
    """What a reader needs to know to repeat a run elsewhere."""
    disk = shutil.disk_usage(ROOT)
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "code": code_version(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "system": platform.platform(),
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "disk_bytes": disk.total,
        "disk_free_bytes": disk.free,
        "seed": seed,
        "input_hash": input_hash,
    }


def code_version(root: Path = ROOT) -> str:
    """A hash of all code that takes part in a run, and of the locked versions.

    Not the commit: a change to a document or a figure does not make a measurement obsolete, and an uncommitted change
    to the runtime does.
    """
    digest = hashlib.sha256()
    files = [path for package in CODE for path in sorted((root / package).rglob("*.py"))]
    for path in [*files, root / "requirements.lock"]:
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _git(*arguments: str) -> str | None:
    """What git says; None outside a repository."""
    try:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
