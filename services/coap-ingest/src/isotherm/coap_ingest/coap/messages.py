"""aiocoap's messages and plain notifications translated to the suite's own types."""

from __future__ import annotations

from typing import Any

from aiocoap.error import AnonymousHost  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.numbers.types import ACK  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm.coap_ingest.coap.notification import OBSERVE_MODULUS, Notification, Response
from isotherm.coap_ingest.coap.options import text_of, traceparent_of, uint_or_none
from isotherm.coap_ingest.coap.plain.codec import TYPE_NAMES
from isotherm.coap_ingest.coap.plain.notifications import CONTENT, PlainNotification
from isotherm.coap_ingest.coap.resource import Resource

# aiocoap reads datagrams into 4,096 bytes and does not report that a datagram was longer.
_POSSIBLY_TRUNCATED_BYTES = 4096 - 128
_CONTENT = "2.05"


def response_of(message: Any) -> Response:
    """Return the parts of `message` on which the state of an observation depends."""
    if type(message) is PlainNotification:
        return Response(True, _CONTENT, message.observe, message.max_age_s, False, message.payload)
    return Response(
        is_success=message.code.is_successful(),
        code=message.code.dotted,
        observe=observe_value(message),
        max_age_s=uint_or_none(message.opt.max_age, 32),
        is_acknowledgement=message.mtype is ACK,
        content=message.payload,
    )


def observe_value(message: Any) -> int | None:
    """Return the Observe option, or the significant 24 bits of a value that is too long."""
    value = message.opt.observe
    return None if value is None else int(value) % OBSERVE_MODULUS


def is_incomplete(message: Any) -> bool:
    """Return whether `message` holds, or may hold, only the beginning of its representation."""
    if type(message) is PlainNotification:
        return False
    block2 = message.opt.block2
    if block2 is not None:
        return bool(block2.more)
    return len(message.payload) >= _POSSIBLY_TRUNCATED_BYTES


def notification_of(resource: Resource, message: Any, *, arrived_ms: int, rtt_ms: int) -> Notification:
    """Return `message` as a notification of `resource`; `arrived_ms` is epoch ms."""
    if type(message) is PlainNotification:
        return _plain_notification(resource, message, arrived_ms, rtt_ms)
    opt = message.opt
    return Notification(
        resource=resource,
        arrived_ms=arrived_ms,
        rtt_ms=rtt_ms,
        code=message.code.dotted,
        raw_code=int(message.code),
        message_type=None if message.mtype is None else message.mtype.name,
        message_id=message.mid,
        token=bytes(message.token),
        destination=_local_address(message),
        payload=bytes(message.payload),
        observe=observe_value(message),
        max_age_s=uint_or_none(opt.max_age, 32),
        content_format=uint_or_none(opt.content_format, 16),
        accept=uint_or_none(opt.accept, 16),
        etags=() if opt.etag is None else (bytes(opt.etag),),
        location_path=tuple(map(text_of, opt.location_path)),
        location_query=tuple(map(text_of, opt.location_query)),
        proxy_uri=None if opt.proxy_uri is None else text_of(opt.proxy_uri),
        size1=uint_or_none(opt.size1, 31),
        size2=uint_or_none(opt.size2, 31),
        block1=block_text(opt.block1),
        block2=block_text(opt.block2),
        traceparent=traceparent_of(message),
    )


def _plain_notification(resource: Resource, message: PlainNotification, arrived_ms: int, rtt_ms: int) -> Notification:
    return Notification(
        resource=resource,
        arrived_ms=arrived_ms,
        rtt_ms=rtt_ms,
        code=_CONTENT,
        raw_code=CONTENT,
        message_type=TYPE_NAMES[message.message_type],
        message_id=message.message_id,
        token=message.token,
        destination=message.destination,
        payload=message.payload,
        observe=message.observe,
        max_age_s=message.max_age_s,
        content_format=message.content_format,
        etags=() if message.etag is None else (message.etag,),
    )


def block_text(option: Any) -> str:
    """Return a Block option as `number/more/size`, such as `2/1/1024`; the empty text when there is none."""
    return "" if option is None else f"{option.block_number}/{int(option.more)}/{option.size}"


def _local_address(message: Any) -> str:
    try:
        base: str = message.remote.uri_base_local
    except AnonymousHost:
        # Over TCP the client has no address to which anybody could send.
        return ""
    return base.partition("://")[2]
