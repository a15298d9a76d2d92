"""A response or notification as it arrived, free of the CoAP library."""

from __future__ import annotations

from dataclasses import dataclass

from isotherm.coap_ingest.coap.resource import Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One accepted response, or a request that a device posted.

    Options that are absent are None, or empty where there may be several.

    `message_type` (CON, NON, ACK) and `message_id` are None over transports that have none. Times are epoch ms and
    ms; `rtt_ms` counts from the last registration. `block2` is the option of the last block.
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
    """Who sent it, when that is not the resource's server: a device that posted it."""
    device_id: str | None = None
    """The device, unless the payload says otherwise; None: the resource's server."""
    identity: str | None = None
    """Whose key the sender has shown over DTLS."""
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
