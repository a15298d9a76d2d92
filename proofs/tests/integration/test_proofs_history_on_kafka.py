"""The recorder tells committed from aborted records on a real Kafka, and sees offsets with their counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its __all__

from isotherm.proofs.history.format import MQTT, events
from isotherm.proofs.history.recording.avro_values import AvroValues, Decoded
from isotherm.proofs.history.recording.groups import OffsetSampler
from isotherm.proofs.history.recording.history_file import HistoryFile
from isotherm.proofs.history.recording.topics import TopicReader
from isotherm.stack.servers.kafka import Kafka

pytestmark = pytest.mark.integration

TOPIC, DEAD, GROUP = "history-readings", "history.dead-letters", "connect-history"
TIMEOUT_S = 30.0


class JsonValues(AvroValues):
    """Values that are JSON, so that no registry is needed."""

    def __init__(self) -> None:
        super().__init__("http://localhost")

    def decode(self, value: bytes) -> Decoded | None:
        fields = json.loads(value)
        return Decoded(fields, [fields["device_id"], fields["n"]])


def produce(producer: Producer, topic: str, number: int, headers: dict[str, str | bytes | None]) -> None:
    value = json.dumps({"device_id": "d", "n": number})
    producer.produce(topic, value, key="d", headers=headers)


def test_records_offsets_and_dead_letters_are_as_kafka_has_them(kafka: Kafka, tmp_path: Path) -> None:
    address: dict[str, Any] = {"bootstrap.servers": kafka.bootstrap_servers}
    admin = AdminClient(address)
    for created in admin.create_topics([NewTopic(name, 1, 1) for name in (TOPIC, DEAD)]).values():
        created.result(TIMEOUT_S)
    producer = Producer(address | {"transactional.id": "history"})
    producer.init_transactions(TIMEOUT_S)
    for number, is_committed in ((1, True), (2, False), (3, True)):
        producer.begin_transaction()
        produce(producer, TOPIC, number, {"mqtt.topic": "t"})
        producer.flush(TIMEOUT_S)
        (producer.commit_transaction if is_committed else producer.abort_transaction)(TIMEOUT_S)
    names: dict[str, str] = {
        "topic": TOPIC,
        "partition": "0",
        "offset": "4",
        "connector.name": "history",
        "exception.message": "no",
    }
    plain = Producer(address)
    produce(plain, DEAD, 3, {f"__connect.errors.{name}": of for name, of in names.items()})
    plain.flush(TIMEOUT_S)
    sampler = OffsetSampler(address, [GROUP])
    consumer = Consumer(address | {"group.id": GROUP, "enable.auto.commit": False})
    for offset, metadata in (
        (1, '{"v":1,"read":1,"written":1}'),
        (5, '{"v":1,"read":2,"written":1,"dead_lettered":{"x":1}}'),
    ):
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset, metadata=metadata)], asynchronous=False)
        sampler.sample()
    consumer.close()

    reader = TopicReader(address, JsonValues())
    with HistoryFile(tmp_path / "history") as history:
        keys = reader.record(history, TOPIC)
        reader.record_dead_letters(history, DEAD, frozenset({GROUP}))
        sampler.write(history)

    found: dict[str, list[dict[str, Any]]] = {}
    for _, event in events(tmp_path / "history"):
        found.setdefault(event["event"], []).append(event)
    states = [(record["id"][1], record["offset"], record["state"], record["via"]) for record in found["record"]]
    assert states == [(1, 0, "committed", MQTT), (2, 2, "aborted", MQTT), (3, 4, "committed", MQTT)]
    assert found["topic-end"][0]["last"] == 6, "the transactions' markers take offsets, too"
    assert keys[("d", "3")] == "d"
    assert found["dead-letter"] == [
        {"event": "dead-letter", "topic": DEAD, "origin": [TOPIC, 0, 4], "group": GROUP, "reason": "no"}
    ]
    assert [(commit["offset"], commit["counts"]["dead_lettered"]) for commit in found["offset"]] == [(1, 0), (5, 1)]
