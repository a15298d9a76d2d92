"""Finds the alerts that a silence has kept from being told, and that are still open when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, Message, TopicPartition

from isotherm.alerts.input.unread_partitions import UnreadPartitions, offsets_since, partitions_of
from isotherm.alerts.notifications.grouping import PendingAlert
from isotherm.alerts.routes.notification import Alert, is_closed
from isotherm.servicekit.kafka.consuming import consume_available

_BATCH = 1_000
_POLL_S = 0.2
MAX_FOUND = 20_000
"""Most alerts that are found in one pass over the topic; the others are found in the next one."""


class MutedAlerts:
    """Reads the topic of alerts from a time to its present end, a batch at each call, once or several times.

    The topic itself says what was muted: an alert that Kafka has stored while a silence counted. So nothing more has
    to be stored, and a route that was away while a silence ended finds the same.
    """

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        start_ms: int,
        muted_until: Callable[[Alert, int], int | None],
        pending_of: Callable[[Message], PendingAlert | None],
        max_found: int = MAX_FOUND,
    ) -> None:
        """Assign the partitions.

        Raises KafkaException.

        Args:
            consumer: reports the ends of partitions; it is closed with this object.
            topic: the topic of alerts.
            start_ms: no alert that is looked for was stored before it, epoch ms.
            muted_until: until when silences mute a state of an alert that Kafka has stored at a time; None: not.
            pending_of: decodes a record; None for one that cannot be decoded.
            max_found: most alerts that are held in memory.
        """
        self._consumer, self._topic = consumer, topic
        self._muted_until, self._pending_of, self._max_found = muted_until, pending_of, max_found
        self.found: dict[str, tuple[PendingAlert, int]] = {}
        """The muted alerts that are open, as far as the topic is read, by id, and when Kafka has stored them."""
        self._left_out: dict[int, int] = {}
        """By partition, the offset of the first muted alert for which `found` had no room."""
        self._begin(offsets_since(consumer, topic, partitions_of(consumer, topic), start_ms))

    @property
    def is_done(self) -> bool:
        """Whether everything is read."""
        return not self._unread.numbers

    def step(self) -> None:
        """Read some records. Raises KafkaException and RegistryUnavailableError."""
        for message in consume_available(self._consumer, _BATCH, _POLL_S):
            if self._unread.note(message):
                self._take(message)

    def begin_next(self) -> bool:
        """Begin to read what `found` had no room for, up to the present end; return whether there is something.

        Raises KafkaException.
        """
        starts, self._left_out = self._left_out, {}
        self.found.clear()
        self._begin(starts)
        return not self.is_done

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _take(self, message: Message) -> None:
        pending = self._pending_of(message)
        if pending is None:
            return
        alert_id, at_ms = pending.alert["alert_id"], message.timestamp()[1]
        number = message.partition() or 0
        if is_closed(pending.alert) or self._muted_until(pending.alert, at_ms) is None:
            self.found.pop(alert_id, None)
        elif alert_id in self.found or (number not in self._left_out and len(self.found) < self._max_found):
            self.found[alert_id] = pending, at_ms
        else:
            # The next pass finds it, and all behind it in its partition.
            self._left_out.setdefault(number, message.offset() or 0)

    def _begin(self, starts: Mapping[int, int]) -> None:
        """Assign the partitions from these offsets; -1 is the end."""
        self._unread = UnreadPartitions(self._consumer, self._topic, starts)
        left = self._unread.numbers
        self._consumer.assign([TopicPartition(self._topic, number, starts[number]) for number in sorted(left)])
