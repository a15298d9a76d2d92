"""Converters of a sink connector: `value.converter`, `key.converter` and the keys below them, as in Kafka Connect.

Every key of Connect's converters is accepted. A key without effect in a sink gives a notice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from isotherm.connector.config.definitions import Importance, Key, Type
from isotherm.connector.config.masking import without_userinfo
from isotherm.connector.config.validation import Problem, Validated
from isotherm.servicekit.settings import RegistrySettings

VALUE, KEY = "value", "key"
PARTS = (VALUE, KEY)
JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
APICURIO_CONVERTER = "io.apicurio.registry.utils.converter.AvroConverter"
CONVERTERS: Mapping[str, str] = {
    "auto": "auto",
    "avro": "avro",
    "json": "json",
    "string": "string",
    "bytes": "bytes",
    "protobuf": "protobuf",
    "jsonschema": "jsonschema",
    "io.confluent.connect.protobuf.ProtobufConverter": "protobuf",
    "io.confluent.connect.json.JsonSchemaConverter": "jsonschema",
    "io.confluent.connect.avro.AvroConverter": "avro",
    JSON_CONVERTER: "json",
    APICURIO_CONVERTER: "avro",
    "org.apache.kafka.connect.storage.StringConverter": "string",
    "org.apache.kafka.connect.converters.ByteArrayConverter": "bytes",
}
"""Allowed values of `value.converter` and `key.converter`, each with its format."""

_WITH_REGISTRY = ("auto", "avro", "protobuf", "jsonschema")
_WITH_ENVELOPES = ("auto", "json")
_URL, _USER, _SOURCE = "schema.registry.url", "basic.auth.user.info", "basic.auth.credentials.source"
_ENVELOPES = "schemas.enable"
_AS_CONFLUENT = "apicurio.registry.as-confluent"
_APICURIO_PATH = re.compile(r"/apis/registry/v[23]/?$")
"""Apicurio's own API; the same registry speaks Confluent's under another path."""
_CONFLUENT_PATH = "/apis/ccompat/v7"
_WITHOUT_EFFECT = {
    "schemas.cache.size": "every schema is cached",
    "auto.register.schemas": "a sink registers no schemas",
    "use.latest.version": "values are read with the writer's schema",
    "connect.meta.data": "values are read with the writer's schema",
    "enhanced.avro.schema.support": "enums become texts, and record names are kept",
    "enhanced.protobuf.schema.support": "message names are kept",
    "wrapper.for.nullables": "wrapped values are plain values that may be null",
    "optional.for.nullables": "fields that can tell that they are absent may be null",
    "generate.index.for.unions": "the fields of a oneof are fields of the message",
    "json.fail.invalid.schema": "values are not checked against their JSON Schema",
}


def converter_keys() -> tuple[Key, ...]:
    """The keys of both converters."""
    return tuple(key for part in PARTS for key in _keys(part))


def meaning(config: Validated, part: str) -> str:
    """The format of keys or values, one of the values of CONVERTERS; `auto` for an unknown converter."""
    return CONVERTERS.get(config.text(f"{part}.converter"), "auto")


def is_enveloped(config: Validated, part: str) -> bool:
    """Whether JSON is `{"schema": .., "payload": ..}`: `schemas.enable`, which defaults to true for Connect's class."""
    name = f"{part}.converter.{_ENVELOPES}"
    return config.flag(name) if config.text(name) else config.text(f"{part}.converter") == JSON_CONVERTER


def registry_settings(config: Validated, part: str, of_process: RegistrySettings) -> RegistrySettings:
    """How to reach the registry of keys or values: the process's settings, overridden by the connector's keys."""
    url, user = (config.text(f"{part}.converter.{name}") for name in (_URL, _USER))
    changed: dict[str, object] = {}
    if url:
        url = ",".join(_APICURIO_PATH.sub(_CONFLUENT_PATH, one.strip()) for one in url.split(","))
        # The process's credentials belong to the process's registry and must not go to another one.
        changed = {"url": url, "basic_auth_user_info": None}
    if user:
        changed["basic_auth_user_info"] = user
    return RegistrySettings.model_validate({**of_process.model_dump(), **changed}) if changed else of_process


