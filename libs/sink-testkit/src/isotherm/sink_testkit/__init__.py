"""What every sink of the persisters must do, as checks that take any sink: `suite.SinkConformance` runs them in pytest.

A task of the persisters (the real loop, on librdkafka's mock broker) writes into the store of the sink under test, and
each check compares what the store then holds with what the records ask for. It may import the persisters, as a tool
that stands on them; nothing of the suite imports it but tests.
"""

from __future__ import annotations

from isotherm.sink_testkit.suite import SinkConformance
from isotherm.sink_testkit.under_test import SinkUnderTest

__all__ = ["SinkConformance", "SinkUnderTest"]
