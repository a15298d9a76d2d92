"""Shared by every test of the workspace; the fixtures live in the packages that can make what they give."""

import logging
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no type information

# How long an example takes says how busy the machine is; what hangs is ended by pytest-timeout.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

pytest_plugins = ["isotherm.stack.pytest_plugin", "isotherm.contracts.pytest_plugin"]


class OneSystemAtATime(LoadScopeScheduling):  # type: ignore[misc]  # for the same reason
    """Shares the tests among pytest-xdist's processes by file, and gives all whole systems (e2e) to one of them.

    A file's tests share what its fixtures start; between two processes everything would be started twice. Two whole
    systems at once take more than a small machine has.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "e2e" if nodeid.startswith("tests/e2e/") else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneSystemAtATime:
    """Used by every run with `-n`."""
    return OneSystemAtATime(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where pytest-xdist's processes share the tests, begin with the longest, and keep the busy apart."""
    if hasattr(config, "workerinput"):
        items.sort(key=_begins)


def _begins(item: pytest.Item) -> int:
    """The whole systems, in one process; beside their starts what needs no server; then what waits, then what works."""
    if item.get_closest_marker("e2e"):
        return 0
    if not item.get_closest_marker("integration"):
        return 1
    return 3 if item.nodeid.startswith(("services/aggregator/", "services/alerts/")) else 2


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
