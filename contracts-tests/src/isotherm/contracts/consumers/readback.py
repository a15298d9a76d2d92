"""What persisters need of a request to read back, and the console of the answer."""

from __future__ import annotations

from pact import match

from isotherm.connector.state.readback import (
    ANSWER_SCHEMA,
    ANSWERS,
    REQUEST_SCHEMA,
    REQUESTS,
    ReadbackAnswer,
    ReadbackRequest,
)
from isotherm.console.trace import readback
from isotherm.console.trace.model import State, Step, TopicPartitionOffset
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, expect
from isotherm.persisters.api.record import Record

CONNECTOR = "coap-to-hazelcast"
ID = "readback-1"
_PLACE = TopicPartitionOffset("coap_sensor_topic", 1, 41)


def _is_projected(harness: Harness, found: Message) -> object:
    """Make the record that the task projects anew; the key says to which connector the request goes."""
    request = ReadbackRequest.of(harness.decode(found.value, REQUEST_SCHEMA))
    expect("connector", request.connector, found.key)
    return request.id, Record(*request[2:])


def _is_told(harness: Harness, found: Message) -> object:
    """Tell the step of a trace that the answer makes."""
    answer = ReadbackAnswer.of(harness.decode(found.value, ANSWER_SCHEMA))
    step = Step(answer.connector, State.READ, None, _PLACE, "settled", {})
    (told,) = readback.told(step, answer)
    expect("state", told.state, State.WRITTEN)
    return answer.request, told


NEEDS = (
    Need(
        "persisters",
        "console",
        scenario.READBACK_REQUEST,
        REQUESTS,
        "ReadbackRequest",
        1,
        CONNECTOR,
        {
            "id": match.type(ID),
            "connector": CONNECTOR,
            "topic": "coap_sensor_topic",
            "partition": 1,
            "offset": 41,
            "timestamp": match.integer(scenario.TAKEN_IN_MS),
            "key": "a key",
            "value": "a value",
            "headers": [{"name": "coap.uri", "value": "coap://localhost:5633/sensors"}],
        },
        _is_projected,
    ),
    Need(
        "console",
        "persisters",
        scenario.READBACK_ANSWER,
        ANSWERS,
        "ReadbackAnswer",
        1,
        match.type(ID),
        {
            "request": ID,
            "connector": CONNECTOR,
            "rows": [
                {
                    "target": "a-queue",
                    "id": match.type("an id"),
                    "finding": "same",
                    "text": match.type("a text"),
                    "row": match.type("{}"),
                }
            ],
        },
        _is_told,
    ),
)
