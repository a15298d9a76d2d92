"""The link between one client and Kafka. A test can cut and restore it while the broker and all other clients go on."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_WAIT_S = 30.0
_CHUNK_BYTES = 65_536


class Link:
    """Relays to a broker on 127.0.0.1; its own address stands in the broker's answers, so that clients stay with it."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._broker_port = int(bootstrap_servers.rpartition(":")[2])
        self._is_cut = False
        self._streams: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._relay, "127.0.0.1", 0))
        self._port: int = self._server.sockets[0].getsockname()[1]

    @property
    def bootstrap_servers(self) -> str:
        """What the client is given."""
        return f"127.0.0.1:{self._port}"

    def cut(self) -> None:
        """Break every connection, and refuse new ones until `mend`."""
        self._is_cut = True
        self._do(self._break())

    def mend(self) -> None:
        """Take connections again."""
        self._is_cut = False

    def close(self) -> None:
        """Cut it for good."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WAIT_S)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        await self._break()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_S)

    async def _break(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    async def _relay(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self._is_cut:
            client.close()
            return
        broker_reader, broker = await asyncio.open_connection("127.0.0.1", self._broker_port)
        self._streams |= {client, broker}
        await asyncio.wait(
            [
                asyncio.ensure_future(self._requests(reader, broker)),
                asyncio.ensure_future(self._answers(broker_reader, client)),
            ],
            return_when=asyncio.FIRST_COMPLETED,
        )
        client.close()
        broker.close()

    async def _requests(self, reader: asyncio.StreamReader, broker: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                broker.write(chunk)

    async def _answers(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        real, ours = (b"127.0.0.1" + struct.pack(">i", port) for port in (self._broker_port, self._port))
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                # Kafka's protocol: every answer is a length of four bytes and so many more.
                head = await reader.readexactly(4)
                answer = await reader.readexactly(struct.unpack(">i", head)[0])
                client.write(head + answer.replace(real, ours))
