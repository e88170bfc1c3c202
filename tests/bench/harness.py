"""Runs without a command line: the configuration of `run.py`, composed here, on one Spark session for all of them.

    run(query="q5", protocol="unsafe", rate=50_000, duration_s=8)["latency_ms"]["visible"]["p99"]

Benchmarks and integration tests share it. Everything that Hydra's command line takes can be given as an override.
"""

import os
import warnings
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, open_dict

import run as command_line
from runners.rundir import ROOT

# The oracle's answers come through pandas, whose newest major version PySpark warns about once per run.
warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)

RUNS = ROOT / ".cache" / "runs"
_numbers = count()


def run(
    *overrides: str,
    query: str,
    protocol: str = "unsafe",
    rate: int = 20_000,
    duration_s: float = 8,
    warmup_s: float | None = None,
    directory: Path | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """One run; returns the content of its run.json.

    `overrides` are Hydra's (`"protocol.commit_interval_ms=25"`, `"failure=kill"`), `settings` the same for names
    without dots (`parallelism=4`). A quarter of the run, at most five seconds, is warm-up unless `warmup_s` says
    otherwise. The directory is a new one under .cache/runs by default; the log in it is gone afterwards unless
    `keep_log=True`.
    """
    plain = {
        "query": query,
        "protocol": protocol,
        "rate": rate,
        "duration_s": duration_s,
        "warmup_s": min(5.0, duration_s / 4) if warmup_s is None else warmup_s,
        "quiet": True,
        **settings,
    }
    config, choices = composed(*(f"{name}={_text(value)}" for name, value in plain.items()), *overrides)
    return command_line.measure(config, directory or _new_directory(query, protocol), choices)


def composed(*overrides: str) -> tuple[DictConfig, dict[str, Any]]:
    """The configuration of a run, and the name of the file chosen in every group."""
    with initialize_config_dir(config_dir=str(ROOT / "configs"), version_base="1.3"):
        config = compose(config_name="config", overrides=list(overrides), return_hydra_config=True)
    choices = dict(config.hydra.runtime.choices)
    with open_dict(config):
        del config.hydra
    return config, choices


def protocols() -> list[str]:
    """Every protocol there is: the names of its config files."""
    return sorted(path.stem for path in (ROOT / "configs" / "protocol").glob("*.yaml"))


def settings_of(protocol: str) -> set[str]:
    """What can be set of a protocol."""
    config, _ = composed(f"protocol={protocol}")
    return {str(name) for name in config.protocol}


def _text(value: object) -> str:
    """A value as Hydra's grammar spells it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _new_directory(query: str, protocol: str) -> Path:
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}-{next(_numbers)}"
    return RUNS / f"{stamp}-{query}-{protocol}"
