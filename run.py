"""The command line: `python run.py query=q5 protocol=unsafe rate=50000 duration_s=20 seed=7`.

The only user of Hydra. Exit codes: 0 all well, 1 a guarantee broken, a run invalid or a cell of an experiment failed,
2 bad configuration (nothing was started), 130 interrupted.
"""

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hydra
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from analysis.report import write as write_report
from analysis.tables import aligned, comparison
from infra import java
from infra.cluster import Cluster, ClusterError, Endpoint
from nexmark.generator import Generator
from nexmark.parameters import Query
from nexmark.workload import Workload
from protocols.base import Protocol
from runners import experiments, grid, manifest, soak
from runners.benchmark import Prepared, execute, prepare
from runners.display import Display
from runners.faults import Failure
from runners.rundir import ROOT, RunDirectory, code_version
from runners.settings import ConfigError, Settings, check_number
from runners.spark import session
from runners.sustained import Search
from runners.sweep import BAD_CONFIG, BROKEN, WELL, Result, Sweep
from sharedlog.log import LogSpec

INTERRUPTED = 130
NAMES = ("query", "protocol", "log", "cluster", "failure")
NOT_MEASURED = ("quiet", "force", "scale", "repetition")  # two cells that differ in these alone measure the same
GRID = ("name", "axes", "repetitions", "at")
MANY = 12  # runs are too many for a table in the terminal
_codes: list[int] = []


@hydra.main(version_base="1.3", config_path="configs", config_name="config")
def main(config: DictConfig) -> None:
    """One job of the command line or of a multirun; a failing one does not stop the others."""
    try:
        _codes.append(single(config) if config.experiment.kind == "single" else sweep(config))
    except ConfigError as error:
        print(f"run.py: {error}", file=sys.stderr)
        _codes.append(BAD_CONFIG)
        with contextlib.suppress(OSError):  # Hydra made it, and nothing was written
            os.rmdir(HydraConfig.get().runtime.output_dir)


def single(config: DictConfig) -> int:
    """One verified run."""
    directory = Path(HydraConfig.get().runtime.output_dir).absolute()
    run = measure(config, directory, HydraConfig.get().runtime.choices)
    print(report(run, directory))
    if "interrupted" in run["invalid_reasons"]:
        raise KeyboardInterrupt
    return WELL if run["valid"] and run["guarantee_held"] is not False else BROKEN


def sweep(config: DictConfig) -> int:
    """All cells of an experiment's grid, each with a directory of its own; then what they came to."""
    experiment = config.experiment
    if config.scale not in experiment.at:
        raise ConfigError(f"{experiment.name} has no scale={config.scale}; use {' or '.join(experiment.at)}")
    if experiment.kind not in KINDS:
        raise ConfigError(f"experiment.kind is {experiment.kind!r}; use {', '.join(KINDS)}")
    given = list(HydraConfig.get().overrides.task)
    place = [one for one in HydraConfig.get().overrides.hydra if one.startswith("hydra.run.dir=")]
    directory = Path(HydraConfig.get().runtime.output_dir).absolute()
    kind, code = KINDS[experiment.kind], code_version()

    def check(overrides: tuple[str, ...]) -> str:
        cell, choices = composed([*given, *overrides])
        kind.check(cell, choices, directory)
        return manifest.key_of(identity(cell), code)

    def run_cell(entry: manifest.Entry, place: Path, label: str) -> Result:
        cell, choices = composed([*given, *entry.overrides, f"repetition={entry.repetition}"])
        return kind.measure(cell, choices, place, Display(label, quiet=bool(config.quiet)))

    work = Sweep(
        directory=directory,
        experiment=str(experiment.name),
        scale=str(config.scale),
        command=shlex.join(["python", "run.py", *given, *place]),
        seed=int(config.seed),
        check=check,
        measure=run_cell,
        force=bool(config.force),
        quiet=bool(config.quiet),
    )
    axes = plain(experiment.axes)
    cells = grid.in_order(grid.expand(axes, grid.keys(given), ROOT / "configs"), experiment.repetitions, work.seed)
    try:
        exit_code = work.run(cells)
    except KeyboardInterrupt:
        again = shlex.join(["python", "run.py", *given, f"hydra.run.dir={os.path.relpath(directory)}"])
        print(f"\nrun.py: stopped; it goes on with\n  {again}", file=sys.stderr)
        raise
    places = [directory / entry.directory for entry in work.entries if entry.state == manifest.DONE]
    if places:
        print(kind.conclude(places))
        print(f"report:  {os.path.relpath(write_report(directory))}")
        figures = sorted((directory / "figures").glob("*.png"))
        print("figures: " + ", ".join(os.path.relpath(figure) for figure in figures[:3]) + " …" * (len(figures) > 3))
    print(f"cells:   {os.path.relpath(directory)}/{manifest.NAME}")
    return exit_code


