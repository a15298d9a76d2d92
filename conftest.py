"""Configuration of every test of the workspace; fixtures are in the packages that provide what they return."""

import logging
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no type information

# The time of an example depends on the machine's load; pytest-timeout ends an example that hangs.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

pytest_plugins = ["isotherm.stack.pytest_plugin", "isotherm.contracts.pytest_plugin"]


_SHARING_SPARK = {
    # With the plugin `aggregator_spark`.
    "services/aggregator/tests/unit/test_aggregator_class_archive.py": "spark",
    "services/aggregator/tests/unit/test_aggregator_exact_sum.py": "spark",
    "services/aggregator/tests/unit/test_aggregator_frames.py": "spark",
    "services/aggregator/tests/unit/test_aggregator_merging.py": "spark",
    "services/aggregator/tests/unit/test_aggregator_where.py": "spark",
    "services/aggregator/tests/unit/test_aggregator_window_sink.py": "spark",
    "services/aggregator/tests/integration/test_aggregator_examples.py": "spark",
    # With the messages of all providers, the aggregator's among them.
    "contracts-tests/tests/unit/test_contracts_examples.py": "contracts",
    "contracts-tests/tests/unit/test_contracts_mutations.py": "contracts",
    "contracts-tests/tests/unit/test_contracts_pacts.py": "contracts",
    "contracts-tests/tests/unit/test_contracts_recorded.py": "contracts",
    "contracts-tests/tests/unit/test_contracts_semantics.py": "contracts",
}
"""Test files that share one Spark, with the name of what they share."""


class OneSystemAtATime(LoadScopeScheduling):  # type: ignore[misc]  # for the same reason
    """Distributes test files among pytest-xdist's processes, and gives all e2e tests to one process.

    The tests of a file share the servers that its fixtures start; two processes would start them twice. So it is with
    the files that share one Spark. Two whole systems at a time need more than a small machine has.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/e2e/"):
            return "e2e"
        file = nodeid.partition("::")[0]
        return _SHARING_SPARK.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneSystemAtATime:
    """The scheduler of every run with `-n`."""
    return OneSystemAtATime(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With pytest-xdist: run the longest tests first, and keep tests that use much processor time apart."""
    if hasattr(config, "workerinput"):
        items.sort(key=_begins)


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
