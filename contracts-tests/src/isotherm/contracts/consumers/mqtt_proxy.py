"""What the MQTT proxy needs of a session that it, or its previous version, has stored."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from pact import match

from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, expect
from isotherm.contracts.partitions import murmur2_partition, partition_of
from isotherm.contracts.providers.alerts import PARTITIONS
from isotherm.contracts.providers.mqtt_proxy import IN_FLIGHT, SUBSCRIBED, WITH_WILL
from isotherm.mqtt_proxy.pod_service import CLAIMS
from isotherm.mqtt_proxy.pods.records import Keys
from isotherm.mqtt_proxy.pods.records import from_record as from_claims
from isotherm.mqtt_proxy.session_source import SESSION
from isotherm.mqtt_proxy.sessions.records import from_record, newest, to_record
from isotherm.mqtt_proxy.sessions.server_name import ServerName
from isotherm.mqtt_proxy.sessions.store import StoredState
from isotherm.servicekit.avro import Decoder


def _need(name: str, wanted: StoredState, **value: Any) -> Need:
    def restores(harness: Harness, found: Message) -> object:
        states = newest(_read(harness, found), ServerName("").client_of)
        restored = {client: from_record(Decoder(harness.registry, SESSION)(of).record) for client, of in states.items()}
        expect("sessions", restored, {"simulator-1": wanted})
        return restored

    value |= {"epoch": wanted.epoch, "expiry_s": wanted.expiry_s, "expires_at": wanted.expires_at_ms, "owner": 0}
    topic = "isotherm.mqtt.sessions"
    # The properties of a will are bytes with zeros among them, which end texts in a pact.
    pinned = ("will",)
    return Need(
        "mqtt-proxy",
        "mqtt-proxy",
        name,
        topic,
        "MqttSession",
        3,
        "simulator-1",
        value,
        restores,
        pinned=pinned,
        needs_partition=True,
    )


def _read(harness: Harness, found: Message) -> list[Any]:
    """The session's records as a start reads them: an earlier one stands behind, if it is in another partition."""
    earlier = to_record("simulator-1", StoredState(epoch=1, expiry_s=1), owner=0, now_ms=scenario.START_MS)
    # A version before knows no subscriptions.
    del earlier["subscriptions"]
    before = found._replace(key="simulator-1", value=harness.encode(found.topic, "MqttSession", 2, earlier))
    is_on_its_partition = partition_of(found, PARTITIONS) == murmur2_partition(found.key, PARTITIONS)
    records = [before, found] if is_on_its_partition else [found, before]
    return [SimpleNamespace(key=one.key.encode, value=partial(bytes, one.value)) for one in records]


def _reads_claim(harness: Harness, found: Message) -> object:
    record = from_claims(0, Decoder(harness.registry, CLAIMS)(found.value).record)
    expect("claim", record.messages[-1], ["claim", 64, "simulator-1", "kitchen", False])
    expect("key", found.key.encode().startswith(Keys(ServerName("")).prefix), True)
    return record


NEEDS = (
    Need(
        "mqtt-proxy",
        "mqtt-proxy",
        scenario.CLAIM,
        "isotherm.mqtt.claims",
        "MqttClaims",
        1,
        match.regex("\0pod\0mqtt-0/5f2b", regex=r"^\x00pod\x00.+$"),
        {"incarnation": "mqtt-0/5f2b", "messages": ['["beat"]', '["claim",64,"simulator-1","kitchen",false]']},
        _reads_claim,
    ),
    _need(
        scenario.SESSION,
        IN_FLIGHT,
        committed=[{"packet_id": 7, "crc32": 2_771_284_651}],
        subscriptions=[],
        # A version before has neither user nor will.
        username=None,
        will=None,
    ),
    _need(
        scenario.SESSION_WITH_WILL,
        WITH_WILL,
        committed=[],
        subscriptions=[],
        username="kitchen",
        will={
            "topic": "devices/dev-0001/gone",
            "payload": "bye",
            "qos": 1,
            "retain": True,
            "due_at": scenario.START_MS,
        },
    ),
    _need(
        scenario.SESSION_SUBSCRIBED,
        SUBSCRIBED,
        committed=[],
        subscriptions=[{"topic_filter": "devices/dev-0001/commands/#", "qos": 1, "subscription_id": 7}],
        username=None,
        will=None,
    ),
)
