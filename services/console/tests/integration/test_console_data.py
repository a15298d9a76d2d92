"""Topics, devices and alerts as the console shows them, on real servers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from console_world import WAIT_S, Console, World, until

import isotherm.schemas
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients

pytest_plugins = ("console_fixtures",)
pytestmark = pytest.mark.integration

READINGS, WINDOWS, STATES, ALERTS = "thermostat.data", "temperatures.aggregated", "devices.latest", "alerts"
DEVICES = "devices"
CONNECTORS = "isotherm.connectors"
RECORDS = {
    READINGS: "SensorReading",
    WINDOWS: "TemperatureAggregate",
    STATES: "DeviceState",
    ALERTS: "Alert",
    DEVICES: "Device",
}
MINUTE_MS = 60_000


class Writer:
    """Writes records as the services do."""

    def __init__(self, world: World) -> None:
        self._schemas = SchemaRegistry(world.registry)
        self.producer: Producer = clients.producer(world.kafka, "test")

    def encoded(self, topic: str, **changed: Any) -> bytes:
        """An example of a topic's record, changed."""
        versions = {CONNECTORS: ("ConnectorConfig", 2), ALERTS: ("Alert", 2)}
        record, version = versions.get(topic) or (RECORDS[topic], 1)
        value = {**isotherm.schemas.examples(topic)[0].value, **changed}
        return self._schemas.encoder(topic, isotherm.schemas.schema(record, version))(value)

    def put(self, topic: str, key: str, **changed: Any) -> None:
        self.producer.produce(topic, key=key, value=self.encoded(topic, **changed))

    def flush(self) -> None:
        assert self.producer.flush(WAIT_S) == 0


@pytest.fixture(scope="module")
def writer(world: World) -> Writer:
    return Writer(world)


def served(console: Console, path: str, asked: Mapping[str, Any]) -> httpx.Response:
    """The answer, when Kafka has time for it: 503 means that the same request may succeed later."""
    answers: list[httpx.Response] = []

    def is_served() -> bool:
        answers.append(console.http.get(path, params=asked))
        return answers[-1].status_code != httpx.codes.SERVICE_UNAVAILABLE

    until(f"{path} is served", is_served, console.log)
    assert answers[-1].status_code == httpx.codes.OK, answers[-1].text + console.log()
    return answers[-1]


def got(console: Console, path: str, **asked: Any) -> Any:
    return served(console, f"/isotherm/{path}", asked).json()


def page(console: Console, path: str, **asked: Any) -> str:
    return served(console, f"/ui/{path}", asked).text


def test_a_topic_is_browsed_without_aborted_records(world: World, console: Console, writer: Writer) -> None:
    topic = world.topic(f"data-{uuid.uuid4().hex[:8]}")
    producer = clients.producer(world.kafka, "test", transactional_id=topic)
    producer.init_transactions(WAIT_S)
    for n in range(0, 40, 10):
        # Transaction markers and aborted records are offsets without a record.
        producer.begin_transaction()
        for one in range(n, n + 10):
            value = writer.encoded(READINGS, device_id=f"dev-{one}", value=float(one))
            producer.produce(topic, key=f"dev-{one}", value=value)
        # What was not sent yet would not be aborted, but never be there.
        assert producer.flush(WAIT_S) == 0
        if n == 10:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    world.produce(topic, b"poison")

    expected = [*range(10), *range(20, 40)]
    seen: list[Mapping[str, Any]] = []
    before: Mapping[str, str] = {}
    while True:
        found = got(console, f"topics/{topic}/records", limit=7, **before)
        seen += found["records"]
        if found["older"] is None:
            break
        before = {"before": found["older"]}
    poison, *good = seen
    assert [one["value"]["value"] for one in reversed(good)] == [float(n) for n in expected]
    assert (poison["value"], poison["key"], poison["error"]) == ("poison", "k", None), "nobody said what it should be"
    assert len({one["offset"] for one in seen}) == len(seen)

    (only,) = got(console, f"topics/{topic}/records", text='"DEV-27"')["records"]
    assert only["key"] == "dev-27"
    since = got(console, f"topics/{topic}/records", limit=500, **{"from": f"@{only['timestamp']}"})["records"]
    # A transaction's marker has a time, too, and may be what is so young first.
    assert since == seen[: len(since)]
    assert [one for one in since if one["timestamp"] >= only["timestamp"]] == [
        one for one in seen if one["timestamp"] >= only["timestamp"]
    ]
    later = f"@{int(time.time() * 1000) + 60 * MINUTE_MS}"
    assert got(console, f"topics/{topic}/records", **{"from": later})["records"] == []
    detail = page(console, f"topics/{topic}/0/{only['offset']}")
    assert '"device_id": "dev-27"' in detail
    assert "poison" in page(console, f"topics/{topic}")
    listed = {one["name"]: one for one in got(console, "topics")}
    assert listed[topic]["max_records"] >= len(seen)
    assert not any(name.startswith("__") for name in listed)
    assert console.http.get("/isotherm/topics/__consumer_offsets/records").status_code == 400
    groups = world.admin.list_consumer_groups().result(WAIT_S).valid
    assert not any(one.group_id.startswith("console-") for one in groups), "nothing is read in a group"


