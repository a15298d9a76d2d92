"""Which records services have attested, and which are in their topics: each by topic, partition, offset and digest."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import closing

from isotherm.cli import records
from isotherm.connector.attestation.attester import SCHEMA, TOPIC
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

Placed = Counter[tuple[str, int, int, int]]


def attested(kafka: KafkaSettings, registry: RegistrySettings, service: str, topic: str) -> Placed:
    """Return the records of a topic that a service has attested."""
    schemas = SchemaRegistry(registry)
    decode = Decoder(schemas, SCHEMA)
    with closing(records.read(kafka, TOPIC)) as messages:
        pages = [decode(message.value() or b"").record for message in messages]
    schemas.close()
    return Counter(
        (topic, page["partition"], run["first_offset"] + at, digest)
        for page in pages
        if page["service"] == service and page["topic"] == topic
        for run in page["runs"]
        for at, digest in enumerate(run["digests"])
    )


def stored(kafka: KafkaSettings, topic: str, is_mine: Callable[[bytes], bool]) -> Placed:
    """Return the records of a topic whose keys are those of a test."""
    with closing(records.read(kafka, topic)) as messages:
        return Counter(
            (
                topic,
                message.partition() or 0,
                message.offset() or 0,
                zlib.crc32((message.key() or b"") + (message.value() or b"")) & 0xFFFF,
            )
            for message in messages
            if is_mine(message.key() or b"")
        )
