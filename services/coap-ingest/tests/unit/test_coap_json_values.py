"""JSON values in the form of Connect's JsonConverter."""

from __future__ import annotations

import json

import pytest

import isotherm.schemas
from isotherm.coap_ingest.ingest.json_values import connect_schema, encoder

READING = isotherm.schemas.schema("SensorReading", 1)


def test_without_schemas_a_record_is_its_json() -> None:
    assert encoder(READING, with_schema=False)({"device_id": "a", "value": 1.5}) == b'{"device_id":"a","value":1.5}'


def test_with_schemas_every_record_of_the_suite_is_an_envelope_that_names_its_types() -> None:
    said = json.loads(encoder(READING, with_schema=True)({"device_id": "\u00b0"}))
    assert said["payload"] == {"device_id": "\u00b0"}
    assert (said["schema"]["type"], said["schema"]["name"]) == ("struct", "isotherm.SensorReading")
    fields = {field["field"]: field for field in said["schema"]["fields"]}
    assert fields["value"] == {"type": "double", "optional": False, "field": "value"}
    assert fields["event_time"]["type"] == "int64"
    assert fields["event_time"]["name"] == "org.apache.kafka.connect.data.Timestamp"
    assert fields["attributes"]["values"] == {"type": "string", "optional": False}
    message = connect_schema(isotherm.schemas.schema("CoapMessage", 1))
    by_name = {field["field"]: field for field in message["fields"]}
    assert by_name["message_id"] == {"type": "int32", "optional": True, "field": "message_id"}
    assert by_name["etags"]["items"] == {"type": "string", "optional": False}


def test_a_union_without_a_connect_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="no schema in Connect"):
        connect_schema(["null", "string", "long"])
