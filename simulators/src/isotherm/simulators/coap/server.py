"""`isotherm-simulators coap`: observable sensors, with a ledger of every notification.

aiocoap's own observable resource sends only the newest state and may skip others. This one sends each state to every
observer; everything in the ledger was sent, as one datagram to each observer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiocoap import CONTENT, Context, Message, Reliable, Unreliable  # type: ignore[import-untyped]  # no types there
from aiocoap import resource as coap_resource

from isotherm.simulators.coap.sensors import METRIC, ResourceState, Sensors
from isotherm.simulators.ledger import Ledger

DOCUMENTED_PORT = 5633
_OBSERVE_VALUES = 2**24
_BLOCK_SIZE_EXPONENT = 6
_BLOCK_BYTES = 1024

OnSent = Callable[[str, ResourceState, int], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `coap`."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=DOCUMENTED_PORT, help=f"UDP port (default {DOCUMENTED_PORT})")
    parser.add_argument("--rate", type=float, default=20.0, metavar="PER_S", help="new states per second; 0: none")
    parser.add_argument("--sensors", type=int, default=5, metavar="N", help="sensors behind each resource (default 5)")
    parser.add_argument(
        "--resources", type=int, default=0, metavar="N", help="resources sensors/0 to sensors/N-1, beside sensors"
    )
    parser.add_argument("--seed", type=int, default=1, help="same seed, same rooms (default 1)")
    parser.add_argument("--max-age", type=int, default=5, metavar="S", help="Max-Age of every state (default 5)")
    parser.add_argument("--confirmable", action="store_true", help="notify with CON instead of NON")
    parser.add_argument(
        "--content-format", type=int, default=0, metavar="NUMBER", help="0 text, as the documents' server, or 50 JSON"
    )
    parser.add_argument("--padding", type=int, default=0, metavar="BYTES", help="bytes to add to every payload")
    parser.add_argument("--tcp", action="store_true", help="serve coap+tcp:// on the same port, too")
    parser.add_argument(
        "--dtls-psk",
        type=_pre_shared_key,
        metavar="IDENTITY:KEY",
        help="serve coaps:// on the next port, too, to clients with this key (needs the extra dtls)",
    )
    parser.add_argument("--duration", type=float, metavar="S", help="stop by itself after so many seconds")
    parser.add_argument("--ledger", type=Path, required=True, metavar="FILE", help="JSON lines of what was sent")


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM, Ctrl-C or the end of `--duration`."""
    with Ledger(arguments.ledger) as ledger:
        sent = asyncio.run(_serve(arguments, ledger))
    sys.stderr.write(f"sent {sent} states to observers\n")
    return 0


class ObservedSensors(coap_resource.Resource):  # type: ignore[misc]  # aiocoap has no types
    """One observable resource; Observe values rise by one with each state."""

    # The attribute in /.well-known/core (RFC 7641 section 6).
    obs = True

    def __init__(self, path: str, sensors: Sensors, arguments: argparse.Namespace, on_sent: OnSent) -> None:
        super().__init__()
        self._path = path
        self._sensors = sensors
        self._max_age_s: int = arguments.max_age
        self._content_format: int = arguments.content_format
        self._padding = b" " * arguments.padding
        self._tuning = Reliable if arguments.confirmable else Unreliable
        self._on_sent = on_sent
        self._observers: set[Any] = set()
        self._number = 0
        self._state = sensors.measure(_now_ms())
        self._is_sent = False

    def get_link_description(self) -> dict[str, Any]:
        """Return the attributes of the link in /.well-known/core."""
        return {**super().get_link_description(), "obs": None, "ct": str(self._content_format), "rt": METRIC}

    async def render_get(self, _request: Any) -> Any:
        """Answer a GET without Observe with the current state."""
        return self._message()

    async def render_to_pipe(self, pipe: Any) -> None:
        """Keep an observation until the observer ends it, resets a notification, or is unreachable."""
        if pipe.request.opt.observe != 0:
            await super().render_to_pipe(pipe)
            return
        self._send(pipe)
        self._observers.add(pipe)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._observers.discard(pipe)

    def advance(self) -> None:
        """Measure a new state and notify every observer."""
        self._state = self._sensors.measure(_now_ms())
        self._number = (self._number + 1) % _OBSERVE_VALUES
        self._is_sent = False
        for observer in tuple(self._observers):
            self._send(observer)

    def _send(self, observer: Any) -> None:
        message = self._message()
        message.opt.observe = self._number
        if len(message.payload) > _BLOCK_BYTES:
            # RFC 7959 section 2.6: a notification carries the first block, and the observer requests the others.
            message.payload = message.payload[:_BLOCK_BYTES]
            message.opt.block2 = (0, True, _BLOCK_SIZE_EXPONENT)
        try:
            observer.add_response(message, is_last=False)
        except TypeError:
            # aiocoap 0.4.17 fails so when it learns from sending that nobody is there any more, and has ended the pipe.
            if observer._event_callbacks is not False:
                raise
            self._observers.discard(observer)
            return
        if not self._is_sent:
            self._is_sent = True
            self._on_sent(self._path, self._state, self._number)

    def _message(self) -> Any:
        message = Message(
            code=CONTENT,
            payload=self._state.payload() + self._padding,
            content_format=self._content_format,
            max_age=self._max_age_s,
            transport_tuning=self._tuning(),
        )
        if len(message.payload) > _BLOCK_BYTES:
            # The ETag tells the observer whether two blocks belong to one state.
            message.opt.etag = self._state.event_time_ms.to_bytes(8, "big")
        return message


