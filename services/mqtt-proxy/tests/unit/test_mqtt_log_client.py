"""The client of the log of claims: what it cannot read now it waits for, and what it never can ends the pod."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient

from isotherm.mqtt_proxy.pods import log_client
from isotherm.mqtt_proxy.pods.log_client import LogClient
from isotherm.mqtt_proxy.pods.records import Keys, LogRecord
from isotherm.mqtt_proxy.sessions.server_name import ServerName
from isotherm.servicekit.avro import Decoder, RegistryUnavailableError
from isotherm.servicekit.backoff import Backoff

TOPIC = "claims"
KEYS = Keys(ServerName("one"))
WAIT_S = 30.0


class Log:
    """The topic: a consumer and a producer of it."""

    def __init__(self) -> None:
        self._records: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._offset = 0
        self.is_closed = False

    def append(self, text: bytes) -> None:
        """Append a record of a pod of the server."""
        record = SimpleNamespace(
            error=lambda: None, offset=lambda at=self._offset: at, key=lambda: KEYS.prefix, value=lambda: text
        )
        self._offset += 1
        self._records.put(cast(Message, record))

    def poll(self, timeout_s: float) -> Message | None:
        """As a consumer's; a producer's does nothing."""
        try:
            return self._records.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def consume(self, _most: int, _timeout_s: float) -> list[Message]:
        """As a consumer's."""
        return []

    def list_topics(self, *_arguments: Any, **_named: Any) -> None:
        """As a consumer's."""

    def assign(self, _partitions: object) -> None:
        """As a consumer's."""

    def flush(self, _timeout_s: float) -> int:
        """As a producer's."""
        return 0

    def close(self) -> None:
        """As a consumer's."""
        self.is_closed = True


def decoder(read: Callable[[bytes], str]) -> Decoder:
    def decode(value: bytes) -> SimpleNamespace:
        return SimpleNamespace(record={"incarnation": read(value), "messages": []})

    return cast(Decoder, decode)


def follow(log: Log, read: Callable[[bytes], str], told: Callable[[list[str]], bool]) -> list[str]:
    """What the client tells, the incarnations of records and `broken: reason`, until `told` is true of it."""
    found: list[str] = []

    async def run() -> None:
        changed = asyncio.Event()

        def on_records(records: Sequence[LogRecord]) -> None:
            found.extend(record.incarnation for record in records)
            changed.set()

        def on_broken(reason: str) -> None:
            found.append(f"broken: {reason}")
            changed.set()

        client = LogClient(
            TOPIC,
            KEYS,
            "pod/1",
            admin=cast(AdminClient, None),
            make_consumer=lambda: cast(Consumer, log),
            make_producer=lambda: cast(Producer, Log()),
            decoder=decoder(read),
            make_encoder=lambda: lambda _record: b"",
        )
        client.open()
        client.on_records, client.on_broken = on_records, on_broken
        client.start()
        try:
            while not told(found):
                changed.clear()
                await asyncio.wait_for(changed.wait(), WAIT_S)
        finally:
            await asyncio.to_thread(client.close, 0.0)

    asyncio.run(run())
    assert log.is_closed
    return found


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(log_client, "end_offsets", lambda _admin, _topic: {0: 0})
    monkeypatch.setattr(Backoff, "next_ms", lambda _self: 1.0)
    return Log()


def test_a_schema_that_the_registry_does_not_return_now_is_waited_for(log: Log) -> None:
    away = [True, True, True]

    def read(value: bytes) -> str:
        if value == b"new" and away:
            away.pop()
            raise RegistryUnavailableError("away")
        return value.decode()

    for text in (b"old", b"new", b"newer"):
        log.append(text)
    assert follow(log, read, lambda told: len(told) == 3) == ["old", "new", "newer"]
    assert not away


def test_a_pod_that_cannot_follow_is_told_to_end_whatever_the_reason(log: Log) -> None:
    def read(_value: bytes) -> str:
        raise RuntimeError("a fault of ours")

    log.append(b"any")
    assert follow(log, read, bool) == ["broken: claims: RuntimeError('a fault of ours')"]


def test_a_pod_that_waits_for_the_registry_can_be_stopped(log: Log) -> None:
    asked: list[bytes] = []

    def read(value: bytes) -> str:
        asked.append(value)
        if value == b"old":
            return "old"
        raise RegistryUnavailableError("away")

    log.append(b"old")
    log.append(b"new")
    assert follow(log, read, bool)[:1] == ["old"]
