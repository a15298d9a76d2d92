"""A TCP relay in front of Kafka that understands where requests begin, so that a test can stop one at an exact step.

Kafka's protocol (kafka.apache.org/protocol): every request and response is a four-byte length and a body; a request's
body begins with its API key, and the responses of a connection come in the order of its requests.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from enum import Enum, IntEnum, auto
from typing import NamedTuple

from mqtt_world import WAIT_S


class Api(IntEnum):
    """API keys of Kafka's protocol."""

    PRODUCE = 0
    END_TXN = 26


OUT_OF_ORDER_SEQUENCE_NUMBER = 45
"""The error code for a batch out of sequence; fatal for an idempotent producer."""

INVALID_TXN_STATE = 48
"""The error code of a broker that was killed and has lost the state of a transaction."""


class Loss(Enum):
    """What the network does to an EndTxn. In each case the client's connection breaks, the broker's stays."""

    REQUEST = auto()
    """The relay keeps the request until `deliver_delayed`."""
    ANSWER = auto()
    """The broker executes the request; its answer is lost."""


class Delayed(NamedTuple):
    """An EndTxn that the relay keeps, and the connection to the broker on which it was sent."""

    frame: bytes
    broker: asyncio.StreamWriter
    answer: asyncio.Future[int]


class KafkaGate:
    """Relays to a broker on 127.0.0.1, except what `hold_request` or `hold_response` names.

    `lose_end_txn` makes EndTxn requests late or unanswered, one each.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._broker_port = int(bootstrap_servers.rpartition(":")[2])
        self._held_requests: set[int] = set()
        self._held_responses: set[int] = set()
        self._break_commit: bool | None = None
        self._losses: deque[Loss] = deque()
        self._delayed: deque[Delayed] = deque()
        self._deliver_at_next_end = False
        self.late_answers: list[int] = []
        """Error codes of the broker's answers to EndTxn requests that it got late."""
        self.end_txns = 0
        """EndTxn requests that clients sent."""
        self._refusals: deque[tuple[bytes, int]] = deque()
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
        """From now on the broker executes these requests, but the client gets no answer."""
        self._held_responses.add(api)

    def break_commit(self, *, kafka_decides: bool) -> None:
        """Answer the next EndTxn with INVALID_TXN_STATE, after the broker acted on it or without asking the broker."""
        self._break_commit = kafka_decides

    def refuse_produce(self, error: int, topic: str = "thermostat.data") -> None:
        """Answer the next produce request for `topic` with `error` for its first partition, after the broker took it.

        Others may come between: the proxy writes records of its own, as its attestations, when their time has come.
        """
        self._refusals.append((topic.encode(), error))

    @property
    def has_refused(self) -> bool:
        """Whether every such answer was given."""
        return not self._refusals

    def lose_end_txn(self, loss: Loss) -> None:
        """Apply `loss` to the next EndTxn that no earlier call has taken."""
        self._holds.clear()
        self._losses.append(loss)

    def deliver_delayed(self) -> None:
        """Send the delayed EndTxn requests to the broker, in order; returns when it has answered."""
        asyncio.run_coroutine_threadsafe(self._deliver(), self._loop).result(WAIT_S)

    def deliver_delayed_in_the_next_transaction(self) -> None:
        """The same as `deliver_delayed`, just before the broker gets the next EndTxn."""
        self._deliver_at_next_end = True

    def wait_until_it_holds(self) -> None:
        """Return when the first of them is held or lost."""
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
        try:
            broker_reader, broker = await asyncio.open_connection("127.0.0.1", self._broker_port)
        except OSError:
            client.close()
            return
        self._streams += [client, broker]
        asked: deque[int | asyncio.Future[int]] = deque()
        requests = asyncio.ensure_future(self._requests(client_reader, client, broker, asked))
        responses = asyncio.ensure_future(self._responses(broker_reader, client, asked))
        await asyncio.wait([requests, responses], return_when=asyncio.FIRST_COMPLETED)
        client.close()
        if requests.done() and requests.exception() is None:
            # One was lost. The broker does not notice that the client is gone: it still gets what is on its way.
            await asyncio.wait([responses])
        for task in (requests, responses):
            task.cancel()
        for failure in await asyncio.gather(requests, responses, return_exceptions=True):
            assert failure is None or isinstance(failure, OSError | EOFError | asyncio.CancelledError), failure
        broker.close()

    async def _deliver(self) -> None:
        while self._delayed:
            delayed = self._delayed.popleft()
            delayed.broker.write(delayed.frame)
            self.late_answers.append(await delayed.answer)

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        broker: asyncio.StreamWriter,
        asked: deque[int | asyncio.Future[int]],
    ) -> None:
        """Forward requests until the client disconnects (raises), or until one was dropped (returns)."""
        while True:
            frame = await _frame(reader)
            api: int = struct.unpack_from(">h", frame, 4)[0]
            self.end_txns += api == Api.END_TXN
            if api == Api.END_TXN and self._deliver_at_next_end:
                self._deliver_at_next_end = False
                await self._deliver()
            if api == Api.END_TXN and self._losses:
                await self._lose(self._losses.popleft(), frame, broker, asked)
                return
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

    async def _lose(
        self, loss: Loss, frame: bytes, broker: asyncio.StreamWriter, asked: deque[int | asyncio.Future[int]]
    ) -> None:
        answer: asyncio.Future[int] = self._loop.create_future()
        asked.append(answer)
        if loss is Loss.REQUEST:
            self._delayed.append(Delayed(frame, broker, answer))
        else:
            broker.write(frame)
            await answer
        self._holds.set()

    async def _responses(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter, asked: deque[int | asyncio.Future[int]]
    ) -> None:
        address = b"127.0.0.1%b"
        real, ours = (address % struct.pack(">i", port) for port in (self._broker_port, self.port))
        while True:
            frame = await _frame(reader)
            api = asked.popleft()
            if isinstance(api, asyncio.Future):
                api.set_result(struct.unpack_from(">h", frame, 12)[0])
            elif api in self._held_responses:
                self._holds.set()
            elif api == Api.END_TXN and self._break_commit:
                self._break_commit = None
                client.write(frame[:12] + struct.pack(">h", INVALID_TXN_STATE))
            elif api == Api.PRODUCE and self._refusals and self._refusals[0][0] in frame:
                client.write(_with_error(frame, self._refusals.popleft()[1]))
            else:
                # The broker tells its own address; the client is to stay with the gate.
                client.write(frame.replace(real, ours))


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack(">i", head)[0])


def _with_error(produced: bytes, error: int) -> bytes:
    """A produce response (version 9 or later) with another error code for its first partition."""
    # Length, correlation id, no tagged fields, then arrays and texts by their length plus one; all lengths are small.
    topics = 9
    name = topics + 1
    partitions = name + produced[name]
    code = partitions + 1 + 4
    assert all(1 < produced[place] < 0x80 for place in (topics, name, partitions))
    return produced[:code] + struct.pack(">h", error) + produced[code + 2 :]
