"""Reads what a balance needs of Kafka: the records of a span, and what was written of them until somewhat later."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from confluent_kafka import Message

from isotherm.cli import records
from isotherm.cli.reconciliation.acknowledged import Acknowledged
from isotherm.cli.reconciliation.tally import Span, Tally, TopicPartitionOffset
from isotherm.connector.attestation.attester import SCHEMA as ATTESTATION
from isotherm.connector.attestation.attester import TOPIC as ATTESTATIONS
from isotherm.connector.errors.dead_letters import PREFIX
from isotherm.servicekit.avro import Decoder, SchemaRegistry, WireFormatError
from isotherm.servicekit.settings import KafkaSettings

AGGREGATOR = "aggregator"
"""The name in the aggregator's dead letters, whatever its own name is."""
_FAST_CLOCK_MS = 60_000
"""How far a device's clock may be ahead: its readings are stored before their event time."""
_SETTLING_MS = 60_000
"""Of the last minute the topics may have one record and not yet the other that belongs to it."""
_ATTESTED_WITHIN_MS = 60_000
"""How long after a record its attestation may come."""
_FOLLOWING_MS = 600_000
"""How much later than a reading its late copy or its dead-letter record may be stored."""


class Topics(NamedTuple):
    """The topics of a balance."""

    readings: tuple[str, ...]
    windows: str
    late: str
    dead_letters: tuple[str, ...]


class Sampled(NamedTuple):
    """A reading that is to be traced."""

    device_id: str
    place: TopicPartitionOffset


@dataclass
class Evidence:
    """What was read."""

    tally: Tally
    sample: list[Sampled] = field(default_factory=list)
    """Readings by chance."""
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    """What services attest to have answered devices for."""
    undecodable: int = 0
    """Records of the readings' and windows' topics that nobody can decode; they belong to no span."""


class ExpiredError(Exception):
    """Kafka has removed records of the span."""


class SpanReader:
    """Reads the topics of one balance."""

    def __init__(
        self, kafka: KafkaSettings, schemas: SchemaRegistry, topics: Topics, patience_ms: int, now_ms: int
    ) -> None:
        """`patience_ms` is how long after the span's end records of it are looked for, until a minute ago at most."""
        self._kafka, self._topics = kafka, topics
        self._patience_ms, self._latest_ms = patience_ms, now_ms - _SETTLING_MS
        self._decode, self._decode_page = Decoder(schemas), Decoder(schemas, ATTESTATION)

    def read(self, span: Span, sample: int) -> Evidence:
        """Read everything of a span, and choose `sample` readings by chance.

        Raises ExpiredError, UnknownTopicError, RegistryUnavailableError, KafkaException.
        """
        since_ms = max(0, span.start_ms - _FAST_CLOCK_MS)
        # Windows until then have only readings until then. What says why a reading is in none may come later.
        until_ms = min(span.end_ms + self._patience_ms, self._latest_ms)
        for topic in (*self._topics.readings, self._topics.windows):
            self._check_begin(topic, span.start_ms)
        found = Evidence(Tally(span))
        if self._topics.dead_letters:
            self._dead_letters(found.tally, since_ms, until_ms + _FOLLOWING_MS)
        self._attestations(found, since_ms, until_ms + _ATTESTED_WITHIN_MS)
        self._readings(found, since_ms, until_ms, sample)
        found.acknowledged.end(records.end_offsets(self._kafka, *self._topics.readings))
        for message, record in self._decoded((self._topics.windows,), span.start_ms, until_ms, found):
            found.tally.add_window(_place(message), record)
        for _, record in self._decoded((self._topics.late,), since_ms, until_ms + _FOLLOWING_MS, found):
            found.tally.add_late(record)
        return found

    def _attestations(self, found: Evidence, since_ms: int, until_ms: int) -> None:
        try:
            for message in self._messages((ATTESTATIONS,), since_ms, until_ms):
                if not self._is_page(found.acknowledged, message.value() or b""):
                    found.undecodable += 1
        except records.UnknownTopicError:
            # No service attests anything.
            return

    def _is_page(self, acknowledged: Acknowledged, value: bytes) -> bool:
        try:
            page = self._decode_page(value).record
        except WireFormatError:
            return False
        return page["topic"] not in self._topics.readings or acknowledged.add_page(page)

    def _readings(self, found: Evidence, since_ms: int, until_ms: int, sample: int) -> None:
        seen = 0
        acknowledged = found.acknowledged
        for message, record in self._decoded(self._topics.readings, since_ms, until_ms, found, acknowledged):
            place = _place(message)
            if not found.tally.add_reading(place, record, AGGREGATOR):
                continue
            seen += 1
            one = Sampled(record["device_id"], place)
            if len(found.sample) < sample:
                found.sample.append(one)
            elif (at := secrets.randbelow(seen)) < sample:
                found.sample[at] = one

    def _check_begin(self, topic: str, start_ms: int) -> None:
        begins_ms = records.begins_ms(self._kafka, topic)
        if begins_ms is not None and begins_ms > start_ms:
            raise ExpiredError(f"{topic} begins at @{begins_ms}: records of the span are gone")

    def _dead_letters(self, tally: Tally, since_ms: int, until_ms: int) -> None:
        for message in self._messages(self._topics.dead_letters, since_ms, until_ms):
            headers = dict(cast("list[tuple[str, bytes | None]]", message.headers() or []))
            named = [headers.get(f"{PREFIX}{name}") for name in ("topic", "partition", "offset", "connector.name")]
            topic, partition, offset, connector = [(text or b"").decode(errors="replace") for text in named]
            # What never was in a topic has no place.
            if partition.isdecimal() and offset.isdecimal():
                tally.add_dead_letter((topic, int(partition), int(offset)), connector)

    def _decoded(
        self,
        topics: tuple[str, ...],
        since_ms: int,
        until_ms: int,
        found: Evidence,
        acknowledged: Acknowledged | None = None,
    ) -> Iterator[tuple[Message, Any]]:
        for message in self._messages(topics, since_ms, until_ms):
            if acknowledged is not None:
                acknowledged.add_record(*_place(message), message.key() or b"", message.value() or b"")
            try:
                record = self._decode(message.value() or b"").record
            except WireFormatError:
                found.undecodable += 1
            else:
                yield message, record

    def _messages(self, topics: tuple[str, ...], since_ms: int, until_ms: int) -> Iterator[Message]:
        with closing(records.read(self._kafka, *topics, since_ms=since_ms, until_ms=until_ms)) as messages:
            yield from messages


def _place(message: Message) -> TopicPartitionOffset:
    return message.topic() or "", message.partition() or 0, message.offset() or 0
