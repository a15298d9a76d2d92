"""What is wanted of a connector: its target state and its restarts, followed on `isotherm.connectors` from a thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

import isotherm_schemas
from connector.publishing import CONNECTORS
from servicekit import kafka, logs
from servicekit.avro import Decoder, RegistryUnavailableError, SchemaRegistry, WireFormatError
from servicekit.settings import KafkaSettings, RegistrySettings

_log = logs.logger(__name__)

READER = isotherm_schemas.schema("ConnectorConfig", 1)

_POLL_S = 0.5
_RETRY_S = 5.0
_REQUEST_S = 10.0
_JOIN_S = 2.0


class TargetState(StrEnum):
    """Kafka Connect's target states (KIP-875)."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


@dataclass(frozen=True)
class Target:
    """What is wanted; `restarts` grows with every restart that somebody asks for."""

    state: TargetState = TargetState.STARTED
    restarts: int = 0


def target_of(record: Mapping[str, Any]) -> Target:
    """The target in a ConnectorConfig record. Raises ValueError for a state that nobody knows."""
    return Target(TargetState(record["target_state"]), record["restart_count"])


class TargetFollower:
    """Follows the target of one connector; what nobody ever said anything about is to be STARTED.

    Its thread reads the control topic from the beginning. Without the topic, and while a server is away, the last
    target stays.
    """

    def __init__(self, kafka_settings: KafkaSettings, registry_settings: RegistrySettings, connector: str) -> None:
        self.target = Target()
        self._kafka = kafka_settings
        self._decode = Decoder(SchemaRegistry(registry_settings), READER)
        self._connector = connector
        self._current = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="target", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Follow no more."""
        self._ended.set()
        self._thread.join(_JOIN_S)

    def is_current(self) -> bool:
        """Whether all that was said before the start is known, or there is no such topic."""
        return self._current.is_set()

    def _run(self) -> None:
        name = f"{self._connector}-target"
        consumer = kafka.consumer(self._kafka, name, name, enable_partition_eof=True)
        try:
            if self._has_assignment(consumer):
                self._follow(consumer)
        finally:
            consumer.close()

    def _has_assignment(self, consumer: Consumer) -> bool:
        """Wait for the topic; False when the end came first."""
        while not self._ended.is_set():
            try:
                found = consumer.list_topics(CONNECTORS, timeout=_REQUEST_S).topics[CONNECTORS]
            except KafkaException as error:
                _log.warning("target state not known yet", reason=str(error))
            else:
                if found.error is None:
                    # The topic has one partition; the order of a connector's records rests on it.
                    consumer.assign([TopicPartition(CONNECTORS, 0, 0)])
                    return True
                if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and not self._current.is_set():
                    _log.warning("no control topic: nobody can pause or restart this service", topic=CONNECTORS)
                    self._current.set()
            self._ended.wait(_RETRY_S)
        return False

    def _follow(self, consumer: Consumer) -> None:
        while not self._ended.is_set():
            message = consumer.poll(_POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self._take(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._current.set()

    def _take(self, message: Message) -> None:
        if message.key() != self._connector.encode():
            return
        value = message.value()
        while not self._ended.is_set():
            try:
                self.target = Target() if value is None else target_of(self._decode(value).record)
            except RegistryUnavailableError as error:
                _log.warning("target state cannot be read yet", reason=str(error))
                self._ended.wait(_RETRY_S)
            except (WireFormatError, ValueError) as error:
                _log.error(
                    "target state cannot be read, the last one stays", offset=message.offset(), reason=str(error)
                )
                return
            else:
                return
