"""Runs clients that misbehave, all at once, until this process receives SIGTERM.

    python bench/mqtt-proxy/misbehaving.py PORT

The clients send half packets, a byte a second, a remaining length of 256 MB with its bytes, publishes to 100,000
topics, and packet identifiers in use. Each one reconnects when the server closes it. At the end the process prints how
often each kind connected.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

import uvloop

from load import connect_packet, payload, publish_packet

TOPICS = 100_000
_TOPICS_PER_S = 5_000
_TICKS_PER_S = 20
_GIANT = b"\x30\xff\xff\xff\x7f"
_CHUNK = b"x" * 65_536

Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]

seen: Counter[str] = Counter()


async def _enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
    writer.write(connect_packet(client_id))
    await reader.readexactly(4)


async def half_packets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
    """Send half a CONNECT or half a PUBLISH, and close."""
    if seen["half packets"] % 2:
        writer.write(connect_packet(client_id)[:9])
    else:
        await _enter(reader, writer, client_id)
        writer.write(publish_packet("devices/half/temperature", payload("half", 0, 10), 1, 1)[:100])
    await writer.drain()
    await asyncio.sleep(0.1)


async def a_byte_a_second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
    """Send a PUBLISH that takes minutes."""
    await _enter(reader, writer, client_id)
    for byte in publish_packet("devices/slow/temperature", payload("slow", 0, 10), 1, 1):
        writer.write(bytes((byte,)))
        await asyncio.sleep(1)


async def giant_length(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
    """Send a packet of 256 MB."""
    await _enter(reader, writer, client_id)
    writer.write(_GIANT)
    for _ in range(4_096):
        writer.write(_CHUNK)
        await writer.drain()


async def many_topics(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
    """Send every PUBLISH to another topic."""
    await _enter(reader, writer, client_id)
    drained = asyncio.ensure_future(_swallow(reader))
    try:
        while not drained.done():
            for _ in range(_TOPICS_PER_S // _TICKS_PER_S):
                number = seen["topics"] = seen["topics"] + 1
                topic = f"devices/{client_id}-{number % TOPICS}/temperature"
                writer.write(publish_packet(topic, payload("topics", number, 1), 1, 1 + number % 60_000))
            await writer.drain()
            await asyncio.sleep(1 / _TICKS_PER_S)
    finally:
        drained.cancel()


async def reused_identifiers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
    """Send QoS 2 publishes with an identifier that another one uses."""
    await _enter(reader, writer, client_id)
    for number in range(100):
        writer.write(publish_packet("devices/reuse/temperature", payload("reuse", number, 1), 2, 7))
    await _swallow(reader)


async def _swallow(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


CLIENTS: dict[str, tuple[Client, int]] = {
    "half packets": (half_packets, 5),
    "a byte a second": (a_byte_a_second, 20),
    "giant length": (giant_length, 5),
    "many topics": (many_topics, 1),
    "reused identifiers": (reused_identifiers, 5),
}


async def _again_and_again(port: int, name: str, client: Client, number: int) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            seen[name] += 1
            try:
                await client(reader, writer, f"bad-{name.replace(' ', '-')}-{number}")
            finally:
                writer.close()
        except (OSError, asyncio.IncompleteReadError):
            pass
        await asyncio.sleep(0.1)


async def misbehave(port: int) -> None:
    """Run all clients until SIGTERM."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    tasks = [
        asyncio.create_task(_again_and_again(port, name, client, number))
        for name, (client, count) in CLIENTS.items()
        for number in range(count)
    ]
    await told.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    """Run the clients and print their counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    uvloop.install()
    asyncio.run(misbehave(parser.parse_args().port))
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
