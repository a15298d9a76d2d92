"""`isotherm-console reconcile` on a real Kafka: records that were acknowledged and are not in the topic are named."""

from __future__ import annotations

import random
import time
import uuid

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # not in its __all__
from console_world import WAIT_S, Process, World, until
from unreconciled import open_findings

import isotherm.schemas
from isotherm.connector.attestation.attester import SCHEMA, TOPIC, key_of_page, page_of
from isotherm.connector.attestation.runs import Runs
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients

pytest_plugins = ("console_fixtures",)
pytestmark = pytest.mark.integration

SERVICE = "mqtt-proxy"
DEVICES, RECORDS, PARTITIONS = 40, 6_000, 3
FATES = ("right", "dropped", "altered", "of nobody", "refused")
WEIGHTS = (90, 2, 2, 3, 3)


class IngestService:
    """A service that takes readings in, and acknowledges some that are not in the topic as they were."""

    def __init__(self, world: World) -> None:
        self.world, self.name = world, f"a{uuid.uuid4().hex[:8]}"
        self.readings = f"{self.name}.readings"
        others = [NewTopic(f"{self.name}.{topic}", 1, 1) for topic in ("windows", "late", "dead-letters")]
        self.create(*others)
        schemas = SchemaRegistry(world.registry)
        self._reading = schemas.encoder("thermostat.data", isotherm.schemas.schema("SensorReading", 1))
        self._page = schemas.encoder(TOPIC, SCHEMA)
        # Each record is a transaction of its own: an aborted one leaves an offset behind that nobody reads.
        self._producer: Producer = clients.producer(world.kafka, "ingest", transactional_id=self.name)
        self._producer.init_transactions(WAIT_S)
        self._pages = clients.producer(world.kafka, "ingest")
        self._runs = Runs(100_000)
        self.wrong: dict[tuple[int, int], tuple[str, str]] = {}

    def create(self, *others: NewTopic) -> None:
        """Make the topic of readings."""
        topics = [NewTopic(self.readings, PARTITIONS, 1, config={"retention.ms": "-1"}), *others]
        for future in self.world.admin.create_topics(topics).values():
            future.result(WAIT_S)

    def take_in(self, records: int) -> None:
        """Write records of every fate, and attest them."""
        fates = random.choices(FATES, WEIGHTS, k=records)
        begin = 0
        while begin < records:
            # As many as have one fate are written together.
            end = begin + 1
            while end < records and fates[end] == fates[begin] and fates[end] in ("right", "of nobody"):
                end += 1
            self._write(fates[begin], end - begin)
            begin = end
        self.publish()

    def _write(self, fate: str, records: int) -> None:
        now_ms = int(time.time() * 1_000)
        self._producer.begin_transaction()

        def note(error: KafkaError | None, message: Message) -> None:
            assert error is None
            partition, offset = message.partition() or 0, message.offset() or 0
            key, value = message.key() or b"", message.value() or b""
            if fate == "altered":
                self._runs.add(partition, offset, key, value + b"?")
            elif fate not in ("of nobody", "refused"):
                self._runs.add(partition, offset, key, value)
            if fate in ("altered", "dropped"):
                self.wrong[partition, offset] = ("different" if fate == "altered" else "missing", key.decode())

        for _ in range(records):
            device = f"{self.name}-{random.randrange(DEVICES)}"
            reading = {
                "device_id": device,
                "metric": "temperature",
                "value": random.random(),
                "unit": "Cel",
                "event_time": now_ms,
                "ingest_time": now_ms,
                "sequence": random.randrange(1_000_000),
                "attributes": {},
            }
            self._producer.produce(self.readings, key=device, value=self._reading(reading), on_delivery=note)
        assert self._producer.flush(WAIT_S) == 0
        if fate in ("dropped", "refused"):
            self._producer.abort_transaction(WAIT_S)
        else:
            self._producer.commit_transaction(WAIT_S)

    def publish(self) -> None:
        now_ms = int(time.time() * 1_000)
        for partition, runs in self._runs.take().items():
            page = page_of(SERVICE, "test", self.readings, partition, (now_ms - 5_000, now_ms), runs)
            self._pages.produce(TOPIC, key=key_of_page(page), value=self._page(page))
        assert self._pages.flush(WAIT_S) == 0

    def found(self) -> dict[tuple[int, int], tuple[str, str | None]]:
        """Kind and device of each record that is reported."""
        found: dict[tuple[int, int], tuple[str, str | None]] = {}
        for one in open_findings(self.world.kafka, self.world.registry):
            identity = one["identity"]
            if one["hop"] == SERVICE and identity.get("topic") == self.readings:
                for span in identity["offset"].split(","):
                    first, _, last = span.partition("-")
                    for offset in range(int(first), int(last or first) + 1):
                        found[int(identity["partition"]), offset] = one["kind"], identity.get("device_id")
        return found


@pytest.fixture
def ingest(world: World) -> IngestService:
    return IngestService(world)


@pytest.fixture
def reconciler(world: World, ingest: IngestService) -> Process:
    return world.reconcile(
        ingest.name,
        reading_topics=ingest.readings,
        windows_topic=f"{ingest.name}.windows",
        late_topic=f"{ingest.name}.late",
        dead_letter_topic=f"{ingest.name}.dead-letters",
    )


def test_what_was_acknowledged_and_is_not_there_is_named_through_a_kill_and_nothing_else(
    ingest: IngestService, reconciler: Process
) -> None:
    ingest.take_in(RECORDS // 2)
    until("some are found", lambda: bool(ingest.found()), reconciler.log)
    reconciler.kill()
    ingest.take_in(RECORDS // 2)
    reconciler.start()

    def differences() -> list[object]:
        found = ingest.found()
        return [
            (place, found.get(place), ingest.wrong.get(place))
            for place in found.keys() | ingest.wrong.keys()
            # A device is named where only one record of a run differs.
            if (found.get(place, ("",))[0] != ingest.wrong.get(place, ("",))[0])
            or (found[place][1] is not None and found[place][1] != ingest.wrong[place][1])
        ]

    until("everything is found and nothing else", lambda: not differences(), lambda: str(differences()[:9]))
    assert len(ingest.wrong) > RECORDS // 50
    assert sum(device is not None for _, device in ingest.found().values()) > len(ingest.wrong) // 2
    assert reconciler.stop() == 0


def test_a_topic_that_has_lost_what_was_read_of_it_is_named(ingest: IngestService, reconciler: Process) -> None:
    """A topic that is made again stands for a leader that was elected without the newest records."""
    ingest.take_in(600)

    def unnamed() -> list[tuple[tuple[int, int], tuple[str, str]]]:
        found = ingest.found()
        return [(place, wrong) for place, wrong in sorted(ingest.wrong.items()) if place not in found]

    until("the first are compared", lambda: not unnamed(), lambda: f"unnamed: {unnamed()}\n{reconciler.log()}")
    admin = ingest.world.admin
    for future in admin.delete_topics([ingest.readings]).values():
        future.result(WAIT_S)
    until("the topic is gone", lambda: ingest.readings not in admin.list_topics(timeout=WAIT_S).topics)
    ingest.create()
    ingest.wrong.clear()
    ingest.take_in(30)

    def lost() -> set[int]:
        findings = open_findings(ingest.world.kafka, ingest.world.registry)
        mine = [one["identity"] for one in findings if one["hop"] == "kafka"]
        return {int(one["partition"]) for one in mine if one["topic"] == ingest.readings}

    until("the loss of each partition is named", lambda: lost() == set(range(PARTITIONS)), reconciler.log)