def test_no_secret_of_a_connector_can_be_read_or_searched_for(world: World, console: Console, writer: Writer) -> None:
    name = f"secret-{uuid.uuid4().hex[:8]}"
    config = {"name": name, "connector.class": "some.Class", "its.password": "hunter22", "its.key": "hunter33"}
    writer.put(CONNECTORS, name, name=name, connector_class="some.Class", config=config)
    writer.producer.produce(CONNECTORS, key=name, value=b'{"config": {"its.password": "hunter22"}}')
    writer.flush()
    try:
        broken, shown = got(console, f"topics/{CONNECTORS}/records", text=name)["records"]
        assert (broken["format"], broken["value"], broken["value_base64"]) == ("withheld", None, None)
        assert shown["value"]["config"] == config | {"its.password": "******", "its.key": "******"}
        assert got(console, f"topics/{CONNECTORS}/records", text="hunter")["records"] == []
        for path in ("", f"/0/{broken['offset']}", f"/0/{shown['offset']}"):
            assert "hunter" not in page(console, f"topics/{CONNECTORS}{path}")
    finally:
        writer.producer.produce(CONNECTORS, key=name, value=None)
        writer.flush()


def test_a_provisioned_device_is_known_until_it_is_removed(console: Console, writer: Writer) -> None:
    home = uuid.uuid4().hex[:8]
    devices = [f"{home}-{n}" for n in range(3)]
    for device in devices:
        writer.put(DEVICES, device, device_id=device, home=home)
    # One of them has spoken, and a fourth one that nobody has made known.
    unknown = f"{home}-3"
    for device in (devices[1], unknown):
        writer.put(STATES, device, device_id=device)
    writer.flush()

    def told() -> list[tuple[str, bool, str | None]]:
        found = got(console, "devices", text=home)["devices"]
        return [(one["device_id"], one["reported"], (one["provisioned"] or {}).get("home")) for one in found]

    expected = [(devices[0], False, home), (devices[1], True, home), (devices[2], False, home), (unknown, True, None)]
    until("all four are known", lambda: told() == expected, console.log)
    assert page(console, "devices", text=home).count("never reported</td>") == 2
    assert "has never reported" in page(console, f"devices/{devices[0]}")

    writer.producer.produce(DEVICES, key=devices[0], value=None)
    writer.flush()
    until("the removed one is gone", lambda: told() == expected[1:], console.log)


def test_a_device_has_its_values_its_windows_and_its_alerts(console: Console, writer: Writer) -> None:
    device = f"kitchen/|{uuid.uuid4().hex[:8]}"
    escaped = device.replace("|", "%7C")
    begin_ms = int(time.time() * 1000) // MINUTE_MS * MINUTE_MS - 20 * MINUTE_MS
    window: dict[str, Any] = {"device_id": device, "revision": 1}
    for n in range(12):
        start_ms = begin_ms + n * MINUTE_MS
        span = {"window_start": start_ms, "window_end": start_ms + MINUTE_MS}
        numbers = {"mean": 20.0 + n, "min": 19.0 + n, "max": 21.0 + n}
        key = f"{escaped}|temperature|{start_ms}|{start_ms + MINUTE_MS}"
        writer.put(WINDOWS, key, **window, **span, **numbers)
        writer.put(WINDOWS, "x" + key, **window | {"device_id": "x" + device}, **span, **numbers)
        if n == 5:
            writer.put(WINDOWS, key, **window | {"revision": 2}, **span, **numbers | {"mean": 20.5})
    writer.producer.produce(WINDOWS, key=f"{escaped}|poison", value=b"poison")
    writer.put(STATES, device, device_id=device, last_seen=begin_ms)
    writer.producer.produce(STATES, key=f"{device}-broken", value=b"poison")
    opened: dict[str, Any] = {"device_id": device, "opened_at": begin_ms, "state": "opened", "closed_at": None}
    opened |= {"severity": "critical", "message": "it is <hot>"}
    writer.put(ALERTS, device, alert_id=f"{device}/1", **opened)
    writer.put(ALERTS, device, alert_id=f"{device}/2", **opened)
    writer.put(ALERTS, device, alert_id=f"{device}/2", **opened | {"state": "closed", "closed_at": begin_ms + 1})
    writer.producer.produce(ALERTS, key=device, value=b"poison")
    writer.flush()

    def is_known() -> bool:
        states = [one["device_id"] for one in got(console, "devices", text=device[8:])["devices"]]
        alerts = [one["state"] for one in got(console, f"devices/{device}/alerts")["alerts"]]
        return (states, alerts) == ([device, f"{device}-broken"], ["opened", "closed"])

    until("the device and its alerts are known", is_known, console.log)
    assert got(console, f"devices/{device}")["latest"]["temperature"]["value"] == 21.5
    assert "magic byte" in got(console, f"devices/{device}-broken")["error"]
    found = got(console, f"devices/{device}/windows")
    assert list(found["metrics"]) == ["temperature"]
    assert [one["mean"] for one in found["metrics"]["temperature"]] == [20.5 if n == 5 else 20.0 + n for n in range(12)]
    assert (found["unreadable"], found["is_cut"]) == (1, False)

    shown = page(console, f"devices/{device.replace('/', '%2F').replace('|', '%7C')}")
    for expected in ('class="band"', "12 windows", "it is &lt;hot&gt;", "Closed alerts", "21.5"):
        assert expected in shown
    alerts = page(console, "alerts", text=device[8:])
    assert alerts.index("critical") < alerts.index("Recently closed")
    assert device in page(console, "devices", text=device[8:])
    assert "record cannot be used" in console.log(), "a record that is not an alert is logged and skipped"
