"""`isotherm devices import`: lines of JSON to records of devices."""

from __future__ import annotations

import json
from collections.abc import Mapping

from isotherm.cli import devices
from isotherm.contracts.harness import Harness, Message, RecordingProducer
from isotherm.contracts.pact import scenario

_LINES = (
    {"device_id": scenario.DEVICE, "home": "home-01", "room": "kitchen", "region": "north", "model": "T1"},
    {"device_id": scenario.OTHER_DEVICE},
)


def messages(harness: Harness) -> Mapping[str, Message]:
    """A device of which everything is known, and one of which nothing is."""
    recorder = RecordingProducer()
    encode = harness.registry.encoder(devices.TOPIC, devices.DEVICE)
    imported = devices.import_with(map(json.dumps, _LINES), encode, recorder.as_producer())
    assert not imported.problems
    known, unknown = recorder.messages
    return {scenario.DEVICE_KNOWN: known, scenario.DEVICE_UNKNOWN: unknown}
