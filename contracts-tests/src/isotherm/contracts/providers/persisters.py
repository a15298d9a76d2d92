"""What a persister publishes about itself on the control topics, with the Hazelcast connector of the demo."""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.connector.config import files
from isotherm.connector.distributed.publishing import announcements
from isotherm.connector.state.status import State
from isotherm.contracts.harness import (
    Harness,
    Message,
    heartbeat,
    message,
)
from isotherm.contracts.pact import scenario
from isotherm.contracts.paths import EXAMPLES
from isotherm.persisters.sinks.catalog import KINDS


def messages(harness: Harness) -> Mapping[str, Message]:
    """A heartbeat, the connector's configuration and its class."""
    connector = files.read(EXAMPLES / "demo" / "coap-to-hazelcast.properties")
    beat = heartbeat(
        harness, connector.name, State.RUNNING, lambda: {"read": 3, "written": 3}, lambda: {"coap_sensor_topic-0": 0}
    )
    owned, plugin = announcements(harness.registry, connector, KINDS["hazelcast"].definition, version="0.9.0")
    return {
        scenario.HEARTBEAT: beat,
        scenario.CONNECTOR: message(*owned),
        scenario.PLUGIN: message(*plugin),
    }