def composed(overrides: Sequence[str]) -> tuple[DictConfig, Mapping[str, Any]]:
    """The configuration of one cell, and the name of the file chosen in every group. Raises `ConfigError`."""
    try:
        config = compose(config_name="config", overrides=list(overrides), return_hydra_config=True)
        choices = dict(config.hydra.runtime.choices)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_first_line(error)) from error
    with open_dict(config):
        del config.hydra
    return config, choices


def plain(config: DictConfig) -> dict[str, Any]:
    try:
        content = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from error
    assert isinstance(content, dict)
    return {str(name): value for name, value in content.items()}


def identity(config: DictConfig) -> dict[str, Any]:
    """The part of a cell's configuration that decides what is measured; directories are set later and not in it."""
    content = {name: value for name, value in plain(config).items() if name not in NOT_MEASURED}
    content["experiment"] = {name: value for name, value in content["experiment"].items() if name not in GRID}
    return content


def check_run(config: DictConfig, choices: Mapping[str, Any], directory: Path) -> Prepared:
    """Build and check all that a run needs, without Spark. Raises `ConfigError`."""
    endpoint = _start(build_part(config, "cluster"))
    settings = read_settings(config, directory, choices)
    return prepare(settings, endpoint.slots, vitals=directory / "vitals", executors=endpoint.executors)


def run_cell(config: DictConfig, choices: Mapping[str, Any], directory: Path, display: Display) -> Result:
    return experiments.run_result(measure(config, directory, choices, display))


def soak_cell(config: DictConfig, choices: Mapping[str, Any], directory: Path, display: Display) -> Result:
    """A long run under many faults, after which nothing may have grown."""
    run = measure(config, directory, choices, display)
    return experiments.soak_result(run, RunDirectory(directory).resources())


def conclude_soak(places: Sequence[Path]) -> str:
    found = [RunDirectory(place) for place in sorted(places)]
    return "\n" + aligned([soak.HEADER, *(soak.row(one.run(), one.resources()) for one in found)]) + "\n"


def conclude_runs(places: Sequence[Path]) -> str:
    """One line for each run if there are few; otherwise the report has them."""
    runs = sorted((RunDirectory(place).run() for place in places), key=lambda run: str(run["protocol"]))
    if len(runs) > MANY:
        return f"\n{len(runs)} runs are finished"
    first = runs[0]
    fault = "".join(f"; {fault['kind']} of {fault['role']}" for fault in first["faults"])
    alike = all((run["query"], run["rate_offered"]) == (first["query"], first["rate_offered"]) for run in runs)
    head = f"{first['query']}, {first['events']} events at {first['rate_offered']}/s" if alike else f"{len(runs)} runs"
    reasons = [f"  invalid, {run['protocol']}: {reason}" for run in runs for reason in run["invalid_reasons"]]
    repetitions = len({run["repetition"] for run in runs})
    tasks = f"{first['parallelism']} tasks per stage"
    return "\n".join([f"\n{head}, {tasks}{fault}; n={repetitions}\n", comparison(runs), *reasons, ""])


def check_log(config: DictConfig, choices: Mapping[str, Any], directory: Path) -> None:
    build_part(config, "log", path=str(directory / "log"))
    experiments.check_rates(config.experiment.rates, config.experiment.seconds_each)


def log_cell(config: DictConfig, choices: Mapping[str, Any], directory: Path, display: Display) -> Result:
    """The log alone, no Spark."""
    log = build_part(config, "log", path=str(directory / "log"))
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    display.say(
        f"{choices['log']}: {config.experiment.seconds_each} s for each of {config.experiment.rates} appends/s …"
    )
    try:
        return experiments.measure_log(log, config.experiment.rates, config.experiment.seconds_each, directory)
    finally:
        shutil.rmtree(directory / "log", ignore_errors=True)


def search_of(config: DictConfig) -> Search:
    names = Search.__dataclass_fields__
    try:
        return Search(**{name: value for name, value in plain(config.experiment).items() if name in names})
    except (TypeError, ValueError) as error:
        raise ConfigError(_first_line(error)) from error


def check_search(config: DictConfig, choices: Mapping[str, Any], directory: Path) -> None:
    config.rate = search_of(config).start_rate
    check_run(config, choices, directory)


