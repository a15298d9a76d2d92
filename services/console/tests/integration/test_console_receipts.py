"""Receipts on a real Kafka, through a kill, and rows that are verified with them."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # not in its __all__
from console_world import WAIT_S, Process, World, until
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

import isotherm.schemas
from isotherm.cli import records
from isotherm.cli.app import app
from isotherm.connector.receipts.receipt import HOUR_MS, TOPIC, Receipt, private_key
from isotherm.console.cluster.control_topics import ControlTopicWriter, PendingWrites
from isotherm.console.errors import UnavailableError
from isotherm.console.receipts.hours import ReceiptHours, TopicHour
from isotherm.console.receipts.issuer import ReceiptIssuer, ReceiptMetrics
from isotherm.console.receipts.spans import HourSpans
from isotherm.console.reconciliation.decoding import RecordDecoder
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.lifecycle import Stop

pytest_plugins = ("console_fixtures",)
pytestmark = pytest.mark.integration

READING = isotherm.schemas.schema("SensorReading", 1)
DEVICES, READINGS, COPIES = 100, 4_000, 300
DELAY_MS = 1_000
Row = dict[str, Any]


@dataclass
class Store:
    """A topic of readings, and the rows that a store has of them, by identity."""

    world: World
    name: str = field(default_factory=lambda: f"r{uuid.uuid4().hex[:8]}")
    rows: dict[tuple[object, ...], Row] = field(default_factory=dict)

    kept_ms: int = 7 * 24 * HOUR_MS

    def __post_init__(self) -> None:
        self.make_topic()
        self._producer = clients.producer(self.world.kafka, "test")
        self.encode = SchemaRegistry(self.world.registry).encoder("thermostat.data", READING)
        key = Ed25519PrivateKey.generate()
        self.key_file, self.public = self.world.folder / "issuer.pem", self.world.folder / "public.pem"
        self.key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self.public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    def make_topic(self) -> None:
        config = {"message.timestamp.type": "LogAppendTime", "retention.ms": str(self.kept_ms)}
        self.world.admin.create_topics([NewTopic(self.name, 3, 1, config=config)])[self.name].result(WAIT_S)
        # A broker may know a new topic a moment later than the controller has made it.
        until("it is known", lambda: self.name in self.world.admin.list_topics(timeout=WAIT_S).topics, lambda: "")

    def ingest(self, device: str, event_ms: int, value: float) -> None:
        row = {"device_id": device, "metric": "temperature", "event_time": event_ms, "sequence": 7, "value": value}
        record = {**row, "unit": "Cel", "ingest_time": event_ms, "attributes": {}}
        self._producer.produce(self.name, key=device, value=self.encode(record))
        self._producer.poll(0)
        self.rows[device, event_ms] = row

    def ingest_hours(self) -> None:
        """Readings of the last whole hour and of this one, copies among them, and what nobody can decode."""
        begin_ms = now_ms() // HOUR_MS * HOUR_MS - HOUR_MS
        for number in range(READINGS):
            at_ms = begin_ms + number * 2 * HOUR_MS // READINGS
            self.ingest(f"{self.name}-{number % DEVICES}", at_ms, random.gauss(20, 3))
        for row in random.sample(list(self.rows.values()), COPIES):
            self.ingest(row["device_id"], row["event_time"], row["value"])
        self._producer.produce(self.name, key="x", value=b"no reading")
        self.flush()

    def flush(self) -> None:
        assert self._producer.flush(WAIT_S) == 0

    def receipts(self) -> list[Receipt]:
        """The receipts of the topic, each revision."""
        decode = Decoder(SchemaRegistry(self.world.registry), isotherm.schemas.schema("Receipt", 1))
        with closing(records.read(self.world.kafka, TOPIC)) as messages:
            found = [Receipt.of(decode(message.value() or b"").record) for message in messages]
        return [one for one in found if one.topic == self.name]

    def verify(self, rows: Sequence[Row], receipt: Receipt, folder: Path) -> tuple[int, dict[str, Any]]:
        """What `isotherm verify` says of rows and the hour of a receipt: its exit code and its JSON."""
        table, printed = folder / "rows.jsonl", folder / "receipts.jsonl"
        table.write_text("".join(json.dumps(row) + "\n" for row in rows))
        kafka = ("--kafka", self.world.kafka.bootstrap_servers, "--registry", self.world.registry.url)
        tail = CliRunner().invoke(app, ["tail", TOPIC, "--from-beginning", "--where", f"topic={self.name}", *kafka])
        assert tail.exit_code == 0, tail.output
        printed.write_text(tail.stdout)
        span = ("--from", f"@{receipt.start_ms}", "--to", f"@{receipt.end_ms}", "--topic", self.name)
        files = (str(table), "--receipts", str(printed), "--public-key", str(self.public))
        result = CliRunner().invoke(app, ["verify", *files, *span, "--format", "json"])
        return result.exit_code, json.loads(result.stdout)


def now_ms() -> int:
    return int(time.time() * 1_000)


def reconciler(store: Store) -> Process:
    nested = {
        "reading_topics": store.name,
        "windows_topic": store.world.topic(f"{store.name}.windows"),
        "late_topic": store.world.topic(f"{store.name}.late"),
        "receipts.key_file": store.key_file,
        "receipts.delay_ms": DELAY_MS,
    }
    return store.world.reconcile(store.name, **nested)


def test_rows_are_verified_by_the_receipt_of_their_hour_and_others_are_not(world: World, tmp_path: Path) -> None:
    store = Store(world)
    store.ingest_hours()
    process = reconciler(store)
    process.kill()
    process.start()
    until("a receipt is issued", lambda: bool(store.receipts()), process.log)
    receipt = store.receipts()[0]
    rows = list(store.rows.values())
    of_hour = [row for row in rows if receipt.start_ms <= row["event_time"] < receipt.end_ms]
    assert len(of_hour) == READINGS // 2
    assert receipt.readings == len(of_hour)
    assert receipt.records > receipt.readings
    code, told = store.verify(rows, receipt, tmp_path)
    assert (code, told["readings"], told["outside"], told["problems"]) == (
        0,
        len(of_hour),
        len(rows) - len(of_hour),
        [],
    )
    victim = random.choice(of_hour)
    others = [row for row in of_hour if row is not victim]
    for wrong in (
        others,
        [*others, {**victim, "value": victim["value"] + 1e-9}],
        [*of_hour, {**victim, "sequence": 8}],
    ):
        code, told = store.verify(wrong, receipt, tmp_path)
        assert (code, len(told["problems"])) == (1, 1)
        assert victim["device_id"] in told["problems"][0] or " more" in told["problems"][0]
    process.kill()
    process.start()
    until("it is ready again", lambda: process.log().count('"event": "reconciling"') >= 2, process.log)
    assert process.stop() == 0
    assert len({one.start_ms for one in store.receipts()}) == len(store.receipts()), "an hour has one receipt"


class Issuing:
    """An issuer in this process, whose clock stands."""

    def __init__(self, store: Store, *topics: str) -> None:
        self.store, self.now_ms, self.health = store, now_ms(), Health()
        world, schemas = store.world, SchemaRegistry(store.world.registry)
        self.hours = ReceiptHours([*topics, store.name], delay_ms=DELAY_MS, late_ms=6 * HOUR_MS)
        make_producer = partial(clients.producer, world.kafka, "test")
        self.issuer = ReceiptIssuer(
            self.hours,
            private_key(store.key_file),
            ControlTopicWriter(make_producer, schemas, PendingWrites(), timeout_ms=10_000),
            RecordDecoder(schemas),
            HourSpans(world.admin, WAIT_S),
            lambda: clients.consumer_to_the_end(world.kafka, "test", enable_auto_offset_store=False),
            lambda topic: 3 if topic == store.name else 0,
            self.health,
            lambda: self.now_ms,
            ReceiptMetrics(CollectorRegistry()),
            timeout_s=WAIT_S,
        )

    def issue(self, hour: TopicHour) -> None:
        """Issue a receipt; Kafka writes the markers of a committed transaction after its answer."""

        def is_issued() -> bool:
            try:
                self.issuer.issue(hour, Stop())
            except UnavailableError:
                return False
            return True

        until("no transaction hides readings", is_issued, lambda: "")

    def issue_all(self) -> list[Receipt]:
        while (hour := self.hours.next(self.now_ms)) is not None:
            self.issue(hour)
        return self.store.receipts()


def test_late_readings_make_another_receipt(world: World, tmp_path: Path) -> None:
    store = Store(world)
    store.ingest_hours()
    issuing = Issuing(store)
    issue_all = issuing.issue_all

    (first,) = issue_all()
    assert first.unreconciled == 3
    late_ms = first.start_ms + 1_234_567
    store.ingest(f"{store.name}-late", late_ms, 1.5)
    store.flush()
    assert issue_all() == [first], "late readings are seen with the next hour"
    issuing.now_ms += HOUR_MS
    receipts = issue_all()
    revised = [one for one in receipts if one.start_ms == first.start_ms]
    assert [one.revision for one in revised] == [0, 1]
    assert revised[1].readings == first.readings + 1
    rows = list(store.rows.values())
    assert store.verify(rows, first, tmp_path)[0] == 0
    assert store.verify([row for row in rows if row["event_time"] != late_ms], first, tmp_path)[0] == 1
    issuing.now_ms += HOUR_MS
    assert len([one for one in issue_all() if one.start_ms == first.start_ms]) == 2, "nothing new came for it"


def test_an_hour_has_to_wait_for_a_transaction_that_hides_its_readings(world: World) -> None:
    store = Store(world)
    store.ingest_hours()
    issuing = Issuing(store)
    writer = clients.producer(world.kafka, "hidden", transactional_id=f"{store.name}-hidden")
    writer.init_transactions(WAIT_S)
    writer.begin_transaction()
    hour = issuing.hours.next(issuing.now_ms)
    assert hour is not None
    row = next(row for row in store.rows.values() if hour.start_ms <= row["event_time"] < hour.start_ms + HOUR_MS)
    hidden = {**row, "sequence": 8, "unit": "Cel", "ingest_time": row["event_time"], "attributes": {}}
    writer.produce(store.name, key=row["device_id"], value=store.encode(hidden))
    assert writer.flush(WAIT_S) == 0
    for _ in range(2):
        with pytest.raises(UnavailableError, match="an open transaction hides records in partition"):
            issuing.issuer.issue(hour, Stop())
    assert store.receipts() == []
    issuing.now_ms += HOUR_MS // 2
    writer.commit_transaction(WAIT_S)
    issuing.issue(hour)
    (receipt,) = store.receipts()
    assert receipt.readings == READINGS // 2 + 1
    assert receipt.issued_ms == issuing.now_ms - HOUR_MS // 2, "what came after the first question may be missing"


def test_an_hour_whose_readings_are_all_in_one_long_transaction_has_them(world: World) -> None:
    store = Store(world)
    issuing = Issuing(store)
    hour = issuing.hours.next(issuing.now_ms)
    assert hour is not None
    writer = clients.producer(world.kafka, "hidden", transactional_id=f"{store.name}-hidden")
    writer.init_transactions(WAIT_S)
    writer.begin_transaction()
    for number in range(100):
        row = {"device_id": "d", "metric": "temperature", "event_time": hour.start_ms + number, "sequence": number}
        record = {**row, "value": 1.0, "unit": "Cel", "ingest_time": row["event_time"], "attributes": {}}
        writer.produce(store.name, key=str(number), value=store.encode(record))
    assert writer.flush(WAIT_S) == 0
    with pytest.raises(UnavailableError, match="an open transaction hides records in partition"):
        issuing.issuer.issue(hour, Stop())
    writer.commit_transaction(WAIT_S)
    (receipt,) = issuing.issue_all()
    assert receipt.readings == 100


def test_a_topic_that_was_made_again_does_not_replace_receipts(world: World) -> None:
    store = Store(world)
    store.ingest_hours()
    issuing = Issuing(store)
    (receipt,) = issuing.issue_all()
    world.admin.delete_topics([store.name])[store.name].result(WAIT_S)
    until("it is gone", lambda: store.name not in world.admin.list_topics(timeout=WAIT_S).topics, lambda: "")
    store.make_topic()
    issuing.hours.begin(issuing.now_ms)
    assert issuing.issue_all() == [receipt]


@pytest.mark.parametrize(("kept_ms", "receipts"), [(HOUR_MS // 2, 0), (24 * HOUR_MS, 1)], ids=["for-age", "never-had"])
def test_an_hour_of_an_emptied_partition_has_a_receipt_only_if_kafka_keeps_longer(
    world: World, kept_ms: int, receipts: int
) -> None:
    store = Store(world, kept_ms=kept_ms)
    store.ingest_hours()
    emptied = world.admin.delete_records([TopicPartition(store.name, 1, -1)])
    assert all(done.result(WAIT_S).low_watermark > 0 for done in emptied.values())
    assert len(Issuing(store).issue_all()) == receipts


def test_records_that_are_removed_while_they_are_read_are_noticed(world: World) -> None:
    store = Store(world)
    store.ingest_hours()
    issuing, spans = Issuing(store), HourSpans(world.admin, WAIT_S)
    hour = issuing.hours.next(issuing.now_ms)
    assert hour is not None
    with closing(clients.consumer_to_the_end(world.kafka, "test", enable_auto_offset_store=False)) as consumer:
        found, _ = spans.of(consumer, hour, issuing.now_ms)
    assert found is not None
    assert spans.has_all(store.name, found)
    (removed,) = world.admin.delete_records([TopicPartition(store.name, 2, found[2][0] + 1)]).values()
    removed.result(WAIT_S)
    assert not spans.has_all(store.name, found)


def test_a_topic_that_cannot_be_read_does_not_end_the_thread(world: World) -> None:
    store = Store(world)
    store.ingest_hours()
    issuing, stop = Issuing(store, f"{store.name}-gone"), Stop()
    thread = threading.Thread(target=issuing.issuer.run, args=(stop,))
    thread.start()
    until("the other topic has its receipt", lambda: bool(store.receipts()), lambda: "")
    assert f"{store.name}-gone" in issuing.health.problems()["receipts"]
    stop.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a_key_file_that_is_none_is_refused_at_the_start(world: World) -> None:
    store = Store(world)
    store.key_file.write_text("none")
    process = reconciler(store)
    assert process.exit_code() == 2
    assert "reconciliation.receipts.key_file: cannot use" in process.log()
