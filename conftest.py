"""Shared by every test of the workspace; the fixtures live in the packages that can make what they give."""

import logging
from collections.abc import Iterator

import pytest

# Folders at the root that are named like the package in their src/: without this, pytest's importlib mode would
# take the folder for the package as soon as it imports a test below it.
import demo  # noqa: F401
import simulators  # noqa: F401

pytest_plugins = ["stack.pytest_plugin", "contracts.pytest_plugin"]


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    """A command that is run within a test sets up logging to a stderr that is closed when the test ends."""
    root = logging.getLogger()
    level, before = root.level, root.handlers[:]
    yield
    for handler in root.handlers[:]:
        if handler not in before and type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    root.setLevel(level)
