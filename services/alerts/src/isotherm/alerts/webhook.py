"""Posts alerts to a webhook. It reads the alerts topic with a consumer group of its own, so nothing waits for it.

An alert is posted at least once; a repeat has the same `Idempotency-Key`. A post that can still succeed is repeated. A
post that cannot is made a dead-letter record. Only then the next alert is posted.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import httpx
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

import isotherm.schemas
from isotherm.alerts.input.dead_letters import dead_letter_record, source_record
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.settings import AlertsSettings
from isotherm.connector.errors.dead_letters import DeadLetterQueue
from isotherm.servicekit import logs
from isotherm.servicekit.avro import (
    Decoder,
    RegistryUnavailableError,
    SchemaRegistry,
    WireFormatError,
)
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health

READER = isotherm.schemas.schema("Alert", 1)

PART = "webhook"

_POLL_S = 0.5
_JOIN_S = 5.0
_MAX_ANSWER_BYTES = 65_536
_REPEATABLE = (408, 425, 429)
"""Status codes below 500 that ask for a repeat (RFC 9110, RFC 8470, RFC 6585)."""

_log = logs.logger(__name__)


class RefusedError(Exception):
    """The webhook has refused this alert permanently, or for longer than the retry limit."""


class WebhookClients(NamedTuple):
    """Makes the webhook's clients. After a failure it works on with new ones."""

    consumer: Callable[[], Consumer]
    """A consumer of the group `settings.webhook_group`, with `enable.partition.eof` set."""
    dead_letters: Callable[[], DeadLetterQueue]
    http: Callable[[], httpx.Client]
    """A client that authenticates itself to the webhook."""


class Webhook:
    """Posts alerts from a thread until it is closed."""

    def __init__(
        self,
        settings: AlertsSettings,
        registry: SchemaRegistry,
        clients: WebhookClients,
        metrics: Metrics,
        health: Health,
    ) -> None:
        self._settings, self._metrics, self._health = settings, metrics, health
        self._clients = clients
        self._decode = Decoder(registry, READER)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        """Start to post."""
        self._thread.start()

    def close(self) -> None:
        """Stop to post. The next webhook reader posts what is not committed."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        backoff = Backoff(base_ms=200, cap_ms=30_000)
        while not self._ended.is_set():
            try:
                self._follow(backoff)
            except Exception as error:
                self._health.not_ready(PART, f"posts nothing: {error}")
                _log.error("the webhook reader restarts", exc_info=error)
                self._ended.wait(backoff.next_ms() / 1000)

    def _follow(self, backoff: Backoff) -> None:
        """Read and post until the close, or until anything but the webhook itself fails."""
        dead_letters = self._clients.dead_letters()
        with ExitStack() as at_end:
            client = at_end.enter_context(self._clients.http())
            consumer = self._clients.consumer()
            at_end.callback(consumer.close)
            consumer.subscribe([self._settings.alerts_topic], on_assign=lambda *_: self._health.ready(PART))
            while not self._ended.is_set():
                message = consumer.poll(_POLL_S)
                if message is not None and self._is_alert(message) and self._deliver(client, dead_letters, message):
                    self._commit(consumer, message)
                    backoff.reset()

    def _is_alert(self, message: Message) -> bool:
        """Return whether a message is a record, not an event. Raises KafkaException for an error of the consumer."""
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        self._health.ready(PART)
        return error is None

    def _commit(self, consumer: Consumer, message: Message) -> None:
        try:
            consumer.commit(message=message, asynchronous=False)
        except KafkaException as error:
            # Nothing is lost: the alert is posted again, or the next commit includes it.
            _log.warning("the offset is not committed", offset=message.offset(), reason=str(error))

    def _deliver(self, client: httpx.Client, dead_letters: DeadLetterQueue, message: Message) -> bool:
        """Post an alert or make it a dead-letter record; return False after a close."""
        try:
            posted = self._post(client, message.value() or b"")
        except (RefusedError, WireFormatError) as error:
            class_name = f"{__name__}.{type(self).__name__}"
            name = self._settings.webhook_group
            dead = dead_letter_record(source_record(message), error, stage="TASK_PUT", name=name, class_name=class_name)
            dead_letters.send([dead])
            self._metrics.webhook.labels("dead-lettered").inc()
            _log.warning("dead-letter record", topic=message.topic(), offset=message.offset(), reason=str(error))
            return True
        return posted

    def _post(self, client: httpx.Client, value: bytes) -> bool:
        backoff = Backoff(base_ms=200, cap_ms=30_000)
        give_up = time.monotonic() + self._settings.webhook.retry_for_ms / 1000
        while not self._ended.is_set():
            problem = self._attempt(client, value)
            if problem is None:
                self._metrics.webhook.labels("posted").inc()
                return True
            if time.monotonic() >= give_up:
                raise RefusedError(problem)
            self._metrics.webhook.labels("repeated").inc()
            self._ended.wait(backoff.next_ms() / 1000)
        return False

    def _attempt(self, client: httpx.Client, value: bytes) -> str | None:
        """Post once; return why a repeat is needed, None after success. Raises RefusedError, WireFormatError."""
        try:
            alert = self._decode(value).record
        except RegistryUnavailableError as error:
            return str(error)
        key, body = post_of(alert)
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        try:
            with client.stream("POST", str(self._settings.webhook.url), content=body, headers=headers) as answer:
                status = answer.status_code
                # The response must be read to its end before the connection can be used again. Its content is ignored.
                for _part in answer.iter_raw():
                    if answer.num_bytes_downloaded > _MAX_ANSWER_BYTES:
                        break
        except httpx.HTTPError as error:
            return f"no answer: {error!r}"
        if 200 <= status < 300:
            return None
        if status >= 500 or status in _REPEATABLE:
            return f"answered {status}"
        raise RefusedError(f"answered {status}")


def post_of(alert: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the idempotency key and the body of a post. Times are in ISO 8601."""
    return f"{alert['alert_id']}/{alert['state']}", json.dumps(alert, default=lambda at: at.isoformat()).encode()
