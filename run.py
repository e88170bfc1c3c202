"""The command line: `python run.py query=q5 protocol=unsafe rate=50000 duration_s=20 seed=7`.

The only user of Hydra. Exit codes: 0 all well, 1 a guarantee broken or a run invalid, 2 bad configuration (nothing was
started), 130 interrupted.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from analysis.tables import comparison
from analysis.timeline import latency_over_time
from infra import java
from infra.cluster import Cluster, ClusterError, Endpoint
from nexmark.generator import Generator
from runners import log_latency
from runners.benchmark import execute, prepare
from runners.display import Display
from runners.rundir import ROOT
from runners.settings import ConfigError, Settings
from runners.spark import session

WELL, BROKEN, BAD_CONFIG, INTERRUPTED = 0, 1, 2, 130
NAMES = ("query", "protocol", "log", "cluster", "failure")
_codes: list[int] = []


@hydra.main(version_base="1.3", config_path="configs", config_name="config")
def main(config: DictConfig) -> None:
    """One job of the command line or of a sweep; a failing one does not stop the sweep."""
    try:
        _codes.append(EXPERIMENTS[_experiment(config)](config))
    except ConfigError as error:
        print(f"run.py: {error}", file=sys.stderr)
        _codes.append(BAD_CONFIG)


def _experiment(config: DictConfig) -> str:
    name = str(config.experiment.name)
    if name not in EXPERIMENTS:
        raise ConfigError(f"no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    return name


def single(config: DictConfig) -> int:
    """One verified run."""
    directory = Path(HydraConfig.get().runtime.output_dir).absolute()
    run = measure(config, directory, HydraConfig.get().runtime.choices)
    print(report(run, directory))
    if "interrupted" in run["invalid_reasons"]:
        raise KeyboardInterrupt
    return WELL if run["valid"] and run["guarantee_held"] is not False else BROKEN


def measure(config: DictConfig, directory: Path, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Run what the configuration says and leave it in a directory; `choices` names the config file of every group."""
    settings = read_settings(config, directory, choices)
    cluster = build_part(config, "cluster")
    endpoint = _start(cluster)
    prepared = prepare(settings, endpoint.slots)
    label = f"{settings.names['query']} {settings.names['protocol']}"
    display = Display(label, quiet=bool(config.quiet))
    display.say(f"{label}: {settings.total} events at {settings.rate}/s, {len(prepared.spec.roles())} roles; "
                f"starting Spark …")  # fmt: skip
    spark = start_spark(endpoint)
    try:
        return execute(prepared, spark, directory, OmegaConf.to_yaml(config, resolve=True), display)
    finally:
        if not settings.keep_log:
            shutil.rmtree(directory / "log", ignore_errors=True)


def quickstart(config: DictConfig) -> int:
    """Every protocol in turn, on the same input with the same fault; a table and a figure at the end."""
    directory = Path(HydraConfig.get().runtime.output_dir).absolute()
    choices = dict(HydraConfig.get().runtime.choices)
    names = sorted(path.stem for path in (ROOT / "configs" / "protocol").glob("*.yaml"))
    runs = []
    for name in names:
        choices["protocol"] = name
        config.protocol = OmegaConf.load(ROOT / "configs" / "protocol" / f"{name}.yaml")
        runs.append(measure(config, directory / name, choices))
        if "interrupted" in runs[-1]["invalid_reasons"]:
            raise KeyboardInterrupt
    figure = latency_over_time([directory / name for name in names], directory / "latency.png")
    first = runs[0]
    print(
        f"\n{first['query']}, {first['events']} events at {first['rate_offered']}/s,"
        f" {first['parallelism']} tasks per stage; SIGKILL of {config.failure.role} at {config.failure.at_s} s; n=1\n"
    )
    print(comparison(runs))
    for run in runs:
        for reason in run["invalid_reasons"]:
            print(f"  invalid, {run['protocol']}: {reason}")
    print(f"\nfigure: {os.path.relpath(figure)}\nruns:   {os.path.relpath(directory)}/<protocol>/run.json")
    return WELL if all(run["guarantee_held"] is not False for run in runs) else BROKEN


