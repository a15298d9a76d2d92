"""Configuration of every test of the workspace; fixtures are in the packages that provide what they return."""

import gc
import logging
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no type information

# The time of an example depends on the machine's load; pytest-timeout ends an example that hangs.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

pytest_plugins = ["isotherm.stack.pytest_plugin", "isotherm.contracts.pytest_plugin"]


_SHARING_MESSAGES = {
    "contracts-tests/tests/unit/test_contracts_examples.py",
    "contracts-tests/tests/unit/test_contracts_mutations.py",
    "contracts-tests/tests/unit/test_contracts_pacts.py",
    "contracts-tests/tests/unit/test_contracts_recorded.py",
    "contracts-tests/tests/unit/test_contracts_semantics.py",
}
"""Test files that share the messages of all providers, and so the one Spark that makes the aggregator's."""


_SPARK_PLUGIN = re.compile(r"^pytest_plugins = .*\"aggregator_spark\"", re.MULTILINE)


class OneSystemAtATime(LoadScopeScheduling):  # type: ignore[misc]  # for the same reason
    """Distributes test files among pytest-xdist's processes, and gives all e2e tests to one process.

    The tests of a file share the servers that its fixtures start; two processes would start them twice. So it is with
    the files that share one Spark. Two whole systems at a time need more than a small machine has.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/e2e/"):
            return "e2e"
        file = nodeid.partition("::")[0]
        if file in _SHARING_MESSAGES:
            return "messages"
        return "spark" if _shares_spark(self.config.rootpath / file) else file


@cache
def _shares_spark(file: Path) -> bool:
    """Whether a test file has the plugin `aggregator_spark`."""
    return _SPARK_PLUGIN.search(file.read_text()) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneSystemAtATime:
    """The scheduler of every run with `-n`."""
    return OneSystemAtATime(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With pytest-xdist: run the longest tests first, and keep tests that use much processor time apart."""
    if hasattr(config, "workerinput"):
        items.sort(key=_begins)


def pytest_collection_finish() -> None:
    """Take what the collection made out of the garbage collector: it stays, and is hundreds of megabytes."""
    gc.collect()
    gc.freeze()


def _begins(item: pytest.Item) -> int:
    """The rank of a test: e2e, without servers, mostly waiting, or with much use of the processor."""
    if item.get_closest_marker("e2e"):
        return 0
    if not item.get_closest_marker("integration"):
        return 1
    return 3 if item.nodeid.startswith(("services/aggregator/", "services/alerts/")) else 2


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    """Restore the root logger: a command in a test configures logging to a stderr that closes when the test ends."""
    root = logging.getLogger()
    level, before = root.level, root.handlers[:]
    yield
    for handler in root.handlers[:]:
        if handler not in before and type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    root.setLevel(level)
