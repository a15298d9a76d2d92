"""Pytest fixtures of the contract tests: real code on a bench, and what every provider makes with it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from isotherm.contracts.bench import Bench
    from isotherm.contracts.providers import Messages

# Every test of the workspace loads this file: what it needs of the services is imported by the tests that ask for it.

_bench: pytest.StashKey[Bench] = pytest.StashKey()


@pytest.fixture(scope="session")
def bench(pytestconfig: pytest.Config) -> Iterator[Bench]:
    """A bench with the book of this working tree."""
    from isotherm.contracts.bench import Bench
    from isotherm.contracts import schema_versions

    os.environ["PACT_DO_NOT_TRACK"] = "true"
    with Bench(schema_versions.current()) as opened:
        pytestconfig.stash[_bench] = opened
        yield opened


class Produced(Mapping[str, "Messages"]):
    """The messages of each provider, made by its real code when they are first asked for."""

    def __init__(self, bench: Bench) -> None:
        from isotherm.contracts.providers import PROVIDERS

        self._bench = bench
        self._providers = PROVIDERS
        self._made: dict[str, Messages] = {}

    def __getitem__(self, provider: str) -> Messages:
        if provider not in self._made:
            self._made[provider] = self._providers[provider](self._bench)
        return self._made[provider]

    def __iter__(self) -> Iterator[str]:
        return iter(self._providers)

    def __len__(self) -> int:
        return len(self._providers)


@pytest.fixture(scope="session")
def produced(bench: Bench) -> Produced:
    """The messages of every provider."""
    return Produced(bench)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop Spark behind the last contract test: a process can have one only, and other tests start their own."""
    if nextitem is None or item.path.parent != nextitem.path.parent:
        bench = item.config.stash.get(_bench, None)
        if bench is not None:
            bench.stop_spark()