def search_cell(config: DictConfig, choices: Mapping[str, Any], directory: Path, display: Display) -> Result:
    """The highest sustainable rate; every probe is a run with a directory of its own."""

    def probe(rate: int, place: Path) -> Mapping[str, Any]:
        config.rate = rate
        return measure(config, place, choices, display)

    return experiments.search_rate(search_of(config), probe, directory)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What the cells of an experiment are: how one is checked, how it is measured, what they say together."""

    check: Callable[[DictConfig, Mapping[str, Any], Path], Any]
    measure: Callable[[DictConfig, Mapping[str, Any], Path, Display], Result]
    conclude: Callable[[Sequence[Path]], str]


KINDS = {
    "run": Kind(check=check_run, measure=run_cell, conclude=conclude_runs),
    "soak": Kind(check=check_run, measure=soak_cell, conclude=conclude_soak),
    "log_latency": Kind(check=check_log, measure=log_cell, conclude=experiments.latency_table),
    "search": Kind(check=check_search, measure=search_cell, conclude=experiments.search_table),
}


def measure(
    config: DictConfig, directory: Path, choices: Mapping[str, Any], display: Display | None = None
) -> dict[str, Any]:
    """Run what the configuration says and leave it in a directory; `choices` names the config file of every group."""
    prepared = check_run(config, choices, directory)
    settings = prepared.settings
    if display is None:
        label = f"{settings.names['query']} {settings.names['protocol']}"
        display = Display(label, quiet=bool(config.quiet))
        display.say(f"{label}: {settings.total} events at {settings.rate}/s, {len(prepared.spec.roles())} roles; "
                    f"starting Spark …")  # fmt: skip
    spark = start_spark(_start(build_part(config, "cluster")))
    try:
        return execute(prepared, spark, directory, OmegaConf.to_yaml(config, resolve=True), display)
    finally:
        if not settings.keep_log:
            shutil.rmtree(directory / "log", ignore_errors=True)
        shutil.rmtree(directory / "vitals", ignore_errors=True)


def read_settings(config: DictConfig, directory: Path, choices: Mapping[str, Any]) -> Settings:
    """Build and check everything that the configuration names. Raises `ConfigError`."""
    content = plain(config)
    workload = build_part(config, "source")
    if isinstance(workload, Generator):
        duration_us = check_number("duration_s", content["duration_s"], 1e-3, 1e7) * 1e6
        workload = replace(workload, total=workload.count_before(int(duration_us)))
    return Settings(
        query=build_part(config, "query"),
        protocol=build_part(config, "protocol"),
        workload=workload,
        log=build_part(config, "log", path=str(directory / "log")),
        failure=build_part(config, "failure"),
        names={name: str(choices[name]) for name in NAMES},
        **{name: content[name] for name in Settings.__dataclass_fields__ if name in content and name not in PARTS},
    )


PARTS = ("query", "protocol", "workload", "log", "failure", "names")


BUILT: Mapping[str, type] = {
    "query": Query,
    "protocol": Protocol,
    "source": Workload,
    "log": LogSpec,
    "cluster": Cluster,
    "failure": Failure,
}


def build_part(config: DictConfig, name: str, **override: Any) -> Any:
    """One config group as the object it describes; whatever it objects to becomes a `ConfigError`."""
    try:
        group = config.get(name)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{name}: {_first_line(error)}") from error
    if not isinstance(group, DictConfig) or "_target_" not in group:
        raise ConfigError(f"{name} must be the name of a file in configs/{name}, got {str(group)[:80]!r}")
    try:
        part = instantiate(group, **override)
    except InstantiationException as error:
        cause = error.__cause__ or error
        raise ConfigError(f"{name}: {_first_line(cause)}") from error
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(f"{name}: {_first_line(error)}") from error
    if not isinstance(part, BUILT[name]):
        raise ConfigError(f"{name} makes a {type(part).__name__} and must make a {BUILT[name].__name__}")
    return part


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
    """The first line, and what Hydra's messages say further down about what to do: the choices, or how to add a key."""
    lines = [line.strip() for line in str(error).strip().split("\n") if line.strip()]
    heading = next((place for place, line in enumerate(lines) if line.startswith("Available options")), None)
    if heading is not None:
        choices = [line for line in lines[heading + 1 :] if " " not in line]
        return f"{lines[0]}; there are {', '.join(choices)}"
    return " ".join(line for place, line in enumerate(lines) if place == 0 or line.startswith("To append"))


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
