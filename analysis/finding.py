"""Where the runs are: directories at any depth and archives, with the manifests and log latencies on the way."""

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import BadZipFile, ZipFile

from pyarrow import ArrowException

from runners.rundir import RunDirectoryError

FILES = ("run.json", "config.yaml", "latency.parquet", "tasks.parquet", "events.jsonl", "environment.json")
ARCHIVE = ".zip"  # a sweep kept by analysis.archive; read like the directory it was
# Not part of what lies around them: logs, pictures, and the results that come with the repository.
_APART = ("log", "figures", "reference")
# What reading a file that is damaged, or not ours, can raise.
DAMAGE = (RunDirectoryError, ArrowException, OSError, ValueError)
_DAMAGED_ARCHIVE = (BadZipFile, zlib.error, EOFError, OSError, RuntimeError)  # the last: encrypted, or a method unknown


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A directory that looks like a run's and does not count as one, and why."""

    path: Path
    reason: str


@cache
def _unpacked(archive: Path, changed_ns: int, size: int) -> TemporaryDirectory[str]:
    """Once for each content, and until the process ends: the runs' directories are in the frame."""
    folder = TemporaryDirectory(prefix="tidemark-")
    with ZipFile(archive) as file:
        file.extractall(Path(folder.name) / archive.stem)
    return folder


class Found:
    """Walks the directories and keeps what is not a run by the way: manifests and log latencies."""

    def __init__(self, unreadable: list[Unreadable]) -> None:
        self.manifests: dict[Path, Mapping[str, Any]] = {}
        self.log_latency: list[Mapping[str, Any]] = []
        self._unreadable = unreadable
        self._seen: set[Path] = set()

    def walk(self, roots: Iterable[Path]) -> Iterator[Path]:
        for root in roots:
            if root.is_file() and root.suffix == ARCHIVE:
                yield from self._inside(root.resolve())
            elif root.is_dir():
                yield from self._below(root.resolve())
            else:
                raise RunDirectoryError(f"{root} is not a directory; name one that holds runs, for example results")

    def _below(self, root: Path) -> Iterator[Path]:
        for name, folders, files in os.walk(root):
            folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _APART)
            path = Path(name)
            if path not in self._seen:
                self._seen.add(path)
                if self._is_run(path, set(files)):
                    yield path
                for file in sorted(files):
                    if file.endswith(ARCHIVE):
                        yield from self._inside(path / file)

    def _inside(self, archive: Path) -> Iterator[Path]:
        about = archive.stat()
        try:
            folder = _unpacked(archive, about.st_mtime_ns, about.st_size)
        except _DAMAGED_ARCHIVE as error:
            self._say(archive, f"no archive that can be unpacked ({first_line(error)})")
            return
        yield from self._below(Path(folder.name).resolve())

    def sweep_of(self, path: Path) -> str:
        """The nearest directory above a run that has a manifest; empty if there is none."""
        return next((str(above) for above in (path, *path.parents) if above in self.manifests), "")

    def _is_run(self, path: Path, files: set[str]) -> bool:
        if "manifest.json" in files:
            self._manifest(path)
        if "log_latency.json" in files:
            self._log_latency(path)
        known = files & set(FILES)
        aside = {"manifest.json", "log_latency.json"} & files
        return bool(known) and ("run.json" in files or not aside)

    def _manifest(self, path: Path) -> None:
        try:
            content = read_json(path / "manifest.json")
            for cell in content["cells"]:
                if cell["state"] == "done" and not (path / cell["directory"]).is_dir():
                    self._say(path / cell["directory"], f"the manifest says that cell {cell['id']} is done; it is gone")
        except (*DAMAGE, KeyError, TypeError) as error:
            self._say(path, f"manifest.json: {error}")
            return
        self.manifests[path] = content

    def _log_latency(self, path: Path) -> None:
        try:
            rows = read_json(path / "log_latency.json")
            self.log_latency += [{"directory": str(path), **_latency_row(row)} for row in rows]
        except (*DAMAGE, KeyError, TypeError) as error:
            self._say(path, f"log_latency.json: {error}")

    def _say(self, path: Path, reason: str) -> None:
        self._unreadable.append(Unreadable(path=path, reason=reason))


def _latency_row(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(row[name]) for name in ("rate", "p50_us", "p99_us", "count")}


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise RunDirectoryError(f"{path} is not JSON ({error})") from error


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200]
