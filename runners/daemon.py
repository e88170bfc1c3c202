"""Spark's Python daemon, warmed up: what every worker needs is imported once, before it is forked.

Spark starts this module instead of its own (`spark.python.daemon.module`). A killed worker then runs again after about
90 ms instead of 320, and no worker outlives its daemon, however the daemon dies.
"""

import ctypes
import gc
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    # The modules inside pyspark.zip have no bytecode, so every fork would compile them again.
    sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]

    import lmdb  # noqa: F401
    import numpy
    import pyarrow
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    import runners.worker  # noqa: F401
    from runners.vitals import note_birth

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    # The first conversion from NumPy makes Arrow look for pandas, which takes a quarter of a second of CPU. Without
    # this every worker would pay for it at its first batch, and the stages of a query one after the other.
    pyarrow.array(numpy.arange(1))
    os.register_at_fork(after_in_child=die_with_parent)
    os.register_at_fork(after_in_child=note_birth)
    # Or every full collection in a worker would walk through all these modules, and copy the pages that forks share.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