def run_log_latency(config: DictConfig) -> int:
    """The log alone, no Spark."""
    directory = Path(HydraConfig.get().runtime.output_dir).absolute()
    log = build_part(config, "log", path=str(directory / "log"))
    rates = [int(rate) for rate in config.experiment.rates]
    try:
        rows = log_latency.measure(log, rates, float(config.experiment.seconds_each))
    finally:
        shutil.rmtree(directory / "log", ignore_errors=True)
    print(log_latency.format_table(rows))
    return WELL


EXPERIMENTS = {"single": single, "quickstart": quickstart, "log_latency": run_log_latency}


def read_settings(config: DictConfig, directory: Path, choices: Mapping[str, Any]) -> Settings:
    """Build and check everything that the configuration names. Raises `ConfigError`."""
    workload = build_part(config, "source")
    if isinstance(workload, Generator):
        workload = replace(workload, total=workload.count_before(int(float(config.duration_s) * 1e6)))
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return Settings(
        query=build_part(config, "query"),
        protocol=build_part(config, "protocol"),
        workload=workload,
        log=build_part(config, "log", path=str(directory / "log")),
        failure=build_part(config, "failure"),
        names={name: str(choices[name]) for name in NAMES},
        **{str(name): plain[name] for name in Settings.__dataclass_fields__ if name in plain and name not in PARTS},
    )


PARTS = ("query", "protocol", "workload", "log", "failure", "names")


def build_part(config: DictConfig, name: str, **override: Any) -> Any:
    """One config group as the object it describes; whatever it objects to becomes a `ConfigError`."""
    try:
        return instantiate(config[name], **override)
    except InstantiationException as error:
        cause = error.__cause__ or error
        raise ConfigError(f"{name}: {_first_line(cause)}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{name}: {_first_line(error)}") from error


def _start(cluster: Cluster) -> Endpoint:
    try:
        return cluster.start()
    except ClusterError as error:
        raise ConfigError(str(error)) from error


def start_spark(endpoint: Endpoint) -> Any:
    try:
        home = java.home()
    except java.JavaMissing as missing:
        raise ConfigError(str(missing)) from missing
    local = ROOT / ".cache" / "spark"
    local.mkdir(parents=True, exist_ok=True)
    return session(
        master=endpoint.master, java_home=home, conf=endpoint.conf, environment=endpoint.environment, local_dir=local
    )


def report(run: dict[str, Any], directory: Path) -> str:
    """What a person wants to know first."""
    lines = [f"{run['query']} under {run['protocol']}: {run['events']} events at {run['rate_offered']}/s"]
    for metric in ("visible", "emit"):
        values = run["latency_ms"][metric]
        if values["p50"] is not None:
            lines.append(
                f"  {metric:<8} p50 {values['p50']:.1f}  p99 {values['p99']:.1f}  max {values['max']:.1f} ms"
                f"  ({values['count']} events)"
            )
    checked = run["verification"]
    if checked is None:
        lines.append("  not verified")
    else:
        good = not (checked["lost"] or checked["duplicated"] or checked["wrong"]) and checked["edges_ok"]
        lines.append(
            f"  {'verified' if good else 'DIFFERS'}: {checked['checked']} rows checked, {checked['lost']} lost,"
            f" {checked['duplicated']} duplicated, {checked['wrong']} wrong, edges"
            f" {'agree' if checked['edges_ok'] else 'disagree'}"
        )
        lines += [f"    {example}" for example in checked["examples"]]
    lines += [f"  invalid: {reason}" for reason in run["invalid_reasons"]]
    lines.append(f"  restarts {run['restarts']}; details in {os.path.relpath(directory)}")
    return "\n".join(lines)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def command() -> int:
    """Run Hydra's job(s) and turn what happened into an exit code."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here instead of being printed with a traceback
    try:
        main()
    except KeyboardInterrupt:
        print("run.py: interrupted; what was measured so far is kept", file=sys.stderr)
        return INTERRUPTED
    except (HydraException, OmegaConfBaseException) as error:
        print(f"run.py: {_first_line(error)}", file=sys.stderr)
        return BAD_CONFIG
    return max(_codes, default=WELL)


if __name__ == "__main__":
    sys.exit(command())
