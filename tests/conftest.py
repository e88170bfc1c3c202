"""One Spark session for all tests of a pytest run: the one that `run.py` would start."""

from collections.abc import Iterator
from typing import Any

import pytest

from infra.cluster import Local


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Whole runs inside the same pytest process find this session and use it too, so it has their slots and retries."""
    from run import start_spark

    session = start_spark(Local().start())
    yield session
    session.stop()
