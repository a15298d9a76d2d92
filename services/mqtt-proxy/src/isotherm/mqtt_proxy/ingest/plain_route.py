"""What the compiled way has to know of a route: names, defaults, and the bytes before each Avro record (ADR 114)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from isotherm.payloads.readings import MAX_NAME_CHARS

Encode = Callable[[Mapping[str, Any]], bytes]

PLAIN_TOPIC_BYTES = 256
"""Bytes of the longest topic name that stands for others with another device."""

_HEADER_BYTES = 5
_PROBE = {
    "device_id": "d",
    "metric": "m",
    "value": 0.0,
    "unit": "u",
    "event_time": 1,
    "ingest_time": 2,
    "sequence": 3,
    "attributes": {},
}
_PROBE_BODY = b"\x02d\x02m" + bytes(8) + b"\x02u\x02\x04\x06\x00"


class PlainRoute(NamedTuple):
    """How the plain payloads of one MQTT topic become records of `target`.

    `header` comes before each record. `names` maps names in the payload to fields; with `is_strict` a payload with
    another name is not plain. `device_id`, `metric` and `unit` are defaults; with `is_bound` a payload may name no
    other device. A payload may hold `most_readings`. `device_span` is where the topic's name has the device, begin and
    end, if every topic with another device there has the same route.
    """

    target: str
    header: bytes
    names: Mapping[str, str]
    is_strict: bool
    device_id: str | None
    is_bound: bool
    metric: str | None
    unit: str | None
    most_readings: int
    device_span: tuple[int, int] | None


def plain_route(
    target: str,
    *,
    encode: Encode,
    names: Mapping[str, str],
    is_strict: bool,
    device_id: str,
    is_bound: bool,
    metric: str | None,
    units: Mapping[str, str],
    most_readings: int,
    device_span: tuple[int, int] | None = None,
) -> PlainRoute | None:
    """Return the route; None when `encode` writes another schema, or the bound device is not valid."""
    header = _header(encode)
    device = _name(device_id)
    if header is None or (is_bound and device is None):
        return None
    unit = units.get(metric) if metric is not None else None
    if unit is not None and len(unit) > MAX_NAME_CHARS:
        unit = None
    return PlainRoute(
        target, header, names, is_strict, device, is_bound, _name(metric), unit, most_readings, device_span
    )


@lru_cache(maxsize=1_000)
def _header(encode: Encode) -> bytes | None:
    """Return what `encode` writes before a body; None when its bodies are not those that the compiled code writes."""
    written = encode(_PROBE)
    return written[:_HEADER_BYTES] if written[_HEADER_BYTES:] == _PROBE_BODY else None


def _name(text: str | None) -> str | None:
    return text if text is not None and 0 < len(text) <= MAX_NAME_CHARS else None
