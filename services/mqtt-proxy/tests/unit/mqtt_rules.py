"""Rules of translation with small bounds, for the tests of routes and payloads."""

from __future__ import annotations

from typing import Any

from isotherm.mqtt_proxy.ingest.translation import IngestRules

MOST_READINGS = 5
UNITS = {"temperature": "Cel", "brightness": "lx"}


def ingest_rules(**changes: Any) -> IngestRules:
    """Rules that let every invalid publish become a dead letter, with `changes`."""
    rules: dict[str, Any] = {
        "units": UNITS,
        "dead_letter_topic": "dead",
        "connector": "mqtt-proxy",
        "ordinal": 3,
        "drop_unrouted": False,
        "topic_bytes": 100,
        "readings_per_publish": MOST_READINGS,
    }
    return IngestRules(**rules | changes)
