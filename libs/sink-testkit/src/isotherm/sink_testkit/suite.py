"""The checks as a pytest class: a test file derives from it and says what the sink under test is."""

from __future__ import annotations

from functools import cache

import pytest

from isotherm.sink_testkit.broker import MockBroker
from isotherm.sink_testkit.checks import CHECKS
from isotherm.sink_testkit.under_test import SinkUnderTest


@cache
def shared_broker() -> MockBroker:
    """Return the mock broker of this process; every trial has topics and groups of its own on it."""
    return MockBroker()


class SinkConformance:
    """Derive a class whose name begins with Test, with a fixture `under_test` that returns a SinkUnderTest."""

    @pytest.fixture
    def under_test(self) -> SinkUnderTest:
        """Return the sink under test; a derived class has its own."""
        raise NotImplementedError("the fixture `under_test` must return the sink under test")

    @pytest.mark.parametrize("check", CHECKS)
    def test_sink(self, check: str, under_test: SinkUnderTest) -> None:
        """One check."""
        CHECKS[check](under_test, shared_broker())
