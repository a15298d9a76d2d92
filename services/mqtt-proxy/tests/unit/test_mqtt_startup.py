"""The start waits for a server in a thread: the event loop goes on, and a stop ends the wait at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from isotherm.mqtt_proxy.delivery.transactional_writer import SuccessorUnknownError
from isotherm.mqtt_proxy.processes.startup import retry_until_possible
from isotherm.mqtt_proxy.session_source import SessionSource
from isotherm.servicekit.avro import RegistryUnavailableError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop


async def start(call: Callable[[], str], health: Health, stop: Stop) -> str | None:
    with ThreadPoolExecutor(1) as executor:
        return await retry_until_possible("kafka", call, executor=executor, health=health, stop=stop)


def test_a_stop_ends_a_long_wait_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "next_ms", lambda _self: 60_000.0)
    health, stop, calls = Health(), Stop(), list[int]()

    def call() -> str:
        calls.append(1)
        raise RegistryUnavailableError("away")

    async def stopped() -> str | None:
        starting = asyncio.create_task(start(call, health, stop))
        while "kafka" not in health.problems():  # noqa: ASYNC110 -- a thread tells it
            await asyncio.sleep(0.001)
        stop.set()
        return await asyncio.wait_for(starting, 30)

    assert asyncio.run(stopped()) is None
    assert len(calls) == 1


def test_an_error_that_no_wait_cures_ends_the_start() -> None:
    def call() -> str:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(start(call, Health(), Stop()))


def test_a_successor_is_named_and_unknown_while_kafka_or_the_registry_is_away() -> None:
    answers: list[dict[int, str] | Exception] = [
        {},
        {2: "other-host:17"},
        KafkaException(KafkaError(KafkaError._TRANSPORT)),
        RegistryUnavailableError("away"),
    ]
    asked: list[list[int]] = []

    def others(ordinals: list[int], _is_over: object) -> dict[int, str]:
        asked.append(ordinals)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def settings(*, is_pod: bool) -> SimpleNamespace:
        return SimpleNamespace(ordinal=2, pods=SimpleNamespace(enabled=is_pod))

    conflicts = SimpleNamespace(others=others)
    source = cast(SessionSource, SimpleNamespace(_conflicts=conflicts, _settings=settings(is_pod=False)))
    assert SessionSource.find_successor(source, lambda: False) is None
    assert SessionSource.find_successor(source, lambda: False) == "other-host:17"
    while answers:
        with pytest.raises(SuccessorUnknownError):
            SessionSource.find_successor(source, lambda: False)
    assert asked == [[2]] * 4
    pod = cast(SessionSource, SimpleNamespace(_conflicts=conflicts, _settings=settings(is_pod=True)))
    assert SessionSource.find_successor(pod, lambda: False) is None
    assert len(asked) == 4
