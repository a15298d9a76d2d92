"""What the MQTT proxy needs of a session that it, or its previous version, has stored."""

from __future__ import annotations

from dataclasses import replace

from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, expect
from isotherm.mqtt_proxy.service import SESSION
from isotherm.mqtt_proxy.sessions.records import from_record
from isotherm.mqtt_proxy.sessions.store import StoredState
from isotherm.servicekit.avro import Decoder


def _restores(harness: Harness, found: Message) -> None:
    state = from_record(Decoder(harness.registry, SESSION)(found.value).record)
    wanted = StoredState(epoch=3, expiry_s=86_400, expires_at_ms=scenario.START_MS, committed={7: 2_771_284_651})
    # A version before has neither user nor will.
    expect("session", replace(state, username=None, will=None, will_due_ms=None), wanted)


NEEDS = (
    Need(
        "mqtt-proxy",
        "mqtt-proxy",
        scenario.SESSION,
        "isotherm.mqtt.sessions",
        "MqttSession",
        2,
        key="simulator-1",
        value={
            "epoch": 3,
            "committed": [{"packet_id": 7, "crc32": 2_771_284_651}],
            "expiry_s": 86_400,
            "expires_at": scenario.START_MS,
        },
        process=_restores,
    ),
)
