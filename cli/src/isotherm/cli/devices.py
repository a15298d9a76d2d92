"""Import of devices' metadata: JSON lines into the compacted topic `devices`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from confluent_kafka import KafkaError, Message, Producer

import isotherm.schemas
from isotherm.servicekit.avro import SchemaRegistry, WireFormatError
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

TOPIC = "devices"
DEVICE = isotherm.schemas.schema("Device", 2)
_FIELDS = tuple(schema_field["name"] for schema_field in DEVICE["fields"])
_DEFAULTS = {f["name"]: f["default"] for f in DEVICE["fields"] if "default" in f}
_FLUSH_TIMEOUT_S = 60.0
_SURROGATE = re.compile("[\ud800-\udfff]")


class BadDeviceError(ValueError):
    """The line is not a device; the text gives the reason."""


@dataclass
class Imported:
    """How many devices Kafka has stored, and the problems of the other lines."""

    stored: int = 0
    problems: list[str] = field(default_factory=list)


def parse(text: str) -> dict[str, Any]:
    """Parse one line of JSON to a Device record; missing fields get their defaults.

    Raises BadDeviceError naming the field.
    """
    try:
        device = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise BadDeviceError("not JSON: nested too deeply") from None
    except ValueError as error:
        # Also a number of more than 4,300 digits.
        raise BadDeviceError(f"not JSON: {error}") from None
    if not isinstance(device, Mapping):
        raise BadDeviceError(f"expected an object, got {type(device).__name__}")
    unknown = sorted(set(device) - set(_FIELDS))
    if unknown:
        raise BadDeviceError(f"unknown field {unknown[0]}; a device has {', '.join(_FIELDS)}")
    device_id = device.get("device_id")
    if not isinstance(device_id, str) or not device_id:
        raise BadDeviceError(f"device_id must be a non-empty text, got {device_id!r}")
    if _SURROGATE.search(device_id):
        raise BadDeviceError("device_id has half of a surrogate pair, which is no text")
    return {**_DEFAULTS, **device}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def import_lines(lines: Iterable[str], kafka: KafkaSettings, registry: RegistrySettings) -> Imported:
    """Store each line's device under its id. A bad line is reported and does not stop the import.

    Raises SchemaNotRegisteredError, RegistryUnavailableError.
    """
    encode = SchemaRegistry(registry).encoder(TOPIC, DEVICE)
    return import_with(lines, encode, clients.producer(kafka, "isotherm-devices"))


def import_with(lines: Iterable[str], encode: Callable[[Mapping[str, Any]], bytes], producer: Producer) -> Imported:
    """Import lines as `import_lines` does, with a given encoder of the topic's values and a given producer."""
    imported = Imported()

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            imported.stored += 1
        else:
            imported.problems.append(f"{(message.key() or b'').decode()}: Kafka did not store it: {error.str()}")

    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            device = parse(text)
            value = encode(device)
        except (BadDeviceError, WireFormatError) as error:
            imported.problems.append(f"line {number}: {error}")
            continue
        while True:
            try:
                producer.produce(TOPIC, key=device["device_id"], value=value, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(_FLUSH_TIMEOUT_S)
    if left:
        imported.problems.append(f"{left} devices were not acknowledged by Kafka in {_FLUSH_TIMEOUT_S:.0f} s")
    return imported
