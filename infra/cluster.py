"""Where a run takes place: something that gives a Spark master and hosts, runs commands there, and goes away again.

`cluster=local` and `cluster=local_cluster` are here. Remote clusters implement the same four verbs.
"""

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MANY_FAILURES = 1_000_000  # restarts are recorded, never limited: a soak may kill a task hundreds of times


class ClusterError(ValueError):
    """A cluster that cannot be had as configured."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A running cluster, as Spark's driver needs to see it."""

    master: str
    hosts: tuple[str, ...]
    slots: int
    executors: int = 0  # processes of their own that can be killed; 0 when the driver is the executor
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Cluster(ABC):
    """How to get a cluster; a value from configs/cluster/<name>.yaml."""

    @abstractmethod
    def start(self) -> Endpoint:
        """Bring it up, or find it up already."""

    @abstractmethod
    def run(self, host: str, command: Sequence[str], *, timeout_s: float) -> str:
        """Run a command on a host and return what it printed; raises `ClusterError` when it fails."""

    @abstractmethod
    def fetch(self, host: str, remote: Path, local: Path) -> None:
        """Copy a file or directory from a host."""

    @abstractmethod
    def destroy(self) -> None:
        """Give everything back. Fine to call twice."""


def _check_counts(cluster: Cluster, **most: int) -> None:
    for name, limit in most.items():
        value = getattr(cluster, name)
        if not isinstance(value, int) or not 1 <= value <= limit:
            raise ClusterError(f"{name} must be a whole number from 1 to {limit}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class ThisHost(Cluster):
    """What the two local clusters share: the only host is this one."""

    def run(self, host: str, command: Sequence[str], *, timeout_s: float) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode:
            raise ClusterError(f"{command[0]!r} on {host} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def fetch(self, host: str, remote: Path, local: Path) -> None:
        if remote.is_dir():
            shutil.copytree(remote, local, dirs_exist_ok=True)
        elif remote.resolve() != local.resolve():
            shutil.copy2(remote, local)

    def destroy(self) -> None:
        """Nothing outlives the driver here."""


@dataclass(frozen=True, kw_only=True)
class Local(ThisHost):
    """Driver and executor in one JVM; roles are its Python workers."""

    slots: int = 64

    def __post_init__(self) -> None:
        _check_counts(self, slots=65_536)

    def start(self) -> Endpoint:
        # local[n] alone would mean no retries at all.
        return Endpoint(master=f"local[{self.slots},{MANY_FAILURES}]", hosts=("127.0.0.1",), slots=self.slots)


@dataclass(frozen=True, kw_only=True)
class LocalCluster(ThisHost):
    """Executors as processes of their own on this host, so that an executor can be killed."""

    executors: int = 2
    slots_per_executor: int = 32
    executor_memory_mb: int = 1024
    work_dir: str = ".cache/spark-home"

    def __post_init__(self) -> None:
        _check_counts(self, executors=64, slots_per_executor=65_536, executor_memory_mb=1 << 20)

    def start(self) -> Endpoint:
        return Endpoint(
            master=f"local-cluster[{self.executors},{self.slots_per_executor},{self.executor_memory_mb}]",
            hosts=("127.0.0.1",) * self.executors,
            slots=self.executors * self.slots_per_executor,
            executors=self.executors,
            conf={
                "spark.task.maxFailures": str(MANY_FAILURES),
                # Roles are placed when all executors are there, or the first one would get them all.
                "spark.cores.max": str(self.executors * self.slots_per_executor),
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
                "spark.executor.memory": f"{self.executor_memory_mb}m",
            },
            environment={"SPARK_HOME": str(self._spark_home())},
        )

    def _spark_home(self) -> Path:
        """Spark writes its workers' files below SPARK_HOME; links keep them out of the installed package."""
        import pyspark

        installed = Path(pyspark.__file__).parent
        home = Path(self.work_dir).absolute()
        home.mkdir(parents=True, exist_ok=True)
        for item in installed.iterdir():
            link = home / item.name
            if item.name in ("work", "logs", "__pycache__"):
                continue
            if link.is_symlink() and os.readlink(link) != str(item):
                link.unlink()
            if not link.exists():
                link.symlink_to(item)
        return home
