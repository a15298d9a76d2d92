"""What standalone services need of the console: their target state, and how often to restart."""

from __future__ import annotations

from pact import match

from isotherm.connector.distributed.publishing import CONNECTORS
from isotherm.connector.state.target_follower import READER, target_of
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, UnusableError, expect

SERVICES = ("aggregator", "alerts", "mqtt-proxy")


def reconciles(harness: Harness, found: Message) -> object:
    """Raise UnusableError unless a service can read its target state from the message."""
    record = harness.decode(found.value, READER)
    try:
        target = target_of(record)
    except ValueError as error:
        raise UnusableError(str(error)) from error
    # A service finds its connector's record by the key.
    expect("name", record["name"], found.key)
    return found.key, target


NEEDS = tuple(
    Need(
        service,
        provider,
        name,
        CONNECTORS,
        "ConnectorConfig",
        2,
        key=key,
        value={
            "name": key,
            "target_state": state,
            "restart_count": match.integer(0),
            "task_restarts": {"0": match.integer(1)} if name == scenario.RESTARTED else {},
        },
        process=reconciles,
    )
    for service in SERVICES
    for provider, name, key, state in (
        ("console", scenario.SERVICE_PAUSED, "aggregator", "PAUSED"),
        ("console", scenario.RESTARTED, "coap-to-hazelcast", "STARTED"),
        ("coap-ingest", scenario.CONNECTOR, "coap-source", "STARTED"),
    )
    # As a worker it needs more of the same record.
    if service != "mqtt-proxy" or name == scenario.SERVICE_PAUSED
)
