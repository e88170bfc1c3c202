"""The soak's eye for growth: shown what is flat, what only warms up, and what leaks."""

import numpy as np
import pandas as pd

from runners.soak import HEADER, grown, row

SECONDS = 120


def resources(**curves: object) -> pd.DataFrame:
    flat = {
        "elapsed_s": np.arange(SECONDS, dtype=float), "roles": 8, "role_bytes": 8 * 100e6, "role_files": 8 * 20,
        "driver_bytes": 300e6, "driver_files": 60, "log_bytes": 100e6,
    }  # fmt: skip
    return pd.DataFrame({**flat, **curves})


def rising(start: float, end: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.linspace(start, end, SECONDS)


def test_flat_is_flat_also_when_roles_come_and_go() -> None:
    roles = np.where(np.arange(SECONDS) % 7 < 2, 4, 8)
    frame = resources(roles=roles, role_bytes=roles * 100e6, role_files=roles * 20)
    assert grown(frame, log_pinned=False) == []


def test_every_leak_is_named() -> None:
    leaks = {
        "memory per role": {"role_bytes": rising(8 * 100e6, 8 * 400e6)},
        "open files per role": {"role_files": rising(160, 640)},
        "driver memory": {"driver_bytes": rising(3e8, 12e8)},
        "driver files": {"driver_files": rising(60, 240)},
        "log": {"log_bytes": rising(1e8, 9e8)},
    }
    for name, curve in leaks.items():
        (said,) = grown(resources(**curve), log_pinned=False)
        assert said.startswith(name)


def test_a_pinned_log_may_grow() -> None:
    frame = resources(log_bytes=rising(1e8, 9e8))
    assert grown(frame, log_pinned=True) == []
    assert grown(frame, log_pinned=False) != []


def test_a_row_says_what_was_proven_and_kept() -> None:
    run = {
        "protocol": "p", "duration_s": 120, "restarts": 9, "guarantee_held": True, "log_pinned": False,
        "faults": [{"proven": True}, {"proven": False}],
    }  # fmt: skip
    line = row(run, resources())
    assert len(line) == len(HEADER)
    assert line[2] == "1/2"
    assert line[-1] == "kept"
