"""Fixtures of the tests of the bridge, a pytest plugin of their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mosquitto_broker import Broker


@pytest.fixture
def mosquitto(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Broker]:
    """A broker of this test's own, running."""
    made = Broker(tmp_path, free_port(), free_port())
    made.start()
    yield made
    made.kill()
