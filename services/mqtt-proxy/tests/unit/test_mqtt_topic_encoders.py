"""Topics that accept readings are found when their schema comes later than the topic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from isotherm.mqtt_proxy.ingest.topic_encoders import TopicEncoders
from isotherm.servicekit.avro import SchemaNotRegisteredError


class _Kafka:
    """The topics of a broker, all with a subject, of which `ours` hold our schema; it counts what is asked."""

    def __init__(self, topics: int) -> None:
        self.topics = {f"t{number}": SimpleNamespace(error=None) for number in range(topics)}
        self.ours: set[str] = set()
        self.asked: list[str] = []

    def list_topics(self, timeout: float) -> _Kafka:
        assert timeout
        return self

    def subjects(self) -> frozenset[str]:
        return frozenset(f"{topic}-value" for topic in self.topics)

    def encoder(self, topic: str, _schema: object) -> Any:
        self.asked.append(topic)
        if topic not in self.ours:
            raise SchemaNotRegisteredError(topic)
        return lambda _record: topic.encode()


def _encoders(topics: int) -> tuple[_Kafka, TopicEncoders]:
    kafka: Any = _Kafka(topics)
    return kafka, TopicEncoders(kafka, kafka, {})


def test_a_topic_accepts_readings_when_its_subject_gets_our_schema() -> None:
    kafka, encoders = _encoders(2)
    encoders.refresh()
    assert encoders.encoders == {}
    kafka.ours.add("t1")
    encoders.refresh()
    assert list(encoders.encoders) == ["t1"]
    kafka.asked.clear()
    encoders.refresh()
    assert kafka.asked == ["t0"], "what has its encoder is not asked again"


def test_thousands_of_other_topics_take_turns() -> None:
    kafka, encoders = _encoders(50)
    encoders.refresh()
    kafka.asked.clear()
    for _ in range(5):
        encoders.refresh()
    assert len(kafka.asked) == 5 * 20
    assert {kafka.asked.count(topic) for topic in kafka.topics} == {2}
    kafka.ours.update(kafka.topics)
    for _ in range(3):
        encoders.refresh()
    assert encoders.encoders.keys() == kafka.topics.keys()


def test_a_topic_that_was_deleted_and_made_again_is_asked_about_as_a_new_one() -> None:
    kafka, encoders = _encoders(30)
    encoders.refresh()
    gone = kafka.topics.pop("t7")
    encoders.refresh()
    kafka.topics["t7"], kafka.asked = gone, []
    kafka.ours.add("t7")
    encoders.refresh()
    assert "t7" in encoders.encoders
