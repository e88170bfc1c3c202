"""The runtime knows no protocol by name: neither by import nor as a string."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in (ROOT / "configs" / "protocol").glob("*.yaml"))
MODULES = sorted(
    path for package in ("runners", "dataflow", "sharedlog", "nexmark") for path in ROOT.glob(f"{package}/**/*.py")
)
SHARED = {"protocols.base", "protocols.inbox", "protocols.outbox"}


def offences(source: str) -> list[str]:
    """Imports of a protocol's module, and strings that are a protocol's name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        imported = []
        if isinstance(node, ast.ImportFrom) and node.module:
            imported = [node.module]
        elif isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and node.value in NAMES:
            found.append(f"line {node.lineno}: the string {node.value!r}")
        found += [f"line {node.lineno}: imports {name}" for name in imported
                  if name.startswith("protocols.") and name not in SHARED]  # fmt: skip
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_protocol_is_named(path: Path) -> None:
    assert offences(path.read_text()) == []


def test_the_check_finds_a_leak() -> None:
    assert len(NAMES) >= 5
    assert offences(f"if protocol == {NAMES[0]!r}:\n    pass")
    assert offences(f"from protocols.{NAMES[0]} import Task")