def problems(config: Validated) -> list[Problem]:
    """Every problem of the converters' keys."""
    found = []
    for part in PARTS:
        name, user = f"{part}.converter", f"{part}.converter.{_USER}"
        if config.is_resolved(name) and config.text(name) not in CONVERTERS:
            expected = ", ".join(CONVERTERS)
            found.append(Problem(name, f"{config.text(name)!r} is not allowed; expected one of {expected}"))
        if config.text(f"{name}.{_SOURCE}").upper() == "USER_INFO" and not config.text(user):
            found.append(Problem(user, f"missing: {name}.{_SOURCE} is USER_INFO"))
        if config.text(name) == APICURIO_CONVERTER and config.text(f"{name}.{_AS_CONFLUENT}").lower() != "true":
            why = "ids of schemas are read as Confluent writes them, 4 bytes; Apicurio's own format has 8"
            found.append(Problem(f"{name}.{_AS_CONFLUENT}", f"expected true: {why}"))
        url = f"{name}.{_URL}"
        if config.is_resolved(url) and not all(one.startswith(("http://", "https://")) for one in config.items(url)):
            found.append(Problem(url, f"{without_userinfo(config.text(url))!r} is not allowed; expected http(s)://.."))
        if config.text(user) and "@" in config.text(f"{name}.{_URL}"):
            found.append(Problem(user, f"not allowed together with a user in {name}.{_URL}"))
    return found


def notices(config: Validated) -> list[Problem]:
    """A notice for every given key that the chosen converter does not use."""
    found = []
    for part in PARTS:
        name, means = f"{part}.converter", meaning(config, part)
        unused = [] if means in _WITH_ENVELOPES else [_ENVELOPES]
        unused += [] if means in _WITH_REGISTRY else [_URL, _USER, _SOURCE]
        given = [f"{name}.{key}" for key in unused if f"{name}.{key}" in config.given]
        found += [Problem(key, f"has no effect: {config.text(name)} does not read it") for key in given]
    return found


def _keys(part: str) -> list[Key]:
    low, name = Importance.LOW, f"{part}.converter"
    what = f"{part}s"
    keys = [
        Key(
            name,
            Type.STRING,
            "auto",
            "How values are decoded: avro, protobuf, jsonschema, json, string, bytes, or Connect's converter classes; "
            "auto takes what begins with the wire format's magic byte by its schema's type, everything else as JSON."
            if part == VALUE
            else "How keys are decoded; see value.converter.",
        ),
        Key(
            f"{name}.{_ENVELOPES}",
            Type.BOOLEAN,
            None,
            f"JSON {what} are `{{schema, payload}}` envelopes; by default true for {JSON_CONVERTER}, as in Connect, "
            "and false for auto and json.",
            low,
        ),
        Key(
            f"{name}.{_URL}",
            Type.STRING,
            "",
            f"Schema registry of the {what}; the worker's registry by default. An address of Apicurio's own API "
            "(`/apis/registry/v2`) means the one of Confluent's API beside it.",
            aliases=(f"{name}.apicurio.registry.url",),
        ),
        Key(
            f"{name}.{_AS_CONFLUENT}",
            Type.BOOLEAN,
            None,
            f"Must be true for {APICURIO_CONVERTER}: ids of schemas have 4 bytes.",
            low,
        ),
        Key(
            f"{name}.{_USER}",
            Type.PASSWORD,
            "",
            "`user:password` for that registry.",
            aliases=(f"{name}.schema.registry.{_USER}",),
        ),
        Key(
            f"{name}.{_SOURCE}",
            Type.STRING,
            "",
            f"Where user and password stand: USER_INFO in {name}.{_USER}, URL in the registry's address.",
            low,
            allowed=("USER_INFO", "URL"),
        ),
    ]
    doc = "Accepted for compatibility with Kafka Connect."
    return keys + [
        Key(f"{name}.{key}", Type.STRING, None, doc, low, without_effect=why) for key, why in _WITHOUT_EFFECT.items()
    ]
