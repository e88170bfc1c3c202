"""Whatever stands in a configuration: it is either fine or refused in one clear sentence. Never a traceback."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf, open_dict

from run import check_run
from runners.settings import ConfigError
from tests.bench.harness import composed, protocols

NASTY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(["", "fast", "???", "-1", "1e400", "nan", "../../..", "\x00", "ß" * 300, "${rate}", "${nothing}"]),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.sampled_from(["kind", "at_s", "x"]), st.integers(), max_size=2),
)
FAILURES = sorted(path.stem for path in (Path(__file__).parents[2] / "configs" / "failure").glob("*.yaml"))
QUERIES = [f"q{number}" for number in range(1, 9)]


def leaves(config: DictConfig) -> list[str]:
    """Every place in a configuration that a command line could set, as a dotted path. Targets are not the user's."""

    def walk(node: Any, path: str) -> list[str]:
        if isinstance(node, dict):
            inside = [leaf for name, value in node.items() for leaf in walk(value, f"{path}.{name}" if path else name)]
            return [*inside, path] if path else inside
        return [path]

    plain = OmegaConf.to_container(config, resolve=False)
    return [leaf for leaf in walk(plain, "") if "_target_" not in leaf and "_convert_" not in leaf]


def refuse_or_accept(config: DictConfig, choices: dict[str, Any], directory: Path) -> None:
    try:
        check_run(config, choices, directory)
    except ConfigError as error:
        said = str(error)
        assert said.strip(), "an empty message helps nobody"
        assert "\n" not in said
        assert "Traceback" not in said


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_nasty_value_anywhere(data: st.DataObject, tmp_path: Path) -> None:
    overrides = [
        f"query={data.draw(st.sampled_from(QUERIES))}",
        f"protocol={data.draw(st.sampled_from(protocols()))}",
        f"failure={data.draw(st.sampled_from(FAILURES))}",
        f"source={data.draw(st.sampled_from(['generator', 'replay']))}",
        f"cluster={data.draw(st.sampled_from(['local', 'local_cluster']))}",
    ]
    config, choices = composed(*overrides)
    leaf = data.draw(st.sampled_from(leaves(config)))
    value = data.draw(NASTY)
    with open_dict(config):
        OmegaConf.update(config, leaf, value, merge=False, force_add=True)
    refuse_or_accept(config, choices, tmp_path)


@pytest.mark.parametrize("group", ["query", "protocol", "failure", "source", "log", "cluster"])
def test_a_key_that_nobody_knows(group: str, tmp_path: Path) -> None:
    config, choices = composed()
    with open_dict(config):
        config[group]["colour"] = "red"
    with pytest.raises(ConfigError, match="colour"):
        check_run(config, choices, tmp_path)


@pytest.mark.parametrize(
    "override",
    [
        "parallelism=10000000",  # once made ten million names of roles, and 13 GB, before the slots were counted
        "sources=10000000",
        "protocol.coordinator_count=10000000",
        "protocol.coordinator_count=1.5",
        "cluster.executors=1.5",
        "cluster.executors=1099511627776",
        "query.window_us=1099511627776",  # not made of whole slides: once a traceback
    ],
)
def test_found_by_fuzzing(override: str, tmp_path: Path) -> None:
    config, choices = composed("query=q5", "protocol=transactions", "cluster=local_cluster", override)
    with pytest.raises(ConfigError, match=override.partition("=")[0].split(".")[-1].partition("_")[0]):
        check_run(config, choices, tmp_path)
