"""Pytest fixtures of the contract tests: the harness, and the messages of every provider."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from isotherm.contracts.harness import Harness
    from isotherm.contracts.providers import Messages

# Every test of the workspace loads this file: what it needs of the services is imported by the tests that ask for it.

_harness: pytest.StashKey[Harness] = pytest.StashKey()


@pytest.fixture(scope="session")
def harness(pytestconfig: pytest.Config) -> Iterator[Harness]:
    """A harness with the catalog of this working tree."""
    from isotherm.contracts import schema_catalog
    from isotherm.contracts.harness import Harness

    os.environ["PACT_DO_NOT_TRACK"] = "true"
    with Harness(schema_catalog.current()) as opened:
        pytestconfig.stash[_harness] = opened
        yield opened


class Produced(Mapping[str, "Messages"]):
    """The messages of each provider; its real code makes them at their first use."""

    def __init__(self, harness: Harness) -> None:
        from isotherm.contracts.providers import PROVIDERS

        self._harness = harness
        self._providers = PROVIDERS
        self._made: dict[str, Messages] = {}

    def __getitem__(self, provider: str) -> Messages:
        if provider not in self._made:
            self._made[provider] = self._providers[provider](self._harness)
        return self._made[provider]

    def __iter__(self) -> Iterator[str]:
        return iter(self._providers)

    def __len__(self) -> int:
        return len(self._providers)


@pytest.fixture(scope="session")
def produced(harness: Harness) -> Produced:
    """The messages of every provider."""
    return Produced(harness)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop Spark after the last contract test: a process can have only one, and other tests start their own."""
    if nextitem is None or item.path.parent != nextitem.path.parent:
        harness = item.config.stash.get(_harness, None)
        if harness is not None:
            harness.stop_spark()
