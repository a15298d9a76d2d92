"""A TCP relay in front of Kafka that understands where requests begin, so that a test can stop one at an exact step.

Kafka's protocol (kafka.apache.org/protocol): every request and response is a four-byte length and a body; a request's
body begins with its API key, and the responses of a connection come in the order of its requests.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from enum import IntEnum

from mqtt_world import WAIT_S


class Api(IntEnum):
    """API keys of Kafka's protocol."""

    PRODUCE = 0
    END_TXN = 26


INVALID_TXN_STATE = 48
"""The error code that a broker gives which was killed and forgot what it knew of a transaction."""


class KafkaGate:
    """Relays to a broker on 127.0.0.1; what `hold_request` or `hold_response` names is not passed on any more."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._broker_port = int(bootstrap_servers.rpartition(":")[2])
        self._held_requests: set[int] = set()
        self._held_responses: set[int] = set()
        self._break_commit: bool | None = None
        self._holds = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._streams: list[asyncio.StreamWriter] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._relay, "127.0.0.1", 0), self._loop
        ).result(WAIT_S)
        self.port: int = self._server.sockets[0].getsockname()[1]

    @property
    def bootstrap_servers(self) -> str:
        """What the client under test is given."""
        return f"127.0.0.1:{self.port}"

    def hold_request(self, api: Api) -> None:
        """From now on the broker does not get these requests."""
        self._held_requests.add(api)

    def hold_response(self, api: Api) -> None:
        """From now on the broker acts on these requests, but the client does not learn it."""
        self._held_responses.add(api)

    def break_commit(self, *, kafka_decides: bool) -> None:
        """Answer the next EndTxn with INVALID_TXN_STATE, after the broker acted on it or without asking the broker."""
        self._break_commit = kafka_decides

    def wait_until_it_holds(self) -> None:
        """Return when the first of them is held."""
        assert self._holds.wait(WAIT_S), "nothing came that was to be held"

    def close(self) -> None:
        """Cut all connections."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        for stream in self._streams:
            stream.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _relay(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        broker_reader, broker = await asyncio.open_connection("127.0.0.1", self._broker_port)
        self._streams += [client, broker]
        asked: deque[int] = deque()
        try:
            await asyncio.gather(
                self._requests(client_reader, client, broker, asked), self._responses(broker_reader, client, asked)
            )
        except (OSError, asyncio.IncompleteReadError):
            client.close()
            broker.close()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        broker: asyncio.StreamWriter,
        asked: deque[int],
    ) -> None:
        while True:
            frame = await _frame(reader)
            api: int = struct.unpack_from(">h", frame, 4)[0]
            if api in self._held_requests:
                self._holds.set()
                continue
            if api == Api.END_TXN and self._break_commit is False:
                self._break_commit = None
                # Length, correlation id, throttle time, error code: EndTxn's response of version 0 to 2.
                client.write(struct.pack(">i4sih", 10, frame[8:12], 0, INVALID_TXN_STATE))
                continue
            asked.append(api)
            broker.write(frame)

    async def _responses(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter, asked: deque[int]) -> None:
        address = b"127.0.0.1%b"
        real, ours = (address % struct.pack(">i", port) for port in (self._broker_port, self.port))
        while True:
            frame = await _frame(reader)
            api = asked.popleft()
            if api in self._held_responses:
                self._holds.set()
            elif api == Api.END_TXN and self._break_commit:
                self._break_commit = None
                client.write(frame[:12] + struct.pack(">h", INVALID_TXN_STATE))
            else:
                # The broker tells its own address; the client is to stay with the gate.
                client.write(frame.replace(real, ours))


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack(">i", head)[0])
