"""The README shows a protocol in full. It is taken from there, put where it says, and crashed in the simulator."""

import re
import sys
from pathlib import Path

import pytest

import protocols
from protocols.base import Guarantee
from runners import simulated

README = Path(__file__).parents[2] / "README.md"


def blocks() -> dict[str, str]:
    """The README's code blocks that name their file in the first line."""
    found = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", README.read_text(), flags=re.DOTALL)
    return dict(found)


def test_the_example_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = blocks()
    assert sorted(shown) == ["configs/protocol/fenced.yaml", "protocols/fenced.py"]
    for name, text in shown.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(protocols, "__path__", [*protocols.__path__, str(tmp_path / "protocols")])
    monkeypatch.setattr(simulated, "CONFIGS", tmp_path / "configs" / "protocol")
    monkeypatch.delitem(sys.modules, "protocols.fenced", raising=False)
    assert simulated.protocol_names() == ["fenced"]
    protocol = simulated.load_protocol("fenced")
    assert protocol.guarantee is Guarantee.NONE
    outcomes = [simulated.run_seed(protocol, "windowed", seed) for seed in range(20)]
    assert [outcome.failure for outcome in outcomes] == [None] * 20
    assert not all(outcome.exact for outcome in outcomes), "it promises nothing, and that shows"
