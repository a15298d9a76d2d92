"""Waits for servers at the start and shows the reason on the health page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import TypeVar

from confluent_kafka import KafkaException

from isotherm.mqtt_proxy.ingest.topic_encoders import MissingTopicError
from isotherm.mqtt_proxy.processes.name_conflicts import NameInUseError
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

T = TypeVar("T")

_TRANSIENT = (
    KafkaException,
    RegistryUnavailableError,
    SchemaNotRegisteredError,
    MissingTopicError,
    NameInUseError,
)


async def retry_until_possible(
    part: str, call: Callable[[], T], *, executor: Executor, health: Health, stop: Stop
) -> T | None:
    """Call `call` in a thread, again with back-off while a server is away, and return its result; None after a stop."""
    backoff = Backoff(base_ms=200, cap_ms=5_000)
    while not stop.is_set():
        try:
            result = await asyncio.get_running_loop().run_in_executor(executor, call)
        except _TRANSIENT as error:
            health.not_ready(part, str(error))
            wait_ms = backoff.next_ms()
            _log.warning("waiting for a server", part=part, reason=str(error), retry_in_ms=round(wait_ms))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait_async(), wait_ms / 1000)
        else:
            health.ready(part)
            return result
    return None
