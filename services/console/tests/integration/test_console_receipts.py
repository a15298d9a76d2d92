"""Receipts on a real Kafka, through a kill, and rows that are verified with them."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
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
from isotherm.console.receipts.hours import ReceiptHours
from isotherm.console.receipts.issuer import ReceiptIssuer, ReceiptMetrics
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

    def __post_init__(self) -> None:
        stamped = {"message.timestamp.type": "LogAppendTime"}
        self.world.admin.create_topics([NewTopic(self.name, 3, 1, config=stamped)])[self.name].result(WAIT_S)
        self._producer = clients.producer(self.world.kafka, "test")
        self._encode = SchemaRegistry(self.world.registry).encoder("thermostat.data", READING)
        key = Ed25519PrivateKey.generate()
        self.key_file, self.public = self.world.folder / "issuer.pem", self.world.folder / "public.pem"
        self.key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self.public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    def ingest(self, device: str, event_ms: int, value: float) -> None:
        row = {"device_id": device, "metric": "temperature", "event_time": event_ms, "sequence": 7, "value": value}
        record = {**row, "unit": "Cel", "ingest_time": event_ms, "attributes": {}}
        self._producer.produce(self.name, key=device, value=self._encode(record))
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


def test_late_readings_make_another_receipt(world: World, tmp_path: Path) -> None:
    store, schemas, clock = Store(world), SchemaRegistry(world.registry), [now_ms()]
    store.ingest_hours()
    hours = ReceiptHours([store.name], delay_ms=DELAY_MS, late_ms=6 * HOUR_MS)
    make_producer = partial(clients.producer, world.kafka, "test")
    issuer = ReceiptIssuer(
        hours,
        private_key(store.key_file),
        ControlTopicWriter(make_producer, schemas, PendingWrites(), timeout_ms=10_000),
        RecordDecoder(schemas),
        lambda: clients.consumer_to_the_end(world.kafka, "test", enable_auto_offset_store=False),
        lambda topic: 3 if topic == store.name else 0,
        Health(),
        lambda: clock[0],
        ReceiptMetrics(CollectorRegistry()),
        timeout_s=WAIT_S,
    )

    def issue_all() -> list[Receipt]:
        while (hour := hours.next(clock[0])) is not None:
            issuer.issue(hour, Stop())
        return store.receipts()

    (first,) = issue_all()
    assert first.unreconciled == 3
    late_ms = first.start_ms + 1_234_567
    store.ingest(f"{store.name}-late", late_ms, 1.5)
    store.flush()
    assert issue_all() == [first], "late readings are seen with the next hour"
    clock[0] += HOUR_MS
    receipts = issue_all()
    revised = [one for one in receipts if one.start_ms == first.start_ms]
    assert [one.revision for one in revised] == [0, 1]
    assert revised[1].readings == first.readings + 1
    rows = list(store.rows.values())
    assert store.verify(rows, first, tmp_path)[0] == 0
    assert store.verify([row for row in rows if row["event_time"] != late_ms], first, tmp_path)[0] == 1
    clock[0] += HOUR_MS
    assert len([one for one in issue_all() if one.start_ms == first.start_ms]) == 2, "nothing new came for it"


def test_a_key_file_that_is_none_is_refused_at_the_start(world: World) -> None:
    store = Store(world)
    store.key_file.write_text("none")
    process = reconciler(store)
    assert process.exit_code() == 2
    assert "reconciliation.receipts.key_file: cannot use" in process.log()
