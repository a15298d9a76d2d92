"""The service against real peers: our simulator and libcoap's coap-server here, Kafka and registry there."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from coap_world import BOTH, READINGS, TIMEOUT_S, World, dead_letter_topic, messages_in, opened, readings_in, sent, stop

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration


@pytest.fixture
def world(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[World]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


def constant_fields(world: World) -> dict[str, Any]:
    """The fields of a CoapMessage that are the same in every message of the simulator's first registration."""
    return {
        "type": "ACK",
        "code": "2.05",
        "raw_code": 69,
        "is_last": True,
        "is_notification": True,
        "source": world.authority,
        "is_duplicate": False,
        "is_confirmable": False,
        "is_rejected": False,
        "is_acknowledged": False,
        "is_canceled": False,
        "accept": -1,
        "block1": "",
        "block2": "",
        "content_format": 0,
        "etags": [],
        "location_path": "",
        "location_query": "",
        "max_age": 2,
        "proxy_uri": None,
        "size_1": None,
        "size_2": None,
        "uri_host": "localhost",
        "uri_port": world.port,
        "uri_path": "sensors",
        "uri_query": "",
        "payload_base64": None,
    }


def test_every_notification_that_was_sent_is_a_message_and_a_reading_field_by_field(world: World) -> None:
    reader = world.reader("coap_sensor_topic", "thermostat.data")
    simulator = world.simulator("--rate", "50", "--max-age", "2")
    ingest = world.ingest(BOTH.format("sensors"))
    reader.until(lambda seen: len(seen) >= 120)
    reader.until(lambda _: not world.ready())
    assert stop(ingest) == 0
    written = len(sent(world.ledger))
    assert stop(simulator) == 0
    records = reader.rest()

    # The service cancelled the observation before it ended, so the simulator sent nothing more.
    assert len(sent(world.ledger)) == written
    assert messages_in(records) == sent(world.ledger)
    assert Counter(readings_in(records)) == Counter(sent(world.ledger))

    first, later = [record for record in records if record.topic == "coap_sensor_topic"][:2]
    assert first.key == later.key == f"coap://{world.authority}/sensors"
    now = datetime.now(UTC)
    assert abs((now - first.value.pop("ingest_time")).total_seconds()) < 60
    assert abs(now.timestamp() - first.value.pop("timestamp") / 1000) < 60
    assert first.value.pop("message_id") in range(65536)
    assert bytes.fromhex(first.value.pop("token"))
    assert 0 <= first.value.pop("rtt") < 10_000
    assert first.value.pop("destination").startswith("127.0.0.1:")
    assert set(json.loads(first.value.pop("payload"))) == {"sensorId", "timestamp", "temperature", "message"}
    number = first.value.pop("observe")
    assert later.value["observe"] == number + 1
    assert later.value["type"] == "NON"
    assert first.value == constant_fields(world)
    reading = next(r for r in records if r.topic == "thermostat.data")
    assert reading.key == reading.value["device_id"]
    assert (reading.value["metric"], reading.value["unit"]) == ("temperature", "Cel")
    assert reading.headers["coap.content_format"] == "0"


def test_a_restarted_server_is_observed_again_the_gap_is_counted_and_nothing_is_stored_twice(world: World) -> None:
    reader = world.reader("coap_sensor_topic", "thermostat.data")
    world.ingest(BOTH.format("sensors"))
    simulator = world.simulator("--rate", "40", "--confirmable")
    reader.until(lambda seen: len(seen) >= 60)
    simulator.kill()
    simulator.wait()
    reader.until(lambda _: world.metric("interruptions_total") >= 1)
    assert world.ready()
    restarted_ms = time.time_ns() // 1_000_000
    again = world.simulator("--rate", "40", "--confirmable")
    records = reader.until(lambda seen: [ms > restarted_ms for _, ms, _ in readings_in(seen)].count(True) >= 60)

    reader.until(lambda _: not world.ready())
    assert world.metric("missed_notifications_total") == 0
    assert stop(again) == 0
    assert max(Counter(readings_in(records)).values()) == 1
    assert max(Counter(messages_in(records)).values()) == 1
    times = [time_ms for _, time_ms, _ in messages_in(records)]
    assert times == sorted(times)


def test_a_killed_service_observes_again_after_its_restart(world: World) -> None:
    reader = world.reader("thermostat.data")
    simulator = world.simulator("--rate", "40")
    kcql = READINGS.format("sensors")
    killed = world.ingest(kcql)
    before = len(reader.until(lambda seen: len(seen) >= 40))
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    ingest = world.ingest(kcql)
    reader.until(lambda seen: len(seen) >= before + 60)

    assert stop(ingest) == 0
    assert stop(simulator) == 0
    stored, written = readings_in(reader.rest()), sent(world.ledger)
    assert max(Counter(stored).values()) == 1
    assert set(stored) <= set(written)
    # Only states around the kill may be missing, none of the last second. (Of the sixty records since then, some answer
    # the registration or were sent before it.)
    assert set(written[-40:]) <= set(stored)


