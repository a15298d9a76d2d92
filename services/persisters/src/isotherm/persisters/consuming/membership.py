"""A task as a member of its connector's consumer group: its consumer, its client id, and when it may join."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException

from isotherm.connector.config.files import group_of
from isotherm.connector.config.validation import Validated
from isotherm.connector.distributed.generations import Fence, Generation
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.settings import PersistersSettings
from isotherm.servicekit.kafka import clients

_SESSION = "session.timeout.ms"
_FETCH_BACKOFF_MS = 20
"""How long the client waits before it checks whether its full queue has room again."""


@dataclass(frozen=True)
class Membership:
    """The membership of one task."""

    settings: PersistersSettings
    config: Validated
    task: int
    generation: Generation | None
    """The generation of the configuration; None for a task whose configuration is a file."""

    @property
    def client_id(self) -> str:
        """Kafka's client id; it names the generation of the configuration that the task runs with."""
        name = f"{self.config.name}-{self.task}"
        return name if self.generation is None else self.generation.client_id(name)

    @property
    def session_timeout_ms(self) -> float:
        """The consumer's session timeout in milliseconds. `consumer` has checked that it is a number."""
        override = self.config.text(f"consumer.override.{_SESSION}")
        return float(self.settings.kafka.properties.get(_SESSION) or override or self.settings.session_timeout_ms)

    def consumer(self) -> Consumer:
        """Make a consumer of the group, not subscribed yet.

        Raises SinkConfigError for overrides that Kafka refuses.
        """
        overrides: dict[str, Any] = {
            "enable_partition_eof": True,
            "queued_max_messages_kbytes": self.settings.fetch_queue_kilobytes,
            # The client's default is 1 s, in which a task writes more than the queue holds.
            "fetch_queue_backoff_ms": _FETCH_BACKOFF_MS,
            # Small fetches of one partition after another fill all buffers evenly, so that none has to be paused.
            "max_partition_fetch_bytes": 256 * 1024,
            "session_timeout_ms": self.settings.session_timeout_ms,
            **{key.replace(".", "_"): value for key, value in self.config.under("consumer.override.").items()},
            # The loop chooses positions itself and counts the offsets that it skips.
            "auto_offset_reset": "error",
        }
        try:
            return clients.consumer(self.settings.kafka, self.client_id, group_of(self.config.name), **overrides)
        except KafkaException as error:
            raise SinkConfigError(f"consumer.override: {error.args[0].str()}") from error

    def fence(self) -> Fence | None:
        """Return what keeps tasks of two configurations apart; None if the only configuration is a file."""
        if self.generation is None:
            return None
        admin = clients.admin(self.settings.kafka, f"{self.config.name}-{self.task}-fence")
        return Fence(admin, group_of(self.config.name), self.generation)
