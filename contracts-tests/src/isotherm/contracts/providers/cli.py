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
    {"device_id": scenario.DEVICE, "home": "home-01", "room": "kitchen", "region": "north", "model": "T1"},
    {"device_id": scenario.OTHER_DEVICE},
    {"device_id": scenario.DEVICE, "home": "home-01", "thresholds": {"temperature.above": 26.5}},
    {"device_id": scenario.DEVICE, "home": "home-01", "attributes": {"floor": "3"}},
)


def messages(harness: Harness) -> Mapping[str, Message]:
    """A device with its place, one of unknown place, one with a threshold, and one with an attribute of its own."""
    with seam.recorded_kafka(harness) as found:
        imported = devices.import_lines(map(json.dumps, _LINES), KafkaSettings(), RegistrySettings())
    assert not imported.problems
    names = scenario.DEVICE_KNOWN, scenario.DEVICE_UNKNOWN, scenario.DEVICE_BOUND, scenario.DEVICE_ATTRIBUTES
    return dict(zip(names, found, strict=True))
