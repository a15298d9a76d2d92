"""Opens connections that send a CONNECT and nothing more, and holds them until the end of the standard input.

    python bench/mqtt-proxy/idle.py PORT --connections 10000 [--cafile FILE]

Prints a line when all are let in.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
import sys
from typing import cast

import uvloop

from load import connect_packet

_AT_ONCE = 50
_PATIENCE_S = 60.0


class Idle(asyncio.Protocol):
    """A device that sends nothing after its CONNECT."""

    def __init__(self, client_id: str) -> None:
        self.accepted = asyncio.get_running_loop().create_future()
        self._client_id = client_id

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the CONNECT."""
        cast(asyncio.Transport, transport).write(connect_packet(self._client_id))

    def data_received(self, data: bytes) -> None:
        """Note whether the CONNACK accepts the device."""
        if not self.accepted.done():
            self.accepted.set_result(data[0] == 0x20 and not data[3])

    def connection_lost(self, exc: Exception | None) -> None:
        """Note a connection that the server closed instead."""
        if not self.accepted.done():
            self.accepted.set_result(False)


async def hold(arguments: argparse.Namespace) -> None:
    """Connect all devices, print their number, and wait."""
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context(cafile=arguments.cafile) if arguments.cafile else None
    held = []

    async def connect(number: int) -> None:
        transport, device = await loop.create_connection(
            lambda: Idle(f"{arguments.prefix}-{number}"),
            "127.0.0.1",
            arguments.port,
            ssl=context,
            server_hostname="localhost" if context else None,
        )
        if not await asyncio.wait_for(device.accepted, _PATIENCE_S):
            raise RuntimeError(f"connection {number} was not let in")
        held.append(transport)

    for first in range(0, arguments.connections, _AT_ONCE):
        last = min(first + _AT_ONCE, arguments.connections)
        await asyncio.gather(*(connect(number) for number in range(first, last)))
    print(len(held), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--prefix", default="idle", help="of the client identifiers")
    parser.add_argument("--cafile")
    uvloop.install()
    asyncio.run(hold(parser.parse_args()))


if __name__ == "__main__":
    main()
