"""Kafka clients that keep the suite's promises: idempotent producers with acks=all, read_committed consumers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from isotherm.servicekit import logs
from isotherm.servicekit.kafka.group_offsets import GroupAdmin
from isotherm.servicekit.promised_properties import is_promised
from isotherm.servicekit.settings import KafkaSettings

_log = logs.logger(__name__)
_librdkafka_log = logging.getLogger("librdkafka")
# librdkafka logs a failed connection and reports it to the error callback, whose log line is enough.
_librdkafka_log.addFilter(lambda record: not record.getMessage().startswith(("FAIL ", "ERROR ")))

PRODUCER_DEFAULTS: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    # Java's default partitioner: every producer must put a key on the same partition.
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "linger.ms": 5,
    "delivery.timeout.ms": 30_000,
}

CONSUMER_DEFAULTS: dict[str, Any] = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "partition.assignment.strategy": "cooperative-sticky",
}

_SESSION_MS, _HEARTBEAT_MS = 45_000, 3_000
"""What librdkafka takes where nothing is said."""
_EMPTY_FETCH_MS = 50
"""How long Kafka holds a fetch that finds nothing, for a reader that waits for the end of its partitions."""


def client_config(settings: KafkaSettings, client_id: str, **overrides: Any) -> dict[str, Any]:
    """librdkafka configuration of any client: address, security pass-through, logs and errors to our logger.

    `overrides` use underscores for dots (`linger_ms=1`); `settings.properties` win over both defaults and overrides,
    except where a promise rests on the property (`promised_properties`): there each client has its own value.
    """
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": client_id,
        "log.connection.close": False,
        "logger": _librdkafka_log,
        "error_cb": _Errors(),
        **{key.replace("_", "."): value for key, value in overrides.items()},
        **{key: value for key, value in settings.properties.items() if not is_promised(key)},
    }


def producer(settings: KafkaSettings, client_id: str, **overrides: Any) -> Producer:
    """An idempotent producer with acks=all that partitions as Java does; delivery reports decide success."""
    return Producer({**PRODUCER_DEFAULTS, **client_config(settings, client_id, **overrides)})


def single_record_producer(settings: KafkaSettings, client_id: str, **overrides: Any) -> Producer:
    """A producer like `producer` whose batches hold one record, which Kafka refuses for its own sake only."""
    config = {**PRODUCER_DEFAULTS, **client_config(settings, f"{client_id}-single", **overrides)}
    return Producer({**config, "batch.num.messages": 1, "linger.ms": 0})


def consumer(settings: KafkaSettings, client_id: str, group: str, **overrides: Any) -> Consumer:
    """A read_committed consumer of `group` that commits only explicitly."""
    return Consumer(consumer_config(settings, client_id, group, **overrides))


def consumer_config(settings: KafkaSettings, client_id: str, group: str, **overrides: Any) -> dict[str, Any]:
    """librdkafka configuration of `consumer`: three heartbeats at least fit into a session, as Kafka asks for."""
    given = client_config(settings, client_id, **overrides)
    with contextlib.suppress(ValueError):  # librdkafka names a session that is no number
        session_ms = int(given.get("session.timeout.ms", _SESSION_MS))
        given.setdefault("heartbeat.interval.ms", max(1, min(_HEARTBEAT_MS, session_ms // 3)))
    return {**CONSUMER_DEFAULTS, "group.id": group, **given}


def consumer_to_the_end(settings: KafkaSettings, client_id: str, **overrides: Any) -> Consumer:
    """A read_committed consumer for partitions that the caller assigns and reads to their end, which it reports.

    The end shows only in an empty fetch, so Kafka answers that soon. It joins no group.
    """
    defaults = {"enable_partition_eof": True, "fetch_wait_max_ms": _EMPTY_FETCH_MS}
    return consumer(settings, client_id, client_id, **{**defaults, **overrides})


def admin(settings: KafkaSettings, client_id: str, **overrides: Any) -> AdminClient:
    """A client for topics and groups; keep a reference until its futures resolved."""
    return AdminClient(client_config(settings, client_id, **overrides))


def group_admin(settings: KafkaSettings, client_id: str, **overrides: Any) -> GroupAdmin:
    """A client for topics and groups like `admin`, which also reads committed offsets; nothing else may read them."""
    # An offset of a transaction that is not decided yet is not waited for; the last committed one counts.
    make_consumer = partial(consumer, settings, f"{client_id}-offsets", isolation_level="read_uncommitted", **overrides)
    return GroupAdmin(client_config(settings, client_id, **overrides), make_consumer)


class _Errors:
    """Logs each error at most once in `interval_s`: an unavailable broker fails hundreds of connections."""

    def __init__(self, interval_s: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._logged_s: dict[str, float] = {}

    def __call__(self, error: KafkaError) -> None:
        now = self._clock()
        self._logged_s = {name: at for name, at in self._logged_s.items() if now - at < self._interval_s}
        if error.name() not in self._logged_s:
            self._logged_s[error.name()] = now
            # librdkafka retries after every error that it reports here; a fatal one also fails the next call.
            _log.warning("kafka client error", code=error.name(), reason=error.str(), fatal=error.fatal())
