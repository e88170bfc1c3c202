"""Spark as the runtime: one job of long-lived roles, and one more for every successor of a hung role."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from runners.worker import RoleResult, RunSpec, run_role

_log = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parent.parent
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "ARROW_NUM_THREADS": "1"}


def session(
    *, master: str, java_home: Path, conf: Mapping[str, str], environment: Mapping[str, str], local_dir: Path
) -> Any:
    """The Spark session for this master; a sweep reuses the first one."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.update(
        {
            "JAVA_HOME": str(java_home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": path,
            **ONE_THREAD,
            **environment,
        }
    )
    from pyspark.sql import SparkSession

    logging.getLogger("py4j").setLevel(logging.ERROR)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": "runners.daemon",
        "spark.python.worker.reuse": "false",  # a worker cannot take its niceness back
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.local.dir": str(local_dir),
        "spark.sql.warehouse.dir": str(local_dir / "warehouse"),
        "spark.sql.shuffle.partitions": "4",
        "spark.default.parallelism": "4",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.executorEnv.PYTHONPATH": path,
        **{f"spark.executorEnv.{name}": value for name, value in ONE_THREAD.items()},
        **conf,
    }
    builder = SparkSession.builder.master(master).appName("tidemark")
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _stderr_to(local_dir / "spark.log"):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    # Spark cancels all jobs on Ctrl-C; here the supervisor ends them in order.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return spark


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C comes out as itself: PySpark cleans up after it, may fail at that, and then raises its failure instead."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            cause = cause.__context__
        raise


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """The JVM started inside writes its noise to a file for as long as it lives; we get our own stderr back."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@dataclass
class SparkJobs:
    """The Spark jobs of one run. Results arrive as roles end; Spark runs again what it sees die."""

    spark: Any
    spec: RunSpec
    group: str
    results: list[RoleResult] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def submit(self, roles: Sequence[str]) -> None:
        """Start roles as one job, in the background."""
        from pyspark import InheritableThread

        thread = InheritableThread(target=self._run, args=(tuple(roles),), daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run(self, roles: tuple[str, ...]) -> None:
        context = self.spark.sparkContext
        context.setJobGroup(self.group, f"tidemark {', '.join(roles)}", interruptOnCancel=True)
        work: Callable[[str], RoleResult] = partial(run_role, self.spec)
        try:
            self.results += context.parallelize(roles, len(roles)).map(work).collect()
        except Exception as error:
            self.errors.append(str(error).strip().split("\n")[0])

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self, timeout_s: float) -> bool:
        """Wait for all jobs; whether they ended."""
        for thread in self._threads:
            thread.join(timeout_s)
        return not self.running

    def cancel(self) -> None:
        self.spark.sparkContext.cancelJobGroup(self.group)
