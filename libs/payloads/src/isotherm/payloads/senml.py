"""Resolves SenML packs (RFC 8428): applies base fields, makes times absolute, returns one row for each record.

A row has `name` (base name and name joined), `device_id` (the base name without a final separator), `metric` (the
name after the base name), `unit`, `value`, `event_time` (epoch ms) and, when the record has them, `string_value`,
`data_value`, `sum` and `update_time`. A boolean (`vb`) is the value 1.0 or 0.0. A row has only the fields that its
record has; it has no `device_id` without a base name, and no `metric` without a name after it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isotherm.payloads.errors import PayloadError
from isotherm.payloads.times import MAX_EPOCH_MS

_CBOR_LABELS = {
    -1: "bver",
    -2: "bn",
    -3: "bt",
    -4: "bu",
    -5: "bv",
    -6: "bs",
    0: "n",
    1: "u",
    2: "v",
    3: "vs",
    4: "vb",
    5: "s",
    6: "t",
    7: "ut",
    8: "vd",
}
"""The integer map keys of the CBOR representation (RFC 8428 table 4)."""

_BASE_FIELDS = ("bver", "bn", "bt", "bu", "bv", "bs")
_VALUE_FIELDS = {"v": "value", "vs": "string_value", "vb": "value", "vd": "data_value"}
_RELATIVE_BELOW_S = 2**28
_VERSION = 10
# Every row repeats base name and base unit, so a long one would turn a small pack into many bytes.
_MAX_NAME_CHARS = 512
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9\-:./_]*")


def resolve(pack: object, *, now_ms: int, cbor: bool) -> list[dict[str, Any]]:
    """Return the records of `pack` (parsed JSON or CBOR) in resolved form, in order.

    Times below 2**28 s are relative to `now_ms` (section 4.5.3). `cbor` selects the labels and the type of data values.

    Raises PayloadError when the pack violates the RFC: an unknown field that ends in `_` (section 4.4), a version above
    10 (section 4.4), a name outside the permitted characters (section 4.5.1), more or less than one value.
    """
    if not isinstance(pack, Sequence) or isinstance(pack, str | bytes):
        raise PayloadError("SenML: expected an array of records")
    base: dict[str, Any] = {}
    rows = []
    for index, record in enumerate(pack):
        try:
            row = _resolve(_labelled(record, cbor), base, now_ms, cbor)
        except PayloadError as error:
            raise PayloadError(f"SenML record {index}: {error.reason}") from None
        if row is not None:
            rows.append(row)
    return rows


def _labelled(record: object, cbor: bool) -> dict[str, Any]:
    if not isinstance(record, Mapping):
        raise PayloadError("expected an object")
    labelled: dict[str, Any] = {}
    for key, value in record.items():
        label = _CBOR_LABELS.get(key) if cbor and type(key) is int else key
        if not isinstance(label, str):
            raise PayloadError(f"unknown label {key!r}")
        if label in labelled:
            raise PayloadError(f"{label} occurs twice")
        if label.endswith("_"):
            raise PayloadError(f"field {label!r} must be understood, but is unknown")
        labelled[label] = value
    return labelled


def _resolve(record: dict[str, Any], base: dict[str, Any], now_ms: int, cbor: bool) -> dict[str, Any] | None:
    base.update((label, record[label]) for label in _BASE_FIELDS if label in record)
    version = base.get("bver", _VERSION)
    if type(version) is not int or not 0 < version <= _VERSION:
        raise PayloadError(f"bver: version {version!r} is unknown, expected at most {_VERSION}")
    if record and base.keys() >= record.keys():
        return None  # A record with base fields only sets them for the following records.
    given = [label for label in _VALUE_FIELDS if label in record]
    if not given and "s" not in record:
        if "bv" not in base:
            raise PayloadError("it has no value")
        given = ["v"]  # A missing value counts as 0 beside a base value.
    if len(given) > 1:
        raise PayloadError(f"more than one value: {', '.join(given)}")
    row = _named(_text(base, "bn"), _text(record, "n"))
    unit = _text(record, "u") or _text(base, "bu")
    if unit:
        if len(unit) > _MAX_NAME_CHARS:
            raise PayloadError(f"the unit has more than {_MAX_NAME_CHARS} characters")
        row["unit"] = unit
    if given:
        row[_VALUE_FIELDS[given[0]]] = _VALUE_READERS[given[0]](record, base, cbor)
    if "s" in record or "bs" in base:
        row["sum"] = _number(record, "s") + _number(base, "bs")
    time_s = _number(base, "bt") + _number(record, "t")
    # Time 0 means "roughly now" in the RFC; the row then has no time, and the reading takes its ingest time.
    if time_s:
        row["event_time"] = _time_ms(time_s, now_ms)
    if "ut" in record:
        row["update_time"] = _number(record, "ut")
    return row


def _named(base_name: str, name: str) -> dict[str, Any]:
    full = base_name + name
    if len(full) > _MAX_NAME_CHARS:
        raise PayloadError(f"the name has more than {_MAX_NAME_CHARS} characters")
    if not _NAME.fullmatch(full):
        raise PayloadError(f"name {full[:60]!r}: expected A-Z a-z 0-9 - : . / _ beginning with a letter or digit")
    row: dict[str, Any] = {"name": full}
    device = base_name.rstrip(":/_-.")
    if device:
        row["device_id"] = device
    if name:
        row["metric"] = name.lstrip(":/_-.") or name
    return row


def _time_ms(time_s: float, now_ms: int) -> int:
    # Microseconds first: 1320067464.1 s is 1320067464099.9999 ms in binary.
    ms = round(time_s * 1e6) // 1000
    if time_s < _RELATIVE_BELOW_S:
        ms += now_ms
    if not 0 <= ms <= MAX_EPOCH_MS:
        raise PayloadError(f"time {time_s!r} does not lie between 1970 and 9999")
    return ms


def _text(fields: Mapping[str, Any], label: str) -> str:
    text = fields.get(label, "")
    if not isinstance(text, str):
        raise PayloadError(f"{label}: expected a text")
    return text


def _number(fields: Mapping[str, Any], label: str) -> float:
    number = fields.get(label, 0)
    if type(number) not in (int, float) or not abs(number) < 1.0e300:
        raise PayloadError(f"{label}: expected a finite number")
    return number  # type: ignore[no-any-return]  # int or float, checked by exact type: bool is an int too


def _boolean(record: Mapping[str, Any], _base: Mapping[str, Any], _cbor: bool) -> float:
    if not isinstance(record["vb"], bool):
        raise PayloadError("vb: expected true or false")
    return 1.0 if record["vb"] else 0.0


def _data(record: Mapping[str, Any], _base: Mapping[str, Any], cbor: bool) -> bytes:
    data = record["vd"]
    if cbor:
        if not isinstance(data, bytes):
            raise PayloadError("vd: expected a byte string")
        return data
    try:
        # Section 5: base64url with the padding left out.
        return base64.b64decode(data + "=" * (-len(data) % 4), altchars=b"-_", validate=True)
    except (TypeError, ValueError):
        raise PayloadError("vd: expected base64url") from None


_VALUE_READERS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any], bool], object]] = {
    "v": lambda record, base, _cbor: _number(record, "v") + _number(base, "bv"),
    "vs": lambda record, _base, _cbor: _text(record, "vs"),
    "vb": _boolean,
    "vd": _data,
}