def test_notifications_wait_during_a_kafka_outage_and_all_are_stored_afterwards(world: World) -> None:
    reader = world.reader("thermostat.data")
    simulator = world.simulator("--rate", "50")
    ingest = world.ingest(READINGS.format("sensors"), "kafka_stalled_after_ms=1000")
    reader.until(lambda seen: len(seen) >= 20)
    world.kafka.pause()
    try:
        reader.until(lambda _: "kafka" in world.ready())
        in_outage = len(sent(world.ledger))
    finally:
        world.kafka.resume()
    reader.until(lambda seen: len(seen) > in_outage)
    assert stop(simulator) == 0
    reader.until(lambda seen: set(readings_in(seen)) == set(sent(world.ledger)))

    assert world.metric("notifications_total", outcome="dropped") == 0
    assert stop(ingest) == 0
    assert Counter(readings_in(reader.rest())) == Counter(sent(world.ledger))


def test_libcoap_is_observed_and_invalid_payloads_become_dead_letters(world: World) -> None:
    dead_letters = dead_letter_topic(world, "coap-ingest.dead-letters")
    reader = world.reader("coap_sensor_topic", "thermostat.data", dead_letters)
    world.libcoap()
    ingest = world.ingest(BOTH.format("example_data"))
    reader.until(lambda seen: len(seen) >= 2)  # what the server holds to begin with
    items = [{"sensorId": f"S{n}", "temperature": n / 10, "timestamp": 1486997194029 + n} for n in range(60)]
    large = json.dumps(items).encode()
    poison = b"\x00\xffnot a reading"
    world.put("example_data", large, 50)
    reader.until(lambda seen: len(readings_in(seen)) >= 60)
    world.put("example_data", poison, 42)
    records = reader.until(lambda seen: any(r.value == poison for r in seen))
    assert world.metric("dead_letters_total", reason="payload") >= 1
    assert stop(ingest) == 0
    records = reader.rest()

    expected = Counter((item["sensorId"], item["timestamp"], item["temperature"]) for item in items)
    assert Counter(readings_in(records)) == expected
    messages = [r.value for r in records if r.topic == "coap_sensor_topic"]
    assert len(large) > 1024
    assert [m for m in messages if m["payload"] == large.decode() and m["block2"]]
    assert messages[-1]["payload"] is None
    assert messages[-1]["payload_base64"] == "AP9ub3QgYSByZWFkaW5n"
    dead_letter = next(r for r in records if r.value == poison)
    assert dead_letter.key == f"coap://{world.authority}/example_data"
    assert dead_letter.headers["coap.content_format"] == "42"
    assert dead_letter.headers["__connect.errors.connector.name"] == "coap-source"
    assert "JSON" in dead_letter.headers["__connect.errors.exception.message"]


def test_libcoap_killed_and_restarted_is_observed_again(world: World) -> None:
    reader = world.reader("coap_sensor_topic")
    server = world.libcoap()
    world.ingest("INSERT INTO coap_sensor_topic SELECT * FROM time")
    before = len(reader.until(lambda seen: len(seen) >= 3))
    server.kill()
    server.wait()
    reader.until(lambda _: world.metric("interruptions_total") >= 1)
    world.libcoap()
    records = reader.until(lambda seen: len(seen) >= before + 3)

    assert {r.value["max_age"] for r in records} == {1}
    assert records[-1].value["is_notification"]


def test_a_resource_that_is_not_observable_is_polled(world: World) -> None:
    reader = world.reader("coap_sensor_topic")
    world.libcoap()
    ingest = world.ingest("INSERT INTO coap_sensor_topic SELECT * FROM `.well-known/core`")
    (record,) = reader.until(lambda seen: len(seen) >= 1)

    assert record.value["observe"] is None
    assert record.value["is_notification"] is False
    assert "</time>" in record.value["payload"]
    assert world.metric("polls_total") == 1
    reader.until(lambda _: not world.ready())
    assert stop(ingest) == 0


def test_json_values_have_the_key_of_a_field_and_throw_ends_the_service_after_storing_the_rest(world: World) -> None:
    raw, cel = dead_letter_topic(world, "coap.raw.json"), dead_letter_topic(world, "coap.cel.json")
    dead_letters = dead_letter_topic(world, "coap-ingest.dead-letters")
    reader = world.reader(raw, cel, dead_letters)
    world.libcoap()
    world.put("example_data", b'{"sensorId": "A", "t": 1.5}', 50)
    ingest = world.ingest(
        f"INSERT INTO {raw} SELECT * FROM example_data WITHKEY(sensorId); INSERT INTO {cel} SELECT sensorId AS "
        "device_id, t AS value FROM example_data",
        "units=t=Cel",
        keys={
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "true",
            "connect.coap.error.policy": "THROW",
        },
    )
    reader.until(lambda seen: {r.topic for r in seen} >= {raw, cel})
    world.put("example_data", b"no reading", 50)
    assert ingest.wait(TIMEOUT_S) == 1
    records = reader.until(lambda seen: any(r.topic == dead_letters for r in seen))

    message, reading = (next(r for r in records if r.topic == topic) for topic in (raw, cel))
    assert (message.key, reading.key) == ("A", "A")
    assert json.loads(message.value)["payload"]["payload"] == '{"sensorId": "A", "t": 1.5}'
    assert json.loads(message.value)["schema"]["name"] == "isotherm.CoapMessage"
    assert json.loads(reading.value)["payload"]["value"] == 1.5
    assert "error.policy THROW ends the service" in (world.folder / "ingest.log").read_text()
