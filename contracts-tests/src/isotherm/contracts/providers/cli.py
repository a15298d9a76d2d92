"""`isotherm devices import`: lines of JSON to records of devices."""

from __future__ import annotations

import json
from collections.abc import Mapping

from isotherm.cli import devices
from isotherm.contracts import seam
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

_LINES = (
    {
        "device_id": scenario.DEVICE,
        "home": "home-01",
        "room": "kitchen",
        "region": "north",
        "model": "T1",
        "attributes": {"floor": "3"},
    },
    {"device_id": scenario.OTHER_DEVICE},
    {"device_id": scenario.DEVICE, "home": "home-01", "thresholds": {"temperature.above": 26.5}},
)


def messages(harness: Harness) -> Mapping[str, Message]:
    """A device of which everything is known, one of which nothing is, and one with a threshold."""
    with seam.recorded_kafka(harness) as found:
        imported = devices.import_lines(map(json.dumps, _LINES), KafkaSettings(), RegistrySettings())
    assert not imported.problems
    known, unknown, bound = found
    return {scenario.DEVICE_KNOWN: known, scenario.DEVICE_UNKNOWN: unknown, scenario.DEVICE_BOUND: bound}
