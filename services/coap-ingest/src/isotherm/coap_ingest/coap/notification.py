"""Received messages in the suite's own types, free of the library aiocoap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from isotherm.coap_ingest.coap.resource import Resource

DEFAULT_MAX_AGE_S = 60
"""The value of an absent Max-Age option (RFC 7252 section 5.10.5)."""

OBSERVE_MODULUS = 2**24
"""Observe option values have 24 bits (RFC 7641 section 2)."""


class Response(NamedTuple):
    """The parts of a response or notification on which the state of an observation depends."""

    is_success: bool
    code: str
    observe: int | None
    max_age_s: int | None
    is_acknowledgement: bool
    """True when the response was piggybacked on the acknowledgement of our request. It is then certainly the answer
    to that request, not a notification."""
    content: bytes
    """The payload; with the Observe value it distinguishes a repetition from a new notification."""


@dataclass(slots=True, kw_only=True)
class Notification:
    """One accepted response or notification of a resource, or one request that a device posted.

    Absent options are None, or empty where an option is repeatable. `message_type` (CON, NON, ACK) and `message_id` are
    None over transports that have none. `arrived_ms` is epoch ms; `rtt_ms` counts from the last registration.
    `block2` is the option of the last block. Nobody changes one; a frozen class takes four times as long to make.
    """

    resource: Resource
    arrived_ms: int
    rtt_ms: int
    code: str
    raw_code: int
    message_type: str | None
    message_id: int | None
    token: bytes
    destination: str
    payload: bytes
    source: str | None = None
    """The sender, when it is not the resource's server: a device that posted."""
    device_id: str | None = None
    """The default device of the payload's readings; None stands for the resource's server."""
    identity: str | None = None
    """The identity whose pre-shared key the sender proved over DTLS."""
    observe: int | None = None
    max_age_s: int | None = None
    content_format: int | None = None
    accept: int | None = None
    etags: tuple[bytes, ...] = ()
    location_path: tuple[str, ...] = ()
    location_query: tuple[str, ...] = ()
    proxy_uri: str | None = None
    size1: int | None = None
    size2: int | None = None
    block1: str = ""
    block2: str = ""
    traceparent: str | None = None
    """The trace context that the sender gives (`options.TRACEPARENT`)."""
