"""What a trace says of the rows that connectors read back from their stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from console_in_memory import CONFIG, KLASS, PLUGIN, World, world_of
from traced_pipeline import BEGIN, PARTITIONS, READINGS, Pipeline

from isotherm.connector.state.readback import ReadbackAnswer, ReadbackRequest, ReadbackRow
from isotherm.console.connectors.offsets import CommittedOffset
from isotherm.console.errors import UnavailableError
from isotherm.console.trace import readback
from isotherm.console.trace.readback import MOST_ASKED

ROW = '{"value":21.5}'
Store = Callable[[ReadbackRequest], ReadbackAnswer | None]


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        made.readbacks.timeout_ms = 30
        yield made


def traced(world: World, store: Store, *, connectors: int = 1, running: bool = True) -> list[dict[str, Any]]:
    """The steps of connectors of the trace of one reading, which all of them have settled."""
    pipeline = Pipeline(world)
    pipeline.reading("dev", 7, BEGIN, BEGIN)
    pipeline.finish()
    world.store = store
    world.cluster.update_plugin(KLASS, PLUGIN)
    for number in range(connectors):
        name = f"a{number or ''}"
        config = CONFIG | {"topics": READINGS, "print.kcql": f"INSERT INTO a SELECT * FROM {READINGS}"}
        world.create(name=name, config=config)
        if running:
            world.say(name, 0)
    world.memory.committed = [CommittedOffset(READINGS, partition, 10) for partition in range(PARTITIONS)]
    answer = world.http.get("/isotherm/devices/dev/trace", params={"sequence": 7})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert "Trace of dev" in world.http.get("/ui/devices/dev/trace", params={"sequence": 7}).text
    steps = [one for one in found["steps"] if one["record"] and one["details"].get("committed")]
    return [*steps, *({"note": one} for one in found["notes"])]


def answering(*rows: ReadbackRow, problem: str | None = None) -> Store:
    return lambda request: ReadbackAnswer(request.id, request.connector, 0, "host:1", rows, problem)


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        ("same", "written"),
        ("newer", "replaced"),
        ("different", "altered"),
        ("absent", "missing"),
        ("unreadable", "read"),
        ("of a later version", "read"),
    ],
)
def test_a_step_says_what_the_store_has(world: World, finding: str, state: str) -> None:
    row = ReadbackRow("readings-2026.01.01", "dev-7", finding, "as it is", ROW)
    (step,) = traced(world, answering(row))
    assert step["state"] == state
    assert "readings-2026.01.01, dev-7; as it is" in step["text"]
    assert step["details"] == {"committed": "10", "targets": "readings-2026.01.01", "id": "dev-7", "row": ROW}


def test_the_request_has_the_record_as_kafka_has_it(world: World) -> None:
    asked: list[ReadbackRequest] = []
    traced(world, lambda request: asked.append(request))
    (record,) = [one for of in world.topics.topics[READINGS].partitions.values() for one in of]
    request = asked[0]
    assert request.connector == "a"
    assert (request.topic, request.partition, request.offset) == (record.topic, record.partition, record.offset)
    assert (request.timestamp_ms, request.key, request.value) == (record.timestamp_ms, record.key, record.value)
    assert list(request.headers) == list(record.headers)


def test_each_row_of_a_record_is_a_step(world: World) -> None:
    rows = (ReadbackRow("a", "1", "same"), ReadbackRow("b", "2", "absent"))
    assert [step["state"] for step in traced(world, answering(*rows))] == ["written", "missing"]


@pytest.mark.parametrize(
    ("store", "why"),
    [
        (answering(problem="Cassandra: no host answers"), "not read back: Cassandra: no host answers"),
        (answering(), "not read back: no row is made of it"),
        (lambda _request: None, "not read back: no task answered within 30 ms"),
    ],
)
def test_it_says_why_nothing_was_read_back(world: World, store: Store, why: str) -> None:
    (step,) = traced(world, store)
    assert step["state"] == "read"
    assert step["text"].endswith(why)


def test_a_connector_that_does_not_run_is_not_asked(world: World) -> None:
    def refuse(_request: ReadbackRequest) -> ReadbackAnswer | None:
        raise AssertionError("nobody could answer")

    (step,) = traced(world, refuse, running=False)
    assert step["text"].endswith("not read back: the connector does not run")


def test_without_a_time_nobody_is_asked(world: World) -> None:
    world.readbacks.timeout_ms = 0
    (step,) = traced(world, answering(ReadbackRow("a", "1", "same")))
    assert step["state"] == "read"
    assert "not read back" not in step["text"]


def test_questions_are_bounded(world: World) -> None:
    steps = traced(world, answering(ReadbackRow("a", "1", "same")), connectors=MOST_ASKED + 3)
    states = [step["state"] for step in steps]
    assert (states.count("written"), states.count("read")) == (MOST_ASKED, 3)
    assert sum(step["text"].endswith("not read back: too many to ask") for step in steps) == 3


def test_a_record_that_is_too_large_for_a_pipe_is_not_asked_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readback, "MOST_BYTES", 10)
    (step,) = traced(world, answering(ReadbackRow("a", "1", "same")))
    assert step["text"].endswith("not read back: the record has more than 10 bytes")


def test_what_cannot_be_asked_is_a_note(world: World) -> None:
    def fail(_request: ReadbackRequest) -> ReadbackAnswer | None:
        raise UnavailableError("Kafka did not acknowledge")

    step, note = traced(world, fail)
    assert step["state"] == "read"
    assert note["note"] == "the stores were not asked what they have: Kafka did not acknowledge"


def test_without_the_topic_of_answers_nobody_is_asked(world: World) -> None:
    world.readbacks.disable()
    step, note = traced(world, answering(ReadbackRow("a", "1", "same")))
    assert step["state"] == "read"
    assert "run `isotherm apply`" in note["note"]


def test_answers_of_others_and_late_ones_are_forgotten(world: World) -> None:
    asked: list[ReadbackRequest] = []
    traced(world, lambda request: asked.append(request))
    for id_ in (asked[0].id, "somebody else's"):
        world.readbacks.take(ReadbackAnswer(id_, "a", 0, "host:1", ()).record(1))
    assert world.readbacks.waiting == 0
