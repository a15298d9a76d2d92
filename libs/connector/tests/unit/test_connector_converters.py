"""The converters' keys, and the errors for keys that would silently change the meaning of a configuration."""

from __future__ import annotations

import pytest

from isotherm.connector.config import converters
from isotherm.connector.config.converters import converter_keys, is_enveloped, registry_settings
from isotherm.connector.config.definitions import Definition, common_keys
from isotherm.connector.config.files import from_mapping
from isotherm.connector.config.validation import Validated, validate
from isotherm.servicekit.settings import RegistrySettings

DEFINITION = Definition("Sink", "sink", (*common_keys("Sink"), *converter_keys()))
AVRO, TEXT = "io.confluent.connect.avro.AvroConverter", "org.apache.kafka.connect.storage.StringConverter"
OF_PROCESS = RegistrySettings(url="http://process:8081", basic_auth_user_info="p:secret")


def checked(given: dict[str, str]) -> Validated:
    return validate(DEFINITION, from_mapping({"name": "n", "connector.class": "Sink", **given}))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, False),
        ({"value.converter": "json"}, False),
        ({"value.converter": converters.JSON_CONVERTER}, True),
        ({"value.converter": converters.JSON_CONVERTER, "value.converter.schemas.enable": "false"}, False),
        ({"value.converter": "auto", "value.converter.schemas.enable": "TRUE"}, True),
    ],
)
def test_envelopes_are_as_connect_has_them(given: dict[str, str], expected: bool) -> None:
    assert is_enveloped(checked(given), "value") is expected


def test_the_registry_of_a_converter_goes_before_the_processs() -> None:
    assert registry_settings(checked({}), "value", OF_PROCESS) == OF_PROCESS
    named = checked({"value.converter.schema.registry.url": "http://other:8081"})
    assert registry_settings(named, "value", OF_PROCESS) == RegistrySettings(url="http://other:8081")
    assert registry_settings(named, "key", OF_PROCESS) == OF_PROCESS
    for user in ("basic.auth.user.info", "schema.registry.basic.auth.user.info"):
        found = registry_settings(checked({f"key.converter.{user}": "u:p"}), "key", OF_PROCESS)
        assert found.url == OF_PROCESS.url
        assert found.basic_auth_user_info is not None
        assert found.basic_auth_user_info.get_secret_value() == "u:p"
    assert DEFINITION.is_secret("value.converter.basic.auth.user.info")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"value.converter": "xml"}, "value.converter: 'xml' is not allowed; expected one of auto"),
        ({"value.converter.schema.registry.url": "registry:8081"}, "expected http(s)://"),
        ({"key.converter.basic.auth.credentials.source": "USER_INFO"}, "key.converter.basic.auth.user.info: missing"),
        (
            {"value.converter.schema.registry.url": "http://u:p@r", "value.converter.basic.auth.user.info": "u:p"},
            "not allowed together with a user in value.converter.schema.registry.url",
        ),
    ],
)
def test_what_cannot_work_is_told(given: dict[str, str], told: str) -> None:
    found = "\n".join(map(str, converters.problems(checked(given))))
    assert told in found
    assert "u:p" not in found


def test_nothing_under_a_converter_vanishes_without_a_notice() -> None:
    text = checked({"value.converter": TEXT, "value.converter.schemas.enable": "true"})
    (unused,) = converters.notices(text)
    assert unused.key == "value.converter.schemas.enable"
    avro = checked({"value.converter": AVRO, "value.converter.schema.registry.url": "http://r"})
    assert converters.notices(avro) == []
    given = {"value.converter.auto.register.schemas": "true", "value.converter.schema.registry.urls": "http://r"}
    found = {notice.key: notice.message for notice in checked(given).notices}
    assert "a sink registers no schemas" in found["value.converter.auto.register.schemas"]
    assert "did you mean value.converter.schema.registry.url" in found["value.converter.schema.registry.urls"]


def test_apicurios_address_means_its_confluent_api() -> None:
    process = RegistrySettings(url="http://own:1")
    for written, used in (
        ("http://r:8080/apis/registry/v2", "http://r:8080/apis/ccompat/v7"),
        ("http://r:8080/apis/registry/v3/", "http://r:8080/apis/ccompat/v7"),
        ("http://r:8080/apis/ccompat/v7", "http://r:8080/apis/ccompat/v7"),
        ("http://r:8081", "http://r:8081"),
    ):
        config = checked({"value.converter": AVRO, "value.converter.apicurio.registry.url": written})
        assert registry_settings(config, "value", process).url == used


def test_apicurios_converter_must_write_confluents_ids() -> None:
    given = {"value.converter": converters.APICURIO_CONVERTER}
    (problem,) = converters.problems(checked(given))
    assert (problem.key, "expected true" in problem.message) == ("value.converter.apicurio.registry.as-confluent", True)
    assert converters.problems(checked({**given, "value.converter.apicurio.registry.as-confluent": "true"})) == []


def test_the_formats_of_a_registry_are_known_by_their_classes() -> None:
    for name, means in (
        ("io.confluent.connect.protobuf.ProtobufConverter", "protobuf"),
        ("io.confluent.connect.json.JsonSchemaConverter", "jsonschema"),
        ("protobuf", "protobuf"),
        ("jsonschema", "jsonschema"),
    ):
        config = checked({"key.converter": name, "key.converter.schema.registry.url": "http://r:1"})
        assert converters.meaning(config, "key") == means
        assert converters.problems(config) == []
        assert converters.notices(config) == []
