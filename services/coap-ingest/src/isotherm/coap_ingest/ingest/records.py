"""Notifications as records: the message itself (CoapMessage), and the readings in it (SensorReading)."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isotherm import payloads
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.observe.observation import DEFAULT_MAX_AGE_S

_ABSENT = -1
_TEXT_FORMATS = frozenset((0, 40, 41, 50, 51, 52, 110, 111, 310))
"""Content-Formats that are text by definition (UTF-8); others are text when their bytes look like it."""
_BINARY_FORMATS = frozenset((42, 60, 62, 63, 112, 113, 11542, 11544))
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

Headers = list[tuple[str, bytes | str | None]]
Project = Callable[[dict[str, Any]], Mapping[str, Any]]


def headers(notification: Notification) -> Headers:
    """The Kafka headers of every record that is made from a notification."""
    said: Headers = [("coap.uri", notification.resource.uri), ("coap.code", notification.code)]
    if notification.content_format is not None:
        said.append(("coap.content_format", str(notification.content_format)))
    if notification.observe is not None:
        said.append(("coap.observe", str(notification.observe)))
    if notification.identity is not None:
        said.append(("coap.identity", notification.identity))
    return said


def message_record(notification: Notification) -> dict[str, Any]:
    """The notification as a CoapMessage, with the old chain's conventions: -1 and "" for absent options."""
    said, resource = notification, notification.resource
    text = payload_text(said.payload, said.content_format)
    return {
        "ingest_time": said.arrived_ms,
        "message_id": said.message_id,
        "type": said.message_type,
        "code": said.code,
        "raw_code": said.raw_code,
        "rtt": said.rtt_ms,
        # Representations are written whole, so each one is the last message of its transfer.
        "is_last": True,
        "is_notification": said.observe is not None,
        "source": said.source or resource.server.authority,
        "destination": said.destination,
        "timestamp": said.arrived_ms,
        "token": said.token.hex(),
        # Doubled datagrams, resets and cancelled exchanges never get as far as a record.
        "is_duplicate": False,
        "is_confirmable": said.message_type == "CON",
        "is_rejected": False,
        "is_acknowledged": said.message_type == "CON",
        "is_canceled": False,
        "accept": _ABSENT if said.accept is None else said.accept,
        "block1": said.block1,
        "block2": said.block2,
        "content_format": _ABSENT if said.content_format is None else said.content_format,
        "etags": [etag.hex() for etag in said.etags],
        "location_path": "/".join(said.location_path),
        "location_query": "&".join(said.location_query),
        "max_age": DEFAULT_MAX_AGE_S if said.max_age_s is None else said.max_age_s,
        "observe": said.observe,
        "proxy_uri": said.proxy_uri,
        "size_1": said.size1,
        "size_2": said.size2,
        "uri_host": resource.server.host,
        "uri_port": resource.server.port,
        "uri_path": "/".join(resource.path),
        "uri_query": "&".join(resource.query),
        "payload": text,
        "payload_base64": None if text is not None else base64.b64encode(said.payload).decode("ascii"),
    }


def payload_text(payload: bytes, content_format: int | None) -> str | None:
    """The payload as text, or None when it is not text."""
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
    """How the payloads of one statement become readings.

    `metric` is what a reading measures when its row does not say, None where the row must; `units` gives units by
    metric; `project` applies the statement to one row.
    """

    metric: str | None
    units: Mapping[str, str]
    project: Project
    limits: payloads.Limits


def readings(notification: Notification, rules: ReadingRules, *, is_bound: bool = False) -> list[payloads.Reading]:
    """The readings in a notification, in order. The device is the row's, else the server (`host:port`).

    With `is_bound` the notification's device is the one of all readings, and a row that names another one is an
    IdentityError.

    Raises PayloadError when the payload, or one item of it, cannot be used: a payload is stored whole or not at all,
    so that its dead letter can be written again later without doubling the rest.
    """
    rows = payloads.decode(
        notification.payload, notification.content_format, limits=rules.limits, now_ms=notification.arrived_ms
    )
    found = []
    for index, row in enumerate(rows):
        device_id = notification.device_id or notification.resource.server.authority
        defaults = payloads.Defaults(
            device_id,
            rules.metric,
            rules.units,
            notification.arrived_ms,
            index,
            bound_device_id=device_id if is_bound else None,
        )
        try:
            found.append(payloads.reading(rules.project(row), defaults))
        except payloads.PayloadError as error:
            where = f"item {index} of {len(rows)}: " if len(rows) > 1 else ""
            raise type(error)(f"{where}{error.reason}") from error
    return found
