"""Serves plain requests over UDP without aiocoap: acknowledgements, answers, and duplicates as aiocoap has them.

RFC 7252 section 5.2: the answer travels in the acknowledgement when Kafka is quick. After EMPTY_ACK_DELAY an empty
acknowledgement goes out, and the answer follows as a message of its own, which aiocoap retransmits.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from aiocoap.numbers import codes  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm.coap_ingest.coap.message_id_cache import MessageIdCache, without_text
from isotherm.coap_ingest.coap.message_layer import endpoint_key
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.coap.plain.codec import ACK, NON, encode_bare
from isotherm.coap_ingest.coap.plain.datagrams import host_of, hostinfo_of, is_multicast
from isotherm.coap_ingest.coap.plain.notifications import Address
from isotherm.coap_ingest.coap.plain.requests import POST, PUT, PlainRequest, plain_request
from isotherm.coap_ingest.coap.resource import Resource
from isotherm.coap_ingest.listener.answers import Answer, RequestError
from isotherm.coap_ingest.listener.record_writer import OnStored
from isotherm.servicekit import logs

_log = logs.logger(__name__)

EMPTY_ACK_DELAY_S = 0.1
"""As aiocoap's; well below ACK_TIMEOUT, after which a device repeats its request."""
_CODES = {POST: "0.02", PUT: "0.03"}


class Service(Protocol):
    """What a listener does with a request, whoever decoded it."""

    def rejection(self, device: str) -> Answer | None:
        """Count a request of `device`; return the answer when it is not processed."""

    def begin_request(self) -> None:
        """Count a request in progress."""

    def end_request(self) -> None:
        """Count a request that is answered."""

    def resource(self, path: tuple[str, ...], query: tuple[str, ...]) -> Resource:
        """Return the resource that a request names."""

    def store(self, notification: Notification, on_stored: OnStored) -> None:
        """Store a request and call `on_stored` with None or the reason. Raises RequestError."""

    def stored(self, problem: str | None) -> Answer:
        """Count what became of a stored request; return its answer."""

    def refused(self, error: RequestError) -> Answer:
        """Count a request that is refused; return its answer."""


@dataclass(slots=True, eq=False)
class _PendingRequest:
    """One request and its answer."""

    address: Address
    pktinfo: bytes
    key: bytes
    message_id: int
    token: bytes
    is_confirmable: bool
    began_s: float
    is_acknowledged: bool = False
    is_answered: bool = False


class PlainRequests:
    """The handler of a listener's socket. `messages` is aiocoap's message layer over the same socket and cache."""

    def __init__(self, service: Service, messages: Any, cache: MessageIdCache) -> None:
        self._service = service
        self._messages = messages
        self._interface = messages.message_interface
        self._reply: Callable[[bytes, Address, bytes], None] = self._interface.reply
        self._cache = cache
        self._unacknowledged: deque[_PendingRequest] = deque()
        """Confirmable requests in their order; those before the oldest unanswered one are gone."""
        self._timer: asyncio.TimerHandle | None = None

    def handle(self, datagram: bytes, address: Address, pktinfo: bytes | None) -> bool:
        """Take a datagram and return True; return False when aiocoap must judge it."""
        request = plain_request(datagram)
        if request is None or pktinfo is None or is_multicast(pktinfo):
            return False
        key = endpoint_key(address, request.message_id)
        if key in self._cache:
            # The message layer knows how duplicates are answered.
            return False
        now_s = time.monotonic()
        exchange = _PendingRequest(
            address, pktinfo, key, request.message_id, request.token, request.is_confirmable, now_s
        )
        device = host_of(address)
        rejection = self._service.rejection(device)
        if rejection is not None:
            # A rejected request had no effect, so its duplicates need no memory.
            self._send(exchange, rejection)
            return True
        self._cache.add(key, now_s)
        self._service.begin_request()
        if request.is_confirmable:
            self._unacknowledged.append(exchange)
            if self._timer is None:
                self._acknowledge_in(EMPTY_ACK_DELAY_S)
        try:
            notification = self._notification(request, device, address)
            self._service.store(notification, partial(self._on_stored, exchange))
        except RequestError as error:
            self._answer(exchange, self._service.refused(error))
        except Exception:
            # As aiocoap does. A payload that one device sends must not end the reading of others.
            _log.exception("an unexpected error prevents the records of a request", device=device)
            self._answer(exchange, self._service.refused(RequestError(codes.INTERNAL_SERVER_ERROR, "")))
        return True

    def close(self) -> None:
        """Acknowledge and answer nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unacknowledged.clear()

    def _notification(self, request: PlainRequest, device: str, address: Address) -> Notification:
        path, query, content_format = request.target
        resource = self._service.resource(path, query)
        return Notification(
            resource=resource,
            source=hostinfo_of(self._interface, address),
            device_id=device,
            arrived_ms=time.time_ns() // 1_000_000,
            rtt_ms=0,
            code=_CODES[request.code],
            raw_code=request.code,
            message_type="CON" if request.is_confirmable else "NON",
            message_id=request.message_id,
            token=request.token,
            destination=resource.server.authority,
            payload=request.payload,
            content_format=content_format,
        )

    def _on_stored(self, exchange: _PendingRequest, problem: str | None) -> None:
        self._answer(exchange, self._service.stored(problem))

    def _answer(self, exchange: _PendingRequest, answer: Answer) -> None:
        exchange.is_answered = True
        self._service.end_request()
        if not exchange.is_acknowledged:
            datagram = self._send(exchange, answer)
            if exchange.is_confirmable:
                self._cache.set_answer(exchange.key, without_text(datagram, answer.payload))
            return
        message = answer.message()
        message.token = exchange.token
        message.remote = self._interface.remote(exchange.address, exchange.pktinfo)
        self._messages.send_message(message, _ignore_reset)

    def _send(self, exchange: _PendingRequest, answer: Answer) -> bytes:
        """Send an answer in the acknowledgement, or the answer to a non-confirmable request; return the datagram."""
        if exchange.is_confirmable:
            datagram = answer.datagram(ACK, exchange.message_id, exchange.token)
        else:
            datagram = answer.datagram(NON, self._messages._next_message_id(), exchange.token)
        self._reply(datagram, exchange.address, exchange.pktinfo)
        return datagram

    def _acknowledge_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._acknowledge_late)

    def _acknowledge_late(self) -> None:
        """Send an empty acknowledgement for each request whose answer takes long."""
        self._timer = None
        now_s = time.monotonic()
        while self._unacknowledged:
            exchange = self._unacknowledged[0]
            if not exchange.is_answered:
                left_s = exchange.began_s + EMPTY_ACK_DELAY_S - now_s
                if left_s > 0:
                    self._acknowledge_in(left_s)
                    return
                exchange.is_acknowledged = True
                datagram = encode_bare(ACK, 0, exchange.message_id)
                self._cache.set_answer(exchange.key, datagram)
                self._reply(datagram, exchange.address, exchange.pktinfo)
            self._unacknowledged.popleft()


def _ignore_reset() -> None:
    """Ignore that a device resets a separate answer: it needs none any more."""
