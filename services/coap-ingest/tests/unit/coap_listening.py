"""A listener in this process, with a producer that stores every record, and devices that send raw datagrams."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from confluent_kafka import Producer
from prometheus_client import CollectorRegistry

from isotherm import payloads
from isotherm.coap_ingest.connectors.plan import compile_plan
from isotherm.coap_ingest.listener.listener import Listener
from isotherm.coap_ingest.metrics import Metrics
from isotherm.connector.config.files import parse
from isotherm.servicekit.producer.delivery import LoopProducer

CONNECTOR = """\
name = c
connector.class = coap-source
connect.coap.listen = {scheme}://127.0.0.1:{port}
connect.coap.kcql = INSERT INTO thermostat.data SELECT temperature AS value, device_id FROM `devices/*`{statements}
{more}
"""
BODY = b'{"temperature": 1}'


class Storing:
    """A producer that stores every record at once."""

    def __init__(self) -> None:
        self.stored: list[tuple[str, Any]] = []
        self._reports: list[Callable[..., None]] = []

    def produce(self, _topic: str, value: bytes, key: str, on_delivery: Callable[..., None], **_: object) -> None:
        self.stored.append((key, json.loads(value)))
        self._reports.append(on_delivery)

    def poll(self, _timeout: float) -> int:
        reports, self._reports = self._reports, []
        for report in reports:
            report(None, None)
        return len(reports)

    def __len__(self) -> int:
        return len(self._reports)


class Served:
    """A running listener and what it stored."""

    def __init__(self, listener: Listener, kafka: Storing, metrics: CollectorRegistry, port: int) -> None:
        self.listener, self.kafka, self.port = listener, kafka, port
        self._metrics = metrics

    def metric(self, name: str, **labels: str) -> float:
        return self._metrics.get_sample_value(f"isotherm_coap_ingest_{name}", {"connector": "c", **labels}) or 0.0

    @property
    def messages(self) -> Any:
        """The message layer, where datagrams arrive."""
        (tokens,) = self.listener._context.request_interfaces
        return tokens.token_interface


@asynccontextmanager
async def served(
    port: int, more: str = "", *, scheme: str = "coap", cache_size: int = 4_096, statements: str = ""
) -> AsyncIterator[Served]:
    limits, registry, kafka = payloads.Limits(), CollectorRegistry(), Storing()
    text = CONNECTOR.format(scheme=scheme, port=port, more=more, statements=statements)
    made = compile_plan(parse(text), units={"value": "Cel"}, limits=limits, dead_letter_topic="d")
    assert made.listen is not None
    listener = Listener(
        made.listen,
        {"thermostat.data": lambda record: json.dumps(record).encode()},
        LoopProducer(cast("Producer", kafka)),
        limits,
        Metrics(registry),
        message_id_cache_size=cache_size,
    )
    opening = asyncio.create_task(listener.open(65_536))
    while not opening.done():
        # As the service does, every second.
        listener.maintain()
        await asyncio.sleep(0)
    try:
        await opening
        yield Served(listener, kafka, registry, port)
    finally:
        await listener.close(0)


def option(number: int, value: bytes) -> bytes:
    """Encode one option; `number` is the difference to the previous option's number."""
    assert number < 13
    assert len(value) < 13
    return bytes([number << 4 | len(value)]) + value


def request(message_id: int, path: str = "devices/1", body: bytes = BODY, *, block1: int | None = None) -> bytes:
    """A confirmable POST of JSON; `block1` is the option's number (block, more, size exponent)."""
    segments = [part.encode() for part in path.split("/")] if path else []
    # Uri-Path is option 11, Content-Format is 12.
    options = b"".join(option(0 if index else 11, part) for index, part in enumerate(segments))
    options += option(1 if segments else 12, bytes([50]))
    if block1 is not None:
        # Block1 is option 27.
        options += bytes([13 << 4 | 3, 2]) + block1.to_bytes(3, "big")
    number = message_id.to_bytes(2, "big")
    return b"\x42\x02" + number + number + options + b"\xff" + body


def block(number: int, size: int, *, more: bool) -> int:
    """A Block1 option's value (RFC 7959 section 2.2)."""
    return number << 4 | more << 3 | size.bit_length() - 5


class Device:
    """A device with a socket of its own."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 0))
        self._socket.connect(("127.0.0.1", port))
        self._socket.setblocking(False)

    async def ask(self, datagram: bytes) -> bytes:
        """Send, and return the answer by its token, also a separate one (RFC 7252 section 5.2.2)."""
        self.send(datagram)
        while True:
            async with asyncio.timeout(30):
                answer = await asyncio.get_running_loop().sock_recv(self._socket, 2048)
            if answer[0] & 0x30 == 0:
                self.send(b"\x60\x00" + answer[2:4])
            if answer[1] and answer[4:6] == datagram[4:6]:
                return answer

    async def code(self, datagram: bytes) -> str:
        """The code of the answer."""
        answer = (await self.ask(datagram))[1]
        return f"{answer >> 5}.{answer & 0x1F:02}"

    def send(self, datagram: bytes) -> None:
        self._socket.send(datagram)

    def close(self) -> None:
        self._socket.close()
