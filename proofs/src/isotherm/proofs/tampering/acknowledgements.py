"""A service that attests what it has not written, beside those that take readings in."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

import isotherm.schemas
from isotherm.connector.attestation.attester import SCHEMA, TOPIC, key_of_page, page_of
from isotherm.connector.attestation.runs import Runs
from isotherm.demo.addresses import Addresses
from isotherm.proofs.tampering.tampered import Tampered
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients

HOP = "mqtt-proxy"
_WORKER = "tampering"
_TIMEOUT_S = 60.0


class FalseAttestations:
    """Writes readings in transactions of its own, and attests each as another one, or though it was taken back."""

    def __init__(self, addresses: Addresses, chance: random.Random) -> None:
        self._topic, self._chance = addresses.readings_topic, chance
        self._schemas = SchemaRegistry(addresses.registry)
        self._reading = self._schemas.encoder(self._topic, isotherm.schemas.schema("SensorReading", 1))
        self._page = self._schemas.encoder(TOPIC, SCHEMA)
        self._producer: Producer = clients.producer(addresses.kafka, _WORKER, transactional_id=_WORKER)
        self._producer.init_transactions(_TIMEOUT_S)
        self._pages: Producer = clients.producer(addresses.kafka, _WORKER)
        self._number = 0

    def tamper(self) -> Tampered:
        """Acknowledge a record that the topic does not have, or not so."""
        is_dropped = self._chance.random() < 0.5
        now_ms = int(time.time() * 1_000)
        self._number += 1
        device = f"attested-{self._number}"
        value = self._reading(self._record(device, now_ms))
        self._producer.begin_transaction()
        places: list[tuple[int, int]] = []
        self._producer.produce(self._topic, key=device, value=value, on_delivery=_noting(places))
        assert self._producer.flush(_TIMEOUT_S) == 0
        if is_dropped:
            self._producer.abort_transaction(_TIMEOUT_S)
        else:
            self._producer.commit_transaction(_TIMEOUT_S)
        ((partition, offset),) = places
        runs = Runs(1)
        runs.add(partition, offset, device.encode(), value if is_dropped else value + b"?")
        for number, of in runs.take().items():
            page = page_of(HOP, _WORKER, self._topic, number, (now_ms - 1, now_ms), of)
            self._pages.produce(TOPIC, key=key_of_page(page), value=self._page(page))
        assert self._pages.flush(_TIMEOUT_S) == 0
        what = "acknowledged and dropped" if is_dropped else "acknowledged and altered"
        kinds = frozenset(("missing" if is_dropped else "different",))
        return Tampered(HOP, (self._topic, str(partition), str(offset)), what, kinds, int(time.time() * 1_000))

    def _record(self, device: str, now_ms: int) -> dict[str, Any]:
        return {
            "device_id": device,
            "metric": "temperature",
            "value": self._chance.gauss(20, 3),
            "unit": "Cel",
            "event_time": now_ms,
            "ingest_time": now_ms,
            "sequence": self._number,
            "attributes": {},
        }

    def close(self) -> None:
        """Close the clients."""
        self._schemas.close()


def _noting(places: list[tuple[int, int]]) -> Callable[[KafkaError | None, Message], None]:
    def note(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        places.append((message.partition() or 0, message.offset() or 0))

    return note
