"""The declared topics and their records as an AsyncAPI 3.0 document, and as a page for people.

Source: AsyncAPI specification 3.0.0, its Kafka bindings 0.5.0.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fastavro

import isotherm.schemas
from isotherm.schemas import Topic

with warnings.catch_warnings():
    # Two of its models have a field called `schema`, as the specification has.
    warnings.simplefilter("ignore", UserWarning)
    from asyncapi3.models import AsyncAPI3

_AVRO = "application/vnd.apache.avro;version=1.9.0"
_KAFKA_BINDING = "0.5.0"


def document() -> dict[str, Any]:
    """The AsyncAPI document of every declared topic that carries records."""
    written = [topic for topic in isotherm.schemas.topics() if topic.record is not None]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Isotherm",
            "version": "1.0.0",
            "description": "Every message between the services; generated from schemas/, `make contracts-update`.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/vnd.confluent.avro",
        "channels": {_key(topic): _channel(topic) for topic in written},
        "operations": {name: operation for topic in written for name, operation in _operations(topic)},
        "components": {"messages": {name: message for topic in written for name, message in _messages(topic)}},
    }


def _key(topic: Topic) -> str:
    # Keys of the document have no dots; the address of the channel has the topic's real name.
    return topic.name.replace(".", "-")


def _channel(topic: Topic) -> dict[str, Any]:
    return {
        "address": topic.name,
        "description": topic.description,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name, _ in _messages(topic)},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": _configuration(topic),
                "bindingVersion": _KAFKA_BINDING,
            }
        },
        "x-owner": topic.owner,
        "x-compatibility": topic.compatibility,
        "x-semantics": topic.semantics,
    }


def _configuration(topic: Topic) -> dict[str, Any]:
    binding: dict[str, Any] = {"cleanup.policy": topic.config["cleanup.policy"].split(",")}
    if "retention.ms" in topic.config:
        binding["retention.ms"] = int(topic.config["retention.ms"])
    return binding


def _operations(topic: Topic) -> Iterator[tuple[str, dict[str, Any]]]:
    channel = {"$ref": f"#/channels/{_key(topic)}"}
    for writer in topic.writers:
        planned = {"x-planned": True} if writer in topic.planned_writers else {}
        yield f"{writer}-writes-{_key(topic)}", {"action": "send", "channel": channel, **planned}
    for reader in topic.readers:
        planned = {"x-planned": True} if reader.service in topic.planned_readers else {}
        messages = [{"$ref": f"#/channels/{_key(topic)}/messages/{name}"} for name, _ in _messages(topic)]
        operation = {"action": "receive", "channel": channel, "messages": messages, "x-reader-version": reader.version}
        yield f"{reader.service}-reads-{_key(topic)}", {**operation, **planned}


def _messages(topic: Topic) -> Iterator[tuple[str, dict[str, Any]]]:
    """One message for each version of the topic's record."""
    record = topic.record or ""
    key = {"type": "string", "description": topic.key.get("description", topic.key.get("format", ""))}
    for version in isotherm.schemas.versions(record):
        schema = isotherm.schemas.schema(record, version)
        yield (
            f"{_key(topic)}-v{version}",
            {
                "name": record,
                "title": f"{record} v{version}",
                "summary": schema["doc"],
                "payload": {"schemaFormat": _AVRO, "schema": schema},
                "bindings": {
                    "kafka": {"key": key, "schemaIdLocation": "payload", "bindingVersion": _KAFKA_BINDING},
                },
            },
        )


def problems(text: str) -> list[str]:
    """The errors of a document: against the specification, in its references, in its Avro schemas."""
    written = json.loads(text)
    found = []
    try:
        AsyncAPI3.model_validate(written)
    except ValueError as error:
        found += [line.strip() for line in str(error).splitlines()[1:4]]
    found += [
        f"{reference} leads nowhere" for reference in _references(written) if _resolve(written, reference) is None
    ]
    for name, message in written.get("components", {}).get("messages", {}).items():
        try:
            fastavro.parse_schema(message["payload"]["schema"], named_schemas={})
        except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
            found.append(f"{name}: no Avro schema: {error!r}")
    return found


def _path(loc: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in loc if not str(part).startswith("function-"))


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for inner in node.values():
            yield from _references(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _references(inner)


def _resolve(document: Any, reference: str) -> Any:
    """The target of a reference inside the document (RFC 6901), through other references; None when there is none."""
    node = document
    for part in reference.removeprefix("#/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        node = node.get(name) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping) and "$ref" in node:
            node = _resolve(document, node["$ref"])
    return node


def text() -> str:
    """The text of the committed document."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def page() -> str:
    """The page for people: each topic's writers and readers, and the meaning of each field."""
    lines = [
        "# Topics and schemas",
        "",
        "Generated from the folder `schemas/` by `make contracts-update`; the same as an",
        "[AsyncAPI 3 document](asyncapi.json). (planned) is designed and not built yet.",
        "",
        "| topic | record | key | from | to | owner |",
        "|---|---|---|---|---|---|",
    ]
    topics = isotherm.schemas.topics()
    for topic in topics:
        writers = [_named(writer, writer in topic.planned_writers) for writer in topic.writers]
        readers = [
            _named(f"{one.service} v{one.version}", one.service in topic.planned_readers) for one in topic.readers
        ]
        key = _cell(topic.key.get("field") or topic.key.get("format", ""))
        columns = [f"[`{topic.name}`](#{_anchor(topic.name)})", topic.record or "-", key]
        lines.append(f"| {' | '.join([*columns, _cell(', '.join(writers)), _cell(', '.join(readers)), topic.owner])} |")
    for topic in topics:
        lines += ["", f"## {topic.name}", "", topic.description, *_details(topic)]
    return "\n".join(lines) + "\n"


def _named(name: str, planned: bool) -> str:
    return f"{name} (planned)" if planned else name


def _anchor(name: str) -> str:
    return name.replace(".", "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or "-"


def _details(topic: Topic) -> Iterator[str]:
    config = ", ".join(f"`{name}={value}`" for name, value in topic.config.items())
    yield ""
    yield f"{topic.partitions} partitions, {config}; compatibility {topic.compatibility or '-'}."
    for name, rule in topic.semantics.items():
        if name == "headers":
            for writer, headers in rule.items():
                yield f"- headers of {writer}: {', '.join(headers['always']) or 'none'} always; may have " + (
                    ", ".join(headers["optional"]) or "none"
                )
        else:
            yield f"- {name}: {rule if isinstance(rule, str) else json.dumps(rule)}"
    if topic.record is not None and topic.version is not None:
        schema = isotherm.schemas.schema(topic.record, topic.version)
        yield from ("", f"{topic.record} v{topic.version}: {schema['doc']}", "", "| field | type | default | what |")
        yield "|---|---|---|---|"
        for field in schema["fields"]:
            default = f"`{json.dumps(field['default'])}`" if "default" in field else ""
            yield f"| {field['name']} | {_cell(_type(field['type']))} | {default} | {_cell(field.get('doc', ''))} |"


def _type(kind: Any) -> str:
    if isinstance(kind, list):
        return " or ".join(_type(branch) for branch in kind)
    if isinstance(kind, str):
        return kind
    if "logicalType" in kind:
        return str(kind["logicalType"])
    if kind["type"] in ("array", "map"):
        return f"{kind['type']} of {_type(kind.get('items', kind.get('values')))}"
    return str(kind.get("name", kind["type"]))
