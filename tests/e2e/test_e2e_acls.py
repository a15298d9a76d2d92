"""Every service does its job with its own Kafka principal and the ACLs of `isotherm acls`, and may do nothing else.

The broker has Kafka's StandardAuthorizer and allows nothing for which there is no ACL.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from acl_world import AclWorld, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AclWorld]:
    """The broker with its ACLs, and the topics, created with the principal that is for that."""
    made = AclWorld(tmp_path_factory.mktemp("acls"))
    try:
        made.isotherm("admin", "acls", "apply")
        with made.nothing_denied("apply"):
            made.isotherm("isotherm-apply", "apply")
        yield made
    finally:
        made.stop()


def reading(device: str, value: float, at_ms: int, sequence: int) -> dict[str, object]:
    """A reading of a thermostat."""
    return {
        "device_id": device,
        "metric": "temperature",
        "value": value,
        "unit": "Cel",
        "event_time": at_ms,
        "ingest_time": at_ms,
        "sequence": sequence,
        "attributes": {},
    }


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_mqtt_proxy(world: AclWorld) -> None:
    with world.nothing_denied("mqtt-proxy"), world.running("mqtt-proxy", "devices") as (proxy, devices):
        until("readings of both levels", lambda: len(world.records("thermostat.data")) > 100)
        proxy.kill()
        proxy.start()
        proxy.wait_ready()
        before = len(world.records("thermostat.data"))
        until("readings after the restart", lambda: len(world.records("thermostat.data")) > before + 50)
        devices.stop()
        levels = {dict(one.headers() or [])["mqtt.qos"] for one in world.messages("thermostat.data")}
    assert levels == {b"1", b"2"}


def test_coap_ingest(world: AclWorld) -> None:
    with world.nothing_denied("coap-ingest"), world.running("sensors", "coap-ingest"):
        until("notifications", lambda: len(world.records("coap_sensor_topic")) > 10)


def test_alerts(world: AclWorld) -> None:
    with world.nothing_denied("alerts"):
        with world.running("alerts"):
            world.put("thermostat.data", *(reading("hot", 35.0, now_ms() + n, n + 1) for n in range(3)), b"cut off")
            until("an alert", lambda: any(one["device_id"] == "hot" for one in world.records("alerts")))
            until("a dead letter", lambda: len(world.messages("alerts.dead-letters")) == 1)
        with world.running("alerts"):
            world.put("thermostat.data", reading("hot", 15.0, now_ms(), 9))
            until(
                "the end of the alert that the earlier process has opened",
                lambda: any((one["device_id"], one["state"]) == ("hot", "closed") for one in world.records("alerts")),
            )
