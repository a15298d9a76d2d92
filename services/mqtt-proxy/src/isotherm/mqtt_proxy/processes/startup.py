"""Waits for servers at the start and shows the reason on the health page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from confluent_kafka import KafkaException

from isotherm.mqtt_proxy.ingest.topic_encoders import MissingTopicError
from isotherm.mqtt_proxy.processes.name_conflicts import NameInUseError
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.startup import wait_until_up

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
    waiting = partial(wait_until_up, part, call, _TRANSIENT, health=health, stop=stop, backoff=backoff)
    return await asyncio.get_running_loop().run_in_executor(executor, waiting)
