"""Records of a notification: the message itself (CoapMessage), and the readings in it (SensorReading)."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isotherm import payloads
from isotherm.coap_ingest.coap.notification import DEFAULT_MAX_AGE_S, Notification

_ABSENT = -1
_TEXT_FORMATS = frozenset((0, 40, 41, 50, 51, 52, 110, 111, 310))
"""Content-Formats that are UTF-8 text by definition. The payloads of others are text when their bytes look like it."""
_BINARY_FORMATS = frozenset((42, 60, 62, 63, 112, 113, 11542, 11544))
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

Headers = list[tuple[str, bytes | str | None]]
Project = Callable[[dict[str, Any]], Mapping[str, Any]]


def headers(notification: Notification) -> Headers:
    """Return the Kafka headers of every record of `notification`."""
    found: Headers = [("coap.uri", notification.resource.uri), ("coap.code", notification.code)]
    if notification.content_format is not None:
        found.append(("coap.content_format", str(notification.content_format)))
    if notification.observe is not None:
        found.append(("coap.observe", str(notification.observe)))
    if notification.identity is not None:
        found.append(("coap.identity", notification.identity))
    return found


def message_record(notification: Notification) -> dict[str, Any]:
    """Return the notification as a CoapMessage; absent options are -1 or "", as in the predecessor."""
    resource = notification.resource
    text = payload_text(notification.payload, notification.content_format)
    return {
        "ingest_time": notification.arrived_ms,
        "message_id": notification.message_id,
        "type": notification.message_type,
        "code": notification.code,
        "raw_code": notification.raw_code,
        "rtt": notification.rtt_ms,
        # A record holds a complete representation, so it is the last message of its transfer.
        "is_last": True,
        "is_notification": notification.observe is not None,
        "source": notification.source or resource.server.authority,
        "destination": notification.destination,
        "timestamp": notification.arrived_ms,
        "token": notification.token.hex(),
        # Duplicate datagrams, resets and cancelled exchanges never become a record.
        "is_duplicate": False,
        "is_confirmable": notification.message_type == "CON",
        "is_rejected": False,
        "is_acknowledged": notification.message_type == "CON",
        "is_canceled": False,
        "accept": _ABSENT if notification.accept is None else notification.accept,
        "block1": notification.block1,
        "block2": notification.block2,
        "content_format": _ABSENT if notification.content_format is None else notification.content_format,
        "etags": [etag.hex() for etag in notification.etags],
        "location_path": "/".join(notification.location_path),
        "location_query": "&".join(notification.location_query),
        "max_age": DEFAULT_MAX_AGE_S if notification.max_age_s is None else notification.max_age_s,
        "observe": notification.observe,
        "proxy_uri": notification.proxy_uri,
        "size_1": notification.size1,
        "size_2": notification.size2,
        "uri_host": resource.server.host,
        "uri_port": resource.server.port,
        "uri_path": "/".join(resource.path),
        "uri_query": "&".join(resource.query),
        "payload": text,
        "payload_base64": None if text is not None else base64.b64encode(notification.payload).decode("ascii"),
    }


def payload_text(payload: bytes, content_format: int | None) -> str | None:
    """Return the payload as text; None when it is not text."""
    if content_format in _BINARY_FORMATS:
        return None
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if content_format not in _TEXT_FORMATS and _CONTROLS.search(text):
        return None
    return text


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """How one statement turns payloads into readings.

    `metric` is the metric of a row that names none; with None every row must name it. `units` gives units by metric.
    `project` applies the statement to one row. `accepts` says whether the condition of WHERE is true of a row, and
    raises PayloadError.
    """

    metric: str | None
    units: Mapping[str, str]
    project: Project
    limits: payloads.Limits
    accepts: Callable[[dict[str, Any]], bool] | None = None


def reading_records(
    notification: Notification, rules: ReadingRules, sequences: payloads.SequenceGenerator, *, is_bound: bool = False
) -> tuple[list[dict[str, Any]], int]:
    """Return the readings in a notification as SensorReadings, in order, and how many others WHERE leaves out.

    The device of a reading is its row's, else the notification's, else the server. Numbers of `sequences` tell readings
    of one arrival apart that have no time of their own.

    With `is_bound` all readings belong to the notification's device, and a row that names another device is an
    IdentityError.

    Raises PayloadError when the payload or one of its items is invalid. A payload is stored completely or not at
    all, so that a later replay of its dead-letter record does not store the other items twice.
    """
    rows = payloads.decode(
        notification.payload, notification.content_format, limits=rules.limits, now_ms=notification.arrived_ms
    )
    device_id = notification.device_id or notification.resource.server.authority
    defaults = payloads.Defaults(
        device_id,
        rules.metric,
        rules.units,
        notification.arrived_ms,
        bound_device_id=device_id if is_bound else None,
    )
    first = sequences.take(notification.arrived_ms, len(rows))
    records = []
    for index, row in enumerate(rows):
        try:
            if rules.accepts is not None and not rules.accepts(row):
                continue
            records.append(payloads.record(rules.project(row), defaults, first + index))
        except payloads.PayloadError as error:
            where = f"item {index} of {len(rows)}: " if len(rows) > 1 else ""
            raise type(error)(f"{where}{error.reason}") from error
    return records, len(rows) - len(records)
