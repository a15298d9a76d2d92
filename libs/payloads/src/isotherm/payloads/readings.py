"""Turns rows into readings: the meaning of a row's keys, and the defaults for missing ones.

Only the exact names count: `device_id`, `metric`, `value`, `unit`, `event_time`, `sequence` and `attributes`. The route
renames other names (KCQL: `SELECT t AS value`); a guess could take a battery level for a temperature.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from isotherm.payloads.errors import IdentityError, NotNumericError, PayloadError
from isotherm.payloads.times import epoch_ms

MAX_NAME_CHARS = 256
"""Maximum length of device_id, metric and unit, which become keys, labels and index terms."""

_INFINITY = math.inf
_MAX_SEQUENCE = 2**63 - 1
_NOT_NUMERIC = frozenset(("string_value", "data_value"))
"""The values of SenML records (`vs`, `vd`) that no reading holds."""
_KEYS = frozenset(("device_id", "metric", "value", "unit", "event_time", "sequence", "attributes"))


class Defaults(NamedTuple):
    """The values for keys that a row does not have.

    `units` gives the unit of a metric. `ingest_time_ms` is when the suite received the payload (epoch ms).

    `bound_device_id` is the only device for which the sender may write; it replaces `device_id`. A row that names
    another device is refused.
    """

    device_id: str | None
    metric: str | None
    units: Mapping[str, str]
    ingest_time_ms: int
    bound_device_id: str | None = None


def record(row: Mapping[str, Any], defaults: Defaults, sequence: int = 0) -> dict[str, Any]:
    """Return the reading in `row` with the field names of the Avro record; its times are integers, epoch ms.

    `value` must be a finite number or a boolean, which is 1.0 or 0.0. A null counts as missing. `epoch_ms` parses
    `event_time`; its default is the ingest time. The default of the sequence is 0 for a row with a time. For a row
    without one it is the argument `sequence`, which distinguishes the items of one payload. Every other field becomes
    an attribute as text: bytes as base64, records and arrays as JSON.

    Raises PayloadError, which names the field and what was expected, and IdentityError (one of them) for a device that
    is not the bound one, and NotNumericError for a value that is a text or bytes.
    """
    get = row.get
    value = get("value")
    if type(value) is not float:
        value = _number(row, value)
    if not -_INFINITY < value < _INFINITY:
        raise PayloadError(f"value: {value!r} is not a finite number")
    device_id, bound = get("device_id"), defaults.bound_device_id
    if bound is not None:
        device_id = _bound_device(device_id, bound)
    elif type(device_id) is not str or not 0 < len(device_id) <= MAX_NAME_CHARS:
        device_id = _name("device_id", device_id, defaults.device_id)
    metric = get("metric")
    if type(metric) is not str or not 0 < len(metric) <= MAX_NAME_CHARS:
        metric = _name("metric", metric, defaults.metric)
    unit = get("unit")
    if unit is None:
        unit = defaults.units.get(metric)
        if unit is None:
            raise PayloadError(f"unit: neither the payload nor the settings give the unit of {metric!r}")
    elif type(unit) is not str or len(unit) > MAX_NAME_CHARS:
        raise PayloadError(f"unit: expected a text of at most {MAX_NAME_CHARS} characters")
    time, given_sequence = get("event_time"), get("sequence")
    if time is None:
        event_time_ms = defaults.ingest_time_ms
    else:
        sequence = 0
        try:
            event_time_ms = epoch_ms(time)
        except PayloadError as error:
            raise PayloadError(f"event_time: {error.reason}") from None
    if given_sequence is not None:
        sequence = _sequence(given_sequence)
    return {
        "device_id": device_id,
        "metric": metric,
        "value": value,
        "unit": unit,
        "event_time": event_time_ms,
        "ingest_time": defaults.ingest_time_ms,
        "sequence": sequence,
        "attributes": _attributes(row) if "attributes" in row or not _KEYS.issuperset(row) else {},
    }


def _number(row: Mapping[str, Any], value: object) -> float:
    if type(value) is bool:
        return 1.0 if value else 0.0
    if value is None:
        if not _NOT_NUMERIC.isdisjoint(row):
            raise NotNumericError("value: the SenML record holds a text or data, and a reading holds a number")
        fields = ", ".join(sorted(row)[:10]) or "nothing"
        raise PayloadError(
            f"value: the payload does not have it (it has {fields}); name the field that holds the measurement, "
            "in KCQL: SELECT temperature AS value, sensorId AS device_id"
        )
    if type(value) is not int:
        kind = NotNumericError if isinstance(value, str | bytes) else PayloadError
        raise kind(f"value: expected a number or a boolean, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise PayloadError("value: the number is too large for a double") from None


def _name(key: str, given: object, default: str | None) -> str:
    if given is None:
        given = default
        if given is None:
            raise PayloadError(f"{key}: neither the payload nor its route gives it")
    if type(given) is int:
        # Numeric device ids are common. A metric is never a number, but its text does no harm there either.
        given = str(given)
    if type(given) is not str or not 0 < len(given) <= MAX_NAME_CHARS:
        raise PayloadError(f"{key}: expected a text of 1 to {MAX_NAME_CHARS} characters")
    return given


def _bound_device(named: object, bound: str) -> str:
    # A numeric id such as 7 equals the text "7", as for unbound devices; no other type names a device.
    if named is not None and named != bound and (type(named) is not int or str(named) != bound):
        raise IdentityError(
            f"device_id: the payload names {str(named)[:100]!r}, its sender may speak for {bound!r} only"
        )
    return _name("device_id", bound, None)


def _sequence(given: object) -> int:
    if type(given) is not int or not 0 <= given <= _MAX_SEQUENCE:
        raise PayloadError("sequence: expected a whole number from 0")
    return given


def _attributes(row: Mapping[str, Any]) -> dict[str, str]:
    given = row.get("attributes")
    if given is None:
        given = {}
    elif not isinstance(given, Mapping):
        raise PayloadError("attributes: expected an object")
    texts = {key: _text(value) for key, value in row.items() if key not in _KEYS and value is not None}
    for key, value in given.items():
        if value is not None:
            texts[str(key)] = _text(value)
    return texts


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    try:
        return orjson.dumps(value, default=_json, option=orjson.OPT_NON_STR_KEYS).decode("utf-8")
    except TypeError:
        # CBOR has integers beyond 64 bits, which orjson does not encode.
        return repr(value)


def _json(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"no text for {type(value).__name__}")
