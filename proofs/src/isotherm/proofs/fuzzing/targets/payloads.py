"""Payloads of devices: JSON, CBOR, SenML in both, and the readings that are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import cbor2

import isotherm.schemas
from isotherm import payloads
from isotherm.proofs.fuzzing.target import Target, expect
from isotherm.servicekit.avro import WriterSchema, encoder, parse, read_value

_NOW_MS = 1_790_000_000_000
_DEFAULTS = payloads.Defaults("device", "temperature", {"temperature": "Cel"}, _NOW_MS)
_JSON, _CBOR = 50, 60


def payload_target(content_format: int | None) -> Callable[[bytes], None]:
    """Return the check that a payload becomes rows, and rows become readings that survive Avro."""
    schema = isotherm.schemas.schema("SensorReading", 1)
    plain = {**schema, "fields": [_without_logical_type(field) for field in schema["fields"]]}
    encode, writer = encoder(schema, 1), WriterSchema(1, plain, parse(plain))

    def run(data: bytes) -> None:
        try:
            rows = payloads.decode(data, content_format, now_ms=_NOW_MS)
        except payloads.PayloadError:
            return
        expect(bool(rows) and all(type(row) is dict for row in rows), "rows are dictionaries, at least one")
        for index, row in enumerate(rows[:100]):
            try:
                reading = payloads.record(row, _DEFAULTS, index)
            except payloads.PayloadError:
                continue
            expect(math.isfinite(reading["value"]), "the value of a reading is finite")
            expect(read_value(encode(reading), writer) == reading, "a reading changes in Avro")
        if content_format == _JSON and _is_small(rows):
            # A single object is an array here, which is one level deeper.
            again = payloads.decode(cbor2.dumps(rows), _CBOR, limits=payloads.Limits(max_depth=17), now_ms=_NOW_MS)
            expect(again == rows, "JSON and CBOR of the same rows differ")

    return run


def _without_logical_type(field: dict[str, object]) -> dict[str, object]:
    of = field["type"]
    return {**field, "type": of["type"]} if isinstance(of, dict) and "logicalType" in of else field


def _is_small(rows: object) -> bool:
    """Return whether no integer needs the big numbers of CBOR, which are refused."""
    if isinstance(rows, dict):
        return all(map(_is_small, rows.values()))
    if isinstance(rows, list):
        return all(map(_is_small, rows))
    return not isinstance(rows, int) or -(2**64) <= rows < 2**64


_TEXTS = (b'"device_id"', b'"value"', b'"event_time"', b'"sequence"', b'"attributes"', b'"metric"', b"null", b"1e308")
_SENML = tuple(
    f'"{label}":'.encode()
    for label in ("bver", "bn", "bt", "bu", "bv", "bs", "n", "u", "v", "vs", "vb", "vd", "s", "ut")
)
_HEADS = (
    b"\xc4\x82",
    b"\xc1\xfb",
    b"\xc0\x74",
    b"\xd9\x01\x00",
    b"\xd8\x19",
    b"\xd8\x1c",
    b"\xd8\x1d",
    b"\x9f",
    b"\xff",
)
_FORMATS: tuple[tuple[str, int | None, tuple[bytes, ...]], ...] = (
    ("payload-json", _JSON, _TEXTS),
    ("payload-unnamed", None, _TEXTS),
    ("payload-cbor", _CBOR, _HEADS),
    ("senml-json", 110, _SENML),
    ("senml-cbor", 112, _HEADS),
)

TARGETS = tuple(
    Target(name=name, make=partial(payload_target, number), dictionary=tokens) for name, number, tokens in _FORMATS
)
