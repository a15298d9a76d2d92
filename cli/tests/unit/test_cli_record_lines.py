"""The lines of `isotherm tail`: one for every record, even if it cannot be decoded."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Message

from isotherm.cli.record_lines import json_line, where_condition
from isotherm.servicekit.avro import (
    Decoder,
    SchemaRegistry,
    WriterSchema,
    encoder,
    parse,
)
from isotherm.servicekit.settings import RegistrySettings

CHAIN = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoder]:
    """A decoder that knows one schema."""
    registry = SchemaRegistry(RegistrySettings())
    monkeypatch.setattr(registry, "schema", lambda schema_id: WriterSchema(schema_id, CHAIN, parse(CHAIN)))
    yield Decoder(registry)
    registry.close()


def chain(links: int) -> Message:
    value = encoder(CHAIN, 7)({"next": None})[:5] + b"\x02" * links + b"\x00"
    return Message(topic="t", partition=0, offset=3, key=b"k", value=value, headers=[], timestamp=(1, 5))


def test_a_record_is_shown_decoded(decoder: Decoder) -> None:
    assert json.loads(json_line(chain(1), decoder, headers=True)) == {
        "partition": 0,
        "offset": 3,
        "timestamp": 5,
        "key": "k",
        "headers": [],
        "value": {"next": {"next": None}},
    }
    assert where_condition(["next.next=null"], decoder)(chain(1))


def test_a_record_that_is_too_deep_for_json_is_shown_raw_with_the_reason(decoder: Decoder) -> None:
    message = chain(2_000)
    shown = json.loads(json_line(message, decoder, headers=False))
    value = message.value()
    assert isinstance(value, bytes)
    assert base64.b64decode(shown["value_base64"]) == value
    assert "recursion" in shown["error"]
    assert not where_condition(["next=null"], decoder)(message)
