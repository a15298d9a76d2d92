"""Each provider's messages, by the name that pacts call them: real code makes them, down to the bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.providers import (
    aggregator,
    alerts,
    cli,
    coap_ingest,
    console,
    mqtt_proxy,
    persisters,
)

Messages = Mapping[str, Message]

PROVIDERS: Mapping[str, Callable[[Harness], Messages]] = {
    "mqtt-proxy": mqtt_proxy.messages,
    "coap-ingest": coap_ingest.messages,
    "aggregator": aggregator.messages,
    "persisters": persisters.messages,
    "alerts": alerts.messages,
    "cli": cli.messages,
    "console": console.messages,
}
"""By service name."""
