"""Query parameters: the configs hold the reference's defaults, and bad values are refused on the driver."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from nexmark.errors import ParameterError
from nexmark.parameters import Q1, Q2, Q3, Q4, Q5, Q6, Q7, Q8, QUERIES

CONFIGS = Path(__file__).parents[2] / "configs" / "query"


@pytest.mark.parametrize("name", QUERIES)
def test_configs_are_complete_and_hold_the_defaults(name: str) -> None:
    config = OmegaConf.load(CONFIGS / f"{name}.yaml")
    query = instantiate(config)
    assert query == QUERIES[name]()
    assert query.name == name
    parameters = {field.name for field in fields(query)}
    assert set(config) - {"_target_", "_convert_"} == parameters, "every parameter can be seen in its file"


def test_every_config_is_a_query() -> None:
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(QUERIES)


@pytest.mark.parametrize(
    ("query", "parameters", "message"),
    [
        (Q1, {"rate_numerator": 0.908}, "q1: rate_numerator must be a whole number"),
        (Q2, {"modulus": 0}, "q2: modulus must be at least 1"),
        (Q3, {"states": "OR"}, "q3: states must be a list of strings"),
        (Q3, {"states": [True, "CA"]}, "q3: states must be a list of strings"),
        (Q3, {"states": []}, "q3: states must be a list of strings"),
        (Q4, {"grace_us": -1}, "q4: grace_us must be at least 0"),
        (Q5, {"window_us": 5, "slide_us": 6}, "set slide_us to at most 5"),
        (Q6, {"rows": 0}, "q6: rows must be at least 1"),
        (Q7, {"window_us": 1e7}, "q7: window_us must be a whole number"),
        (Q8, {"limit_ms": True}, "q8: limit_ms must be a whole number"),
    ],
)
def test_bad_parameters_are_refused(query: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        query(**parameters)


def test_limits() -> None:
    assert Q1().visible_limit_ms(100) == 160
    assert Q5().visible_limit_ms(100) == 1000
