"""One registration at a server: the observe request, and every message that arrives under its token.

aiocoap's own observation is not used: its iterator keeps only the newest notification and hides the superseded ones,
and it can neither refresh an observation under its token nor cancel it. A registration uses aiocoap's Pipe, which hands
out every message (docs/adr/0020). Plain notifications come beside it, without a message of aiocoap (docs/adr/0116).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from aiocoap import GET, Message, Reliable, Unreliable  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.error import Error as CoapError  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.pipe import Pipe  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm.coap_ingest.coap.message_layer import notifications_of
from isotherm.coap_ingest.coap.plain.notifications import PlainNotification
from isotherm.coap_ingest.coap.resource import Resource

OnMessage = Callable[[Any], None]
OnFailure = Callable[[str], None]

OBSERVE, STOP_OBSERVING = 0, 1
"""Values of the Observe option in a request (RFC 7641 section 2)."""

_NO_ANSWER = "no answer in this connection"
_log = logging.getLogger("coap")


class BriefRetransmission(Reliable):  # type: ignore[misc]  # aiocoap ships no types
    """One retransmission instead of four.

    The observer registers again by itself. A request that is retransmitted for a minute and a half would delay all
    later requests to the server (NSTART is 1, RFC 7252 section 4.7).
    """

    MAX_RETRANSMIT = 1


class Registration:
    """A token at a server, from the first request until we, an error or the server end it."""

    def __init__(
        self, interface: Any, resource: Resource, request: Any, on_message: OnMessage, on_failure: OnFailure
    ) -> None:
        self.resource = resource
        self.sent_at = time.monotonic()
        self.ended = asyncio.Event()
        self._interface = interface
        self._on_message = on_message
        self._on_failure = on_failure
        self._pipe = Pipe(request, _log)
        self._unsubscribe = self._pipe.on_event(self._on_event)
        self._pipe.on_interest_end(self.ended.set)
        interface.request(self._pipe)
        notifications = notifications_of(interface)
        if notifications is not None and not self.ended.is_set():
            notifications.expect(self.token, self.remote.sockaddr, self._on_notification)
            self._pipe.on_interest_end(partial(notifications.forget, self.token))

    @property
    def remote(self) -> Any:
        """The server's address as aiocoap represents it."""
        return self._pipe.request.remote

    @property
    def token(self) -> bytes:
        """The token of the registration."""
        return bytes(self._pipe.request.token)

    def reset_connection(self) -> None:
        """Close the TCP connection or DTLS session for every registration that uses it; over UDP do nothing.

        A server that lost its state, or was unreachable for long, answers only in a new connection.
        """
        if not self.resource.server.is_connected:
            return
        remote = self.remote
        if self.resource.server.scheme == "coaps":
            remote._inject_error(ConnectionResetError(_NO_ANSWER))
        elif remote._transport is not None:
            remote._ctx._dispatch_error(remote, ConnectionResetError(_NO_ANSWER))
            remote._transport.abort()

    def refresh(self) -> None:
        """Register again under the same token; the server keeps one observation (RFC 7641 section 3.3.1)."""
        self.sent_at = time.monotonic()
        self._send(
            observe=OBSERVE,
            on_reset=lambda: self._fail("the server reset our request"),
            transport_tuning=BriefRetransmission(),
        )

    def cancel(self) -> None:
        """Ask the server to end the observation; its answer sets `ended` (RFC 7641 section 3.6)."""
        self._send(observe=STOP_OBSERVING, on_reset=self._unsubscribe)

    def drop(self, *, notify_server: bool) -> None:
        """Ignore later messages of this registration.

        With `notify_server`, ask the server to end the observation without waiting for its answer.
        """
        self._on_failure, self._on_message = _ignore, _ignore
        if notify_server:
            self._send(observe=STOP_OBSERVING, on_reset=_ignore_reset, transport_tuning=Unreliable())
        self._unsubscribe()

    def _send(self, *, observe: int, on_reset: Callable[[], None], **options: Any) -> None:
        message = get_request(self.resource, self.remote, observe=observe, **options)
        message.token = self.token
        try:
            self._interface.token_interface.send_message(message, on_reset)
        except (CoapError, OSError) as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _on_event(self, event: Any) -> bool:
        if event.exception is not None:
            # aiocoap passes some exceptions as classes and some as instances.
            kind = event.exception if isinstance(event.exception, type) else type(event.exception)
            text = "" if isinstance(event.exception, type) else str(event.exception)
            self._on_failure(f"{kind.__name__}: {text}" if text else kind.__name__)
            return False
        self._on_message(event.message)
        return not event.is_last

    def _on_notification(self, notification: PlainNotification) -> None:
        self._on_message(notification)

    def _fail(self, reason: str) -> None:
        on_failure = self._on_failure
        self.drop(notify_server=False)
        on_failure(reason)


def get_request(resource: Resource, remote: Any, **options: Any) -> Any:
    """Return a GET of `resource` as an aiocoap message to `remote`."""
    message = Message(code=GET, uri=resource.uri, **options)
    # The Uri-Host option keeps the name in the address (virtual hosts); the datagram goes to the resolved address.
    message.remote = remote
    return message


def _ignore(_what: object) -> None:
    """Ignore a message or failure of a dropped registration."""


def _ignore_reset() -> None:
    """Ignore the reset of a request that expects no answer."""
