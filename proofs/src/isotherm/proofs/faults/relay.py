"""A TCP relay before a server: it can cut all connections, hold all bytes back, or delay them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from isotherm.stack.ports import LOOPBACK

_CHUNK_BYTES = 262_144


class Relays:
    """Relays on one thread with an event loop of its own."""

    def __init__(self) -> None:
        self._relays: list[Relay] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._thread.start()

    def listen(self, port: int, server_port: int) -> Relay:
        """Relay connections from one port of 127.0.0.1 to another one. Raises OSError when the port is taken."""
        relay = Relay(self._loop, server_port)
        self.call(relay.open(port))
        self._relays.append(relay)
        return relay

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something on the loop, and wait for it."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End all connections and the thread."""
        for relay in self._relays:
            self.call(relay.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Relay:
    """The connections to one server. Its methods may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server_port: int) -> None:
        self._loop = loop
        self._server_port = server_port
        self._delay_s = 0.0
        self._is_cut = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.disturbed = 0
        """Connections that were reset, and pieces of data that were held back or delayed."""

    async def open(self, port: int) -> None:
        """Accept connections."""
        self._listener = await asyncio.start_server(self._serve, LOOPBACK, port)

    async def close(self) -> None:
        """Accept no connection any more, and end those that are there."""
        self._listener.close()
        pumps = list(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._cut()
        # The transports close their sockets in the loop's next turn.
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Reset all connections, and new ones as soon as they are made, until `heal`."""
        self._loop.call_soon_threadsafe(self._cut)

    def stall(self) -> None:
        """Hold back all bytes until `heal`: connections stay open, as when every packet is lost."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def delay(self, delay_s: float) -> None:
        """Delay what goes either way by so many seconds, until `heal`."""
        self._delay_s = delay_s

    def heal(self) -> None:
        """End all faults."""
        self._is_cut, self._delay_s = False, 0.0
        self._loop.call_soon_threadsafe(self._flows.set)

    def _cut(self) -> None:
        self._is_cut = True
        for writer in list(self._writers):
            self.disturbed += 1
            writer.transport.abort()

    def _refuse(self, *writers: asyncio.StreamWriter) -> bool:
        """Reset connections if all of them are cut; return whether this is so."""
        for writer in writers if self._is_cut else ():
            self.disturbed += 1
            writer.transport.abort()
        return self._is_cut

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuse(writer):
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(LOOPBACK, self._server_port)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, server_writer}
        if self._refuse(*pair):
            return
        self._writers |= pair
        for source, sink in ((reader, server_writer), (server_reader, writer)):
            pump = self._loop.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)
            pump.add_done_callback(lambda _: self._end(pair))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                self.disturbed += bool(self._delay_s) or not self._flows.is_set()
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flows.wait()
                writer.write(data)
                await writer.drain()

    def _end(self, pair: set[asyncio.StreamWriter]) -> None:
        for writer in pair:
            writer.close()
        self._writers -= pair
