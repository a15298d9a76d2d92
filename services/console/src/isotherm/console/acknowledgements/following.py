"""Lets the follower of reconciliation bring records and pages to the check."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from confluent_kafka import Message

from isotherm.connector.attestation.attester import SCHEMA, TOPIC
from isotherm.console.acknowledgements.check import AcknowledgementCheck
from isotherm.console.reconciliation.decoding import value_of
from isotherm.console.reconciliation.follower import FollowedTopic
from isotherm.servicekit.avro import Decoder, SchemaRegistry, WireFormatError


def followed(
    topics: Mapping[str, FollowedTopic], readings: Sequence[str], check: AcknowledgementCheck, schemas: SchemaRegistry
) -> dict[str, FollowedTopic]:
    """Return `topics` so that `check` has the records of `readings` first, and the topic of attestations."""
    decode = Decoder(schemas, SCHEMA)

    def use_page(message: Message) -> None:
        try:
            check.page(decode(value_of(message)).record)
        except (ValueError, struct.error) as error:
            raise WireFormatError(f"no attestation of a service: {error}") from None

    return {
        **topics,
        **{name: topics[name]._replace(use=partial(_record_first, check, topics[name].use)) for name in readings},
        # Whoever cannot read it compares windows all the same.
        TOPIC: FollowedTopic(use_page, is_optional=True, is_awaited=False),
    }


def _record_first(check: AcknowledgementCheck, use: Callable[[Message], None], message: Message) -> None:
    value = message.value()
    if isinstance(value, bytes):
        check.record(
            message.topic() or "", message.partition() or 0, message.offset() or 0, message.key() or b"", value
        )
    use(message)
