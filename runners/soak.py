"""A long run under many faults: did anything grow that must not?"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from runners.resources import growth

# What may lie between the middle and the last third of a run without being growth: a share, and an absolute amount for
# values that are small to begin with.
SHARE = 0.25
SLACK = {"memory per role": 20e6, "open files per role": 3, "driver memory": 100e6, "driver files": 10, "log": 30e6}


def curves(resources: pd.DataFrame) -> dict[str, pd.Series]:
    """The series that are looked at. Roles die and come back, so theirs are taken for each living one."""
    roles = resources["roles"].clip(lower=1)
    return {
        "memory per role": resources["role_bytes"] / roles,
        "open files per role": resources["role_files"] / roles,
        "driver memory": resources["driver_bytes"],
        "driver files": resources["driver_files"],
        "log": resources["log_bytes"],
    }


def grown(resources: pd.DataFrame, *, log_pinned: bool) -> list[str]:
    """What grew, in words; empty when all is flat. A pinned log grows by its nature."""
    found = []
    for name, series in curves(resources).items():
        if name == "log" and log_pinned:
            continue
        share = growth(series)
        third = len(series) // 3
        amount = share * float(series.iloc[third : 2 * third].median()) if third else 0.0
        if share > SHARE and amount > SLACK[name]:
            found.append(f"{name} grew by {share:.0%} from the middle to the last third of the run")
    return found


def row(run: Mapping[str, Any], resources: pd.DataFrame) -> tuple[str, ...]:
    """One line of the soak's table."""
    values = {name: growth(series) for name, series in curves(resources).items()}
    proven = sum(fault["proven"] for fault in run["faults"])
    log = "pinned" if run["log_pinned"] else f"{values['log']:+.0%}"
    return (
        str(run["protocol"]),
        f"{run['duration_s']:.0f}",
        f"{proven}/{len(run['faults'])}",
        str(run["restarts"]),
        f"{values['memory per role']:+.0%} / {values['driver memory']:+.0%}",
        f"{values['open files per role']:+.0%} / {values['driver files']:+.0%}",
        log,
        {True: "kept", False: "BROKEN", None: "none given"}[run["guarantee_held"]],
    )


HEADER = ("protocol", "s", "faults", "restarts", "memory role/driver", "files role/driver", "log", "promise")
