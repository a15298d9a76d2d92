"""Finds other live processes with the name of this one, before this one would fence them (ADR 0017).

On one host a socket shows them at once. On other hosts every process sends a heartbeat to `isotherm.status` each five
seconds. A process whose heartbeat arrives while this one looks is alive. Earlier heartbeats do not count, so no clocks
are compared.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

from isotherm.connector.state.status import (
    INTERVAL_MS,
    TOPIC,
    State,
    this_process,
)
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, WireFormatError
from isotherm.servicekit.kafka.consuming import assign_from_start, consume_available

_log = logs.logger(__name__)

_LOOK_INTERVALS = 2.5
"""How many intervals of heartbeats this process looks for those of others."""
_TOO_OLD_MS = 120_000
"""A heartbeat of this age is certainly old: no clock differs from Kafka's by so much."""
_REQUEST_TIMEOUT_S = 10.0
_POLL_S = 0.5
_HOLDS_ITS_ID = frozenset((State.RUNNING, State.PAUSED, State.STOPPED, State.RESTARTING))


class NameInUseError(Exception):
    """Another live process has the name of this one."""


class NameConflicts:
    """Looks for other processes of the server that is called `connector` on the control topics.

    `consumer` returns a new consumer that reports partition ends. Every process sends a heartbeat each `interval_s`
    seconds.
    """

    def __init__(
        self,
        admin: AdminClient,
        consumer: Callable[[], Consumer],
        decoder: Decoder,
        connector: str,
        *,
        interval_s: float = INTERVAL_MS / 1000,
    ) -> None:
        self._admin, self._consumer, self._decoder = admin, consumer, decoder
        self._connector = connector
        self._look_s = _LOOK_INTERVALS * interval_s
        self._lock: socket.socket | None = None

    def hold(self, ordinal: int, is_over: Callable[[], bool]) -> None:
        """Check that no other process is process `ordinal`, and reserve the number on this host.

        Raises NameInUseError, KafkaException.
        """
        if self._lock is None and sys.platform == "linux":
            cluster = self._admin.list_topics(timeout=_REQUEST_TIMEOUT_S).cluster_id
            lock = socket.socket(socket.AF_UNIX)
            try:
                # A name in the abstract namespace vanishes with its process, however that ends (unix(7)).
                lock.bind(f"\0isotherm/{cluster}/{self._connector}/{ordinal}")
            except OSError as error:
                lock.close()
                raise NameInUseError(self._describe({ordinal: "a process on this host"})) from error
            self._lock = lock
        self.check([ordinal], is_over)

    def check(self, ordinals: Iterable[int], is_over: Callable[[], bool]) -> None:
        """Check that no other process has one of `ordinals`. Raises NameInUseError, KafkaException."""
        others = self.others(ordinals, is_over)
        if others:
            raise NameInUseError(self._describe(others))

    def _describe(self, others: Mapping[int, str]) -> str:
        who = ", ".join(f"{worker} is its process {ordinal}" for ordinal, worker in sorted(others.items()))
        return (
            f"another server on this Kafka is called {self._connector}, too: {who}. Give each server a `name` of its "
            "own. This one waits until the other one ends"
        )

    def others(self, ordinals: Iterable[int], is_over: Callable[[], bool]) -> dict[int, str]:
        """Return which of `ordinals` another process has now, with the name of that process.

        Takes as long as reading the topic when no process seems to have one, else up to two heartbeats. Ends early when
        `is_over`. Raises KafkaException.
        """
        partitions = self._admin.list_topics(TOPIC, timeout=_REQUEST_TIMEOUT_S).topics[TOPIC]
        if partitions.error is not None:
            _log.warning("the status topic is missing: another server with this name would not be noticed", topic=TOPIC)
            return {}
        asked = set(ordinals)
        suspects: dict[tuple[int, str], None] = {}
        found: dict[int, str] = {}
        consumer = self._consumer()
        try:
            assign_from_start(consumer, TOPIC, partitions.partitions, _REQUEST_TIMEOUT_S)
            behind = set(partitions.partitions)
            until_s = time.monotonic() + self._look_s
            while not is_over() and (behind or (suspects and time.monotonic() < until_s)):
                for message in consume_available(consumer, 1_000, _POLL_S):
                    error = message.error()
                    if error is not None:
                        if error.code() == KafkaError._PARTITION_EOF:
                            # Kafka reports an end again after each record. Only the first one begins the wait, or the
                            # heartbeats of others would prolong it forever.
                            if behind == {message.partition()}:
                                until_s = time.monotonic() + self._look_s
                            behind.discard(message.partition())
                        elif error.fatal() or not error.retriable():
                            raise KafkaException(error)
                        continue
                    heartbeat = self._read_heartbeat(message, asked)
                    if heartbeat is None:
                        continue
                    ordinal, worker, is_holding = heartbeat
                    if not is_holding:
                        suspects.pop((ordinal, worker), None)
                    elif behind:
                        suspects[ordinal, worker] = None
                    else:
                        suspects.pop((ordinal, worker), None)
                        found[ordinal] = worker
        finally:
            consumer.close()
        return found

    def _read_heartbeat(self, message: Message, asked: set[int]) -> tuple[int, str, bool] | None:
        """Return ordinal and name of the sender, and whether it may have its transactional id; None to ignore it."""
        key, value = message.key(), message.value()
        if key is None or not key.startswith(f"{self._connector}/".encode()):
            return None
        _, ordinal, worker = key.decode("utf-8").split("/", 2)
        if int(ordinal) not in asked or worker == this_process():
            return None
        if value is None or time.time() * 1000 - message.timestamp()[1] > _TOO_OLD_MS or _is_dead(worker):
            return int(ordinal), worker, False
        with suppress(WireFormatError):
            return int(ordinal), worker, State(self._decoder(value).record["state"]) in _HOLDS_ITS_ID
        return None


def _is_dead(worker: str) -> bool:
    """Return whether a process of this host has certainly ended."""
    host, _, number = worker.rpartition(":")
    if host != socket.gethostname() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
