"""Reads the topic `isotherm.connectors` from its beginning, without end; each record is a change of one connector.

The same consumer can pass on what comes to `isotherm.readback.requests`: another one would cost connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from isotherm.connector.state.readback import REQUESTS
from isotherm.servicekit import logs
from isotherm.servicekit.avro import (
    Decoder,
    JsonSchema,
    RegistryUnavailableError,
    SchemaRegistry,
    WireFormatError,
)
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

_log = logs.logger(__name__)

TOPIC = "isotherm.connectors"

_RETRY_S = 5.0
"""Pause before a record is decoded again, whose schema the registry did not give."""
_REQUEST_S = 10.0
_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 500.0, 2_000 * _RETRY_S
"""Limits of the pauses before Kafka is asked for the topic again. They are short at first: when a whole system starts,
Kafka, the topic and its leader are there a moment later. Later they are `_RETRY_S` on average."""
_MOST_REQUESTS = 1_000
"""How many requests are passed on before the caller has its turn."""
_FETCH_WAIT_MS = 5_000
"""How long Kafka holds a fetch while nothing changes; a new record answers it at once."""


class Change(NamedTuple):
    """The newest record of one connector; None when the connector was deleted."""

    name: str
    record: Mapping[str, Any] | None
    offset: int = 0
    """The record's offset; a higher one is newer."""


class ConnectorTopic:
    """Reads the topic; for one thread. It retries and logs while Kafka, the registry or the topic is missing."""

    def __init__(
        self,
        kafka_settings: KafkaSettings,
        registry_settings: RegistrySettings,
        client_id: str,
        reader: JsonSchema,
        is_followed: Callable[[str], bool] = lambda _name: True,
        on_readback: Callable[[str, bytes], None] | None = None,
    ) -> None:
        """Decode only records for whose name `is_followed` is true, so that bad records of others cannot block.

        `poll` calls `on_readback`, which must not block, with the name of a followed connector and an encoded
        ReadbackRequest that was written after the start; without it the requests are not read.
        """
        self._decode = Decoder(SchemaRegistry(registry_settings), reader)
        self._is_followed = is_followed
        self._on_readback = on_readback
        # The consumer assigns the partition itself: it joins no group and commits nothing.
        self._consumer = clients.consumer(
            kafka_settings, client_id, client_id, enable_partition_eof=True, fetch_wait_max_ms=_FETCH_WAIT_MS
        )
        self._is_assigned = False
        self._end = 0
        """The offset after the last record that was written before the start."""
        self._next_try_s = 0.0
        self._backoff = Backoff(base_ms=_FIRST_PAUSE_MS, cap_ms=_MAX_PAUSE_MS)
        self._undecoded: Message | None = None
        self.is_current = False
        """Whether `poll` has returned every record that was written before the start."""
        self.is_missing = False
        """Whether the topic does not exist."""

    @property
    def is_waiting(self) -> bool:
        """Whether a server is unavailable or the topic missing, so that `poll` returns at once without a change."""
        return not self._is_assigned or self._undecoded is not None

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def poll(self, timeout_s: float) -> Change | None:
        """The next change; None when there is none within `timeout_s`, or sooner.

        Records that cannot be decoded are logged and skipped.
        """
        if not self._is_assigned:
            self._assign()
            return None
        message, self._undecoded = self._undecoded, None
        if message is None:
            message = self._next(timeout_s)
        if message is None:
            return None
        error = message.error()
        if error is not None:
            # The end is reported only after a fetch that brought nothing. It counts where compaction has removed the
            # record before `_end`.
            self.is_current = self.is_current or error.code() == KafkaError._PARTITION_EOF
            return None
        name = (message.key() or b"").decode(errors="replace")
        change = self._change(name, message) if self._is_followed(name) else None
        if not self.is_waiting and (message.offset() or 0) + 1 >= self._end:
            self.is_current = True
        return change

    def _assign(self) -> None:
        if time.monotonic() < self._next_try_s:
            return
        try:
            found = self._consumer.list_topics(TOPIC, timeout=_REQUEST_S).topics[TOPIC]
            if found.error is None:
                # The topic has one partition, which keeps a connector's records in order. Its end is asked for before
                # the first fetch, behind which Kafka would hold the answer.
                first, self._end = self._consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=_REQUEST_S)
                self._consumer.assign([TopicPartition(TOPIC, 0, 0), *self._requests()])
                self._is_assigned, self.is_missing, self.is_current = True, False, first == self._end
                return
            self.is_missing = found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        except KafkaException as error:
            _log.warning("connectors topic not available yet", reason=str(error))
        self._next_try_s = time.monotonic() + self._backoff.next_ms() / 1000

    def _requests(self) -> list[TopicPartition]:
        """Return where reading requests begins; nowhere if they are not read or if there is no topic for them."""
        if self._on_readback is None:
            return []
        try:
            error = self._consumer.list_topics(REQUESTS, timeout=_REQUEST_S).topics[REQUESTS].error
            if error is None:
                _, end = self._consumer.get_watermark_offsets(TopicPartition(REQUESTS, 0), timeout=_REQUEST_S)
                return [TopicPartition(REQUESTS, 0, end)]
            reason = error.str()
        except KafkaException as failure:
            reason = str(failure)
        # Connectors do not wait for it.
        _log.warning("until the next start nobody can ask what stores have", topic=REQUESTS, reason=reason)
        return []

    def _next(self, timeout_s: float) -> Message | None:
        """Return the next message of the connectors, after passing on the requests before it."""
        for _ in range(_MOST_REQUESTS):
            message = self._consumer.poll(timeout_s)
            if message is None or message.topic() != REQUESTS:
                return message
            self._pass_on(message)
            timeout_s = 0.0
        return None

    def _pass_on(self, message: Message) -> None:
        name, value = (message.key() or b"").decode(errors="replace"), message.value()
        if message.error() is None and value is not None and self._on_readback is not None and self._is_followed(name):
            self._on_readback(name, value)

    def _change(self, name: str, message: Message) -> Change | None:
        value = message.value()
        if value is None:
            return Change(name, None, message.offset() or 0)
        if time.monotonic() < self._next_try_s:
            self._undecoded = message
            return None
        try:
            return Change(name, self._decode(value).record, message.offset() or 0)
        except RegistryUnavailableError as error:
            _log.warning("connector record cannot be decoded yet", connector=name, reason=str(error))
            self._undecoded, self._next_try_s = message, time.monotonic() + _RETRY_S
        except WireFormatError as error:
            _log.error(
                "connector record cannot be decoded, its previous state stays",
                connector=name,
                offset=message.offset(),
                reason=str(error),
            )
        return None
