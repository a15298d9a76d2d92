"""Shared by every test of the workspace; the fixtures live in the packages that can make what they give."""

import logging
from collections.abc import Iterator

import pytest

# Folders at the root that are named like the package in their src/: without this, pytest's importlib mode would
# take the folder for the package as soon as it imports a test below it.
import demo  # noqa: F401
import simulators  # noqa: F401

pytest_plugins = ["stack.pytest_plugin", "contracts.pytest_plugin"]


# Before pytest-xdist's own, which writes the groups into the tests' names.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where pytest-xdist's processes share the tests, keep each file's together and begin with the longest.

    A file's tests share what its fixtures start; between two processes everything would be started twice. Of whole
    systems (e2e) there is one at a time: two of them take more than a small machine has.
    """
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        item.add_marker(pytest.mark.xdist_group("e2e" if item.get_closest_marker("e2e") else item.path.stem))
    items.sort(key=_begins)


def _begins(item: pytest.Item) -> int:
    kinds = ["e2e", "integration"]
    return next((place for place, kind in enumerate(kinds) if item.get_closest_marker(kind)), len(kinds))


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
