"""Tells, when a silence ends, the alerts that it has muted and that are still open."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, Message

from isotherm.alerts.notifications.grouping import PendingAlert
from isotherm.alerts.notifications.muted_alerts import MAX_FOUND, MutedAlerts
from isotherm.alerts.routes.notification import Alert, is_closed
from isotherm.alerts.routes.silences import Silence, SilenceTable

_READ_DELAY_MS = 300_000
"""Within this time after its end a silence's record is read: who ends one by hand writes it a moment after the end."""


class SilenceEnds:
    """The ends of silences, for one route. The caller has the clock, in epoch ms."""

    def __init__(
        self,
        table: SilenceTable,
        topic: str,
        make_consumer: Callable[[], Consumer],
        pending_of: Callable[[Message], PendingAlert | None],
        checked_ms: int,
        read_delay_ms: int = _READ_DELAY_MS,
        max_found: int = MAX_FOUND,
    ) -> None:
        """Take what the search for muted alerts needs. Ends up to `checked_ms` are dealt with.

        A later end is looked for until `read_delay_ms` after it, because its record may be read after it. At most
        `max_found` alerts are told before the next ones are looked for.
        """
        self._read_delay_ms, self._max_found = read_delay_ms, max_found
        self._table, self._topic = table, topic
        self._make_consumer, self._pending_of = make_consumer, pending_of
        self.checked_ms = checked_ms
        """Up to when every end is dealt with: the alerts are told, and not only found."""
        self._until_ms = checked_ms
        self._search: MutedAlerts | None = None
        self._ending: Mapping[tuple[str, int], Silence] = {}
        self._done: set[tuple[str, int]] = set()
        """Ids and ends of silences that this object has dealt with after `checked_ms`."""
        self._left: set[tuple[int | None, int | None]] = set()
        self._closed: set[str] = set()
        """Ids of their alerts that the route has read as closed since the pass began, maybe behind its end."""

    @property
    def is_busy(self) -> bool:
        """Whether `step` has something to read, so that the route must not wait for alerts."""
        return self._search is not None and not self._left

    def step(self, now_ms: int) -> list[PendingAlert]:
        """Look for ends, or read on; return the alerts that are to be told now.

        Raises KafkaException and RegistryUnavailableError.
        """
        if self._left:
            return []
        if self._search is None:
            ended = self._table.ended(self.checked_ms, now_ms)
            ended = {key: silence for key, silence in ended.items() if key not in self._done}
            self._until_ms = now_ms
            if not ended:
                self._advance()
                return []
            self._ending = ended
            since_ms = self._table.muted_since(ended.values())
            consumer = self._make_consumer()
            self._search = MutedAlerts(
                consumer, self._topic, since_ms, self._table.muted_until, self._pending_of, self._max_found
            )
        if not self._search.is_done:
            self._search.step()
        if not self._search.is_done:
            return []
        found = [
            pending
            for alert_id, (pending, at_ms) in self._search.found.items()
            if alert_id not in self._closed and self._ends_now(pending.alert, at_ms, now_ms)
        ]
        self._left = {(one.source.partition, one.source.offset) for one in found}
        self._closed.clear()
        if not self._search.begin_next():
            self.close()
            self._done |= self._ending.keys()
            if not found:
                self._advance()
        return found

    def note(self, alert: Alert) -> None:
        """Note a state that the route has read: an alert that closes during a search is not found as an open one."""
        if self._search is None or not is_closed(alert):
            return
        if any(silence.scope.takes(alert) for silence in self._ending.values()):
            self._closed.add(alert["alert_id"])

    def settle(self, partition: int | None, offset: int | None) -> None:
        """Note that an alert is told, or never will be."""
        if self._left:
            self._left.discard((partition, offset))
            if not self._left and self._search is None:
                self._advance()

    def _ends_now(self, alert: Alert, at_ms: int, now_ms: int) -> bool:
        """Return whether the last silence that muted an alert is one of those that have ended."""
        until_ms = self._table.muted_until(alert, at_ms)
        return any(until_ms == end_ms for _, end_ms in self._ending) and not self._table.is_acknowledged(alert, now_ms)

    def _advance(self) -> None:
        self.checked_ms = max(self.checked_ms, self._until_ms - self._read_delay_ms)
        self._done = {(silence_id, end_ms) for silence_id, end_ms in self._done if end_ms > self.checked_ms}

    def close(self) -> None:
        """Stop to read."""
        if self._search is not None:
            self._search.close()
            self._search = None
            self._closed.clear()