async def _serve(arguments: argparse.Namespace, ledger: Ledger) -> int:
    sent = 0

    def on_sent(path: str, state: ResourceState, number: int) -> None:
        nonlocal sent
        sent += 1
        ledger.write(
            "notified",
            device_id=state.sensor_id,
            metric=METRIC,
            event_time_ms=state.event_time_ms,
            sequence=0,
            value=state.temperature,
            resource=path,
            observe=number,
            time_ms=_now_ms(),
        )

    paths = ["sensors", *(f"sensors/{number}" for number in range(arguments.resources))]
    resources = [
        ObservedSensors(path, Sensors(number, arguments.sensors, arguments.seed), arguments, on_sent)
        for number, path in enumerate(paths)
    ]
    site = coap_resource.Site()
    site.add_resource([".well-known", "core"], coap_resource.WKCResource(site.get_resources_as_linkheader))
    for path, resource in zip(paths, resources, strict=True):
        site.add_resource(path.split("/"), resource)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    address = (arguments.host, arguments.port)
    # The library adds one to the port of its DTLS server.
    more = [*(["tcpserver"] if arguments.tcp else []), *(["tinydtls_server"] if arguments.dtls_psk else [])]
    context = await Context.create_server_context(site, bind=address, transports=["udp6", *more])
    if arguments.dtls_psk:
        identity, key = arguments.dtls_psk
        context.server_credentials.load_from_dict({":peer": {"dtls": {"psk": key, "client-identity": identity}}})
    ledger.write("start", seed=arguments.seed, resources=paths, sensors=arguments.sensors, rate=arguments.rate)
    sys.stderr.write(f"serving coap://{arguments.host}:{arguments.port}/sensors\n")
    try:
        await _advance(resources, arguments.rate, arguments.duration, stop)
    finally:
        ledger.write("end", notified=sent)
        await context.shutdown()
    return sent


async def _advance(
    resources: list[ObservedSensors], rate: float, duration_s: float | None, stop: asyncio.Event
) -> None:
    """Advance the resources in turn, each at its time; never with a rate of 0."""
    if not rate:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_s):
                await stop.wait()
        return
    loop = asyncio.get_running_loop()
    began, number = loop.time(), 0
    while duration_s is None or number / rate < duration_s:
        due = began + number / rate
        try:
            async with asyncio.timeout_at(due):
                await stop.wait()
            return
        except TimeoutError:
            resources[number % len(resources)].advance()
            number += 1


def _pre_shared_key(text: str) -> tuple[bytes, bytes]:
    identity, colon, key = text.partition(":")
    # The library copies a longer key beyond the end of its buffer.
    if not colon or not 1 <= len(identity.encode()) <= 32 or not 1 <= len(key.encode()) <= 16:
        raise argparse.ArgumentTypeError("expected IDENTITY:KEY, of at most 32 and 16 bytes")
    if importlib.util.find_spec("DTLSSocket") is None:
        raise argparse.ArgumentTypeError("DTLS needs the package DTLSSocket: install isotherm-simulators[dtls]")
    return identity.encode(), key.encode()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
