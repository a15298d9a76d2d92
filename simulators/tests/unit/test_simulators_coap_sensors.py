"""The sensors of the CoAP test server: their payloads, and repeatable runs."""

from __future__ import annotations

import argparse
import json
import logging

import pytest
from aiocoap import GET, Message  # type: ignore[import-untyped]  # it has no types
from aiocoap.pipe import Pipe  # type: ignore[import-untyped]  # it has no types
from hypothesis import given
from hypothesis import strategies as st

from isotherm.simulators.coap import server
from isotherm.simulators.coap.sensors import ResourceState, Sensors


def test_the_payload_has_the_keys_of_the_documents_in_their_order() -> None:
    payload = ResourceState("Sensor4", 1486997194029, 23.60440030439427, 98).payload()
    assert payload == (
        b'{"sensorId":"Sensor4","timestamp":1486997194029,"temperature":23.60440030439427,'
        b'"message":"Sensor message 98"}'
    )


def test_sensors_measure_in_turn_and_count_their_messages() -> None:
    sensors = Sensors(0, 3, seed=1)
    states = [sensors.measure(1_000 * n) for n in range(1, 8)]
    assert [state.sensor_id for state in states] == ["Sensor1", "Sensor2", "Sensor3"] * 2 + ["Sensor1"]
    assert [state.count for state in states] == [1, 1, 1, 2, 2, 2, 3]
    assert json.loads(states[6].payload())["message"] == "Sensor message 3"


def test_resources_have_sensors_of_their_own() -> None:
    names = [Sensors(resource, 2, seed=1).measure(1).sensor_id for resource in range(3)]
    assert names == ["Sensor1", "Sensor3", "Sensor5"]


def test_an_observer_that_is_gone_while_it_is_told_does_not_end_the_server() -> None:
    """Found by a fault run that lost packets: aiocoap's pipe ends within the call that sends the notification."""
    told: list[int] = []
    arguments = argparse.Namespace(max_age=60, content_format=50, padding=0, confirmable=False)
    sensors = server.ObservedSensors("sensors", Sensors(0, 1, seed=1), arguments, lambda *_: told.append(1))
    gone, there = (Pipe(Message(code=GET, observe=0), logging.getLogger("test")) for _ in range(2))

    def leave(_event: object) -> bool:
        leaving()
        return True

    leaving = gone.on_event(leave)
    there.on_event(lambda _event: True)
    sensors._observers |= {gone, there}
    sensors.advance()
    assert sensors._observers == {there}
    assert told == [1]


def test_the_same_seed_gives_the_same_values() -> None:
    def values(seed: int) -> list[float]:
        sensors = Sensors(1, 4, seed)
        return [sensors.measure(60_000 * n).temperature for n in range(20)]

    assert values(7) == values(7)
    assert values(7) != values(8)
    assert all(10 < value < 30 for value in values(7))


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50), st.integers(1, 5))
def test_no_two_readings_of_a_resource_have_the_same_time_whatever_the_clock_does(
    clock_ms: list[int], count: int
) -> None:
    sensors = Sensors(0, count, seed=1)
    times = [sensors.measure(now_ms).event_time_ms for now_ms in clock_ms]
    assert times == sorted(set(times))


@pytest.mark.parametrize("text", ["alone", ":key", "identity:", "i" * 33 + ":key", "identity:" + "k" * 17])
def test_a_key_that_the_dtls_library_cannot_take_is_refused(text: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    server.add_arguments(parser)
    with pytest.raises(argparse.ArgumentError, match="expected IDENTITY:KEY, of at most 32 and 16 bytes"):
        parser.parse_args(["--ledger", "x", "--dtls-psk", text])
