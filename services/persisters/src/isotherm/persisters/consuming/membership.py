"""A task as a member of its connector's consumer group: its client id and the properties of its consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isotherm.connector.config.validation import Validated
from isotherm.connector.distributed.generations import Generation
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.settings import PersistersSettings

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
        """The consumer's session timeout in milliseconds. Raises SinkConfigError for an override that is no number."""
        override = self.config.text(f"consumer.override.{_SESSION}")
        given = self.settings.kafka.properties.get(_SESSION) or override or self.settings.session_timeout_ms
        try:
            return float(given)
        except ValueError:
            raise SinkConfigError(f"{_SESSION}: {given!r} is no number of milliseconds") from None

    def consumer_overrides(self) -> dict[str, Any]:
        """Return the overrides of `servicekit.kafka.clients.consumer` for the task's consumer."""
        return {
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
