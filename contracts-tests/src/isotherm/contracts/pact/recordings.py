"""What a provider writes, byte for byte: a consumer that is newer than the provider is checked against these.

Values are kept with the schema that they were written with, since ids differ from registry to registry.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isotherm.contracts.harness import PARTITIONER, Harness, Message
from isotherm.servicekit.avro import split

_HEADER_BYTES = 5


def recorded(messages: Mapping[str, Message], harness: Harness) -> dict[str, Any]:
    """Messages in the form of a recording."""
    return {
        name: {
            "topic": message.topic,
            "key": message.key,
            "headers": dict(message.headers),
            "partitioner": message.partitioner,
            **_value(message, harness),
        }
        for name, message in messages.items()
    }


def _value(message: Message, harness: Harness) -> dict[str, Any]:
    """The body behind the schema id, and the schema; for a value without a schema all of it, and None."""
    record = harness.catalog.records.get(message.topic)
    writer = None if record is None else _version(record, message, harness)
    body = message.value if writer is None else message.value[_HEADER_BYTES:]
    return {"writer": writer, "body": base64.b64encode(body).decode("ascii")}


def _version(record: str, message: Message, harness: Harness) -> dict[str, Any]:
    # By content: a late reading keeps the id that it got in the topic where it was written.
    written = harness.registry.schema(split(message.value)).json
    (version,) = (version for version, schema in harness.catalog.schemas[record].items() if schema == written)
    return {"record": record, "version": version}


def write(folder: Path, provider: str, messages: Mapping[str, Message], harness: Harness) -> Path:
    """Record a provider's messages; the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{provider}.json"
    path.write_text(json.dumps(recorded(messages, harness), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def read(folder: Path, harness: Harness) -> dict[str, dict[str, Message]]:
    """Every provider's messages in a folder, with the ids of the harness's registry.

    The harness's catalog must be the one that they were written with.
    """
    found: dict[str, dict[str, Message]] = {}
    for path in sorted(folder.glob("*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        found[path.stem] = {name: _message(one, harness) for name, one in kept.items()}
    return found


def _message(kept: Mapping[str, Any], harness: Harness) -> Message:
    value = base64.b64decode(kept["body"])
    if kept["writer"] is not None:
        writer = harness.catalog.schema(kept["writer"]["record"], kept["writer"]["version"])
        schema_id = harness.registry.schema_id(f"{kept['topic']}-value", writer)
        value = b"\x00" + schema_id.to_bytes(4, "big") + value
    # Recordings up to 0.9.0 do not name the partitioner; every producer had this one.
    return Message(kept["topic"], kept["key"], value, kept["headers"], kept.get("partitioner", PARTITIONER))
