"""What a run uses of its host, second by second. A soak looks whether any of it grows."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """One sample. Roles are all living Python workers together; their shared pages are counted for each."""

    elapsed_s: float
    roles: int
    role_bytes: int
    role_files: int
    driver_bytes: int
    driver_files: int
    log_bytes: int


class Resources:
    def sample(self, elapsed_s: float, pids: Iterable[int], log_bytes: int) -> Usage:
        found = [_of(pid) for pid in pids]
        living = [one for one in found if one is not None]
        driver = _of(os.getpid()) or (0, 0)
        return Usage(
            elapsed_s=elapsed_s,
            roles=len(living),
            role_bytes=sum(size for size, _ in living),
            role_files=sum(files for _, files in living),
            driver_bytes=driver[0],
            driver_files=driver[1],
            log_bytes=log_bytes,
        )


def growth(values: Iterable[float]) -> float:
    """By which factor the last third lies above the middle third, in medians: 0.1 is ten percent more.

    The first third is left out: caches fill and windows open there. 0 with fewer than nine samples.
    """
    series = np.array(list(values), dtype=float)
    if series.size < 9:
        return 0.0
    third = series.size // 3
    middle, last = np.median(series[third : 2 * third]), np.median(series[2 * third :])
    return float(last / middle - 1) if middle > 0 else 0.0


def _of(pid: int) -> tuple[int, int] | None:
    """Resident bytes and open files; None when the process is gone."""
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
        return resident, len(os.listdir(f"/proc/{pid}/fd"))
    except (OSError, IndexError, ValueError):
        return None
