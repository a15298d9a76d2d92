"""Runs one route: reads alerts, groups them, sends notifications, repeats what failed, commits what is settled."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Message

import isotherm.schemas
from isotherm.alerts.input.dead_letters import dead_letter_record, source_record
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.notifications.alert_reader import AlertReader
from isotherm.alerts.notifications.delivery import Delivery
from isotherm.alerts.notifications.grouping import AlertGroups, PendingAlert
from isotherm.alerts.notifications.silence_ends import SilenceEnds
from isotherm.alerts.notifications.storms.history import read_open_alerts
from isotherm.alerts.notifications.storms.placement import Storms
from isotherm.alerts.notifications.targets import Target
from isotherm.alerts.routes.kinds import BaseRoute
from isotherm.alerts.routes.notification import Alert, is_closed, with_attributes
from isotherm.alerts.routes.silences import SilenceTable
from isotherm.connector.errors.dead_letters import DeadLetterQueue
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, SchemaRegistry, WireFormatError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health

READER = isotherm.schemas.schema("Alert", 2)

MAX_PENDING = 20_000
"""Most states of alerts that a route holds in memory; the others wait in Kafka."""
_POLL_S = 0.5
_TURN_S = 5.0
"""After this long no further attempt begins before the next poll, without which Kafka gives the route to another."""
_JOIN_S = 5.0
_STORE_PAUSE_S = 1.0
"""Pause before the next attempt to store a storm."""
_CLASS = f"{__name__}.RouteRunner"

_log = logs.logger(__name__)

Attributes = Callable[[str], Mapping[str, str | None]]
"""Returns home, region and model that a device has now."""


class RouteClients(NamedTuple):
    """Makes what a route needs. After a failure it works on with new ones."""

    consumer: Callable[[], Consumer]
    """A consumer of the route's group with an eager assignor."""
    history: Callable[[], Consumer]
    """A consumer of no group that reports the ends of partitions."""
    dead_letters: Callable[[], DeadLetterQueue]
    target: Callable[[], Target]


class RouteRunner:
    """Runs a route in a thread until it is closed."""

    def __init__(
        self,
        route: BaseRoute,
        group: str,
        topic: str,
        registry: SchemaRegistry,
        clients: RouteClients,
        attributes: Attributes,
        silences: SilenceTable,
        metrics: Metrics,
        health: Health,
    ) -> None:
        """Take what the route needs: `group` is its consumer group, `topic` that of the alerts."""
        self._route, self._group, self._topic = route, group, topic
        self._clients, self._attributes, self._silences = clients, attributes, silences
        self._metrics, self._health = metrics, health
        self._decode = Decoder(registry, READER)
        self._groups, self._deliveries = AlertGroups(route), dict[tuple[str, ...], Delivery]()
        self._told_again = Counter[tuple[int | None, int | None]]()
        """How many notifications more than one are to tell of a record, which is settled with the last one."""
        self._resume_s = 0.0
        """When the pause ends that the target has asked for, by the monotonic clock."""
        self._throttled = Backoff(base_ms=200, cap_ms=30_000)
        """Grows from one such pause to the next, whichever notification is tried."""
        # A counter that exists from the start shows its first increase.
        for outcome in ("delivered", "repeated", "dead-lettered"):
            metrics.notifications.labels(route.name, outcome)
        for outcome in ("delivered", "filtered", "silenced", "expired", "dead-lettered"):
            metrics.route_alerts.labels(route.name, outcome)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"route-{route.name}", daemon=True)

    @property
    def part(self) -> str:
        """The name of the route in `/ready`."""
        return f"route {self._route.name}"

    def start(self) -> None:
        """Start to tell alerts. The service is not ready before the route has its place in its consumer group."""
        self._health.not_ready(self.part, "joins its consumer group")
        self._thread.start()

    def close(self) -> None:
        """Stop. The next reader of the group tells what is not committed."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        backoff = Backoff(base_ms=200, cap_ms=30_000)
        while not self._ended.is_set():
            try:
                self._follow(backoff)
            except Exception as error:
                self._health.not_ready(self.part, f"tells nothing: {error}")
                _log.error("the route restarts", route=self._route.name, exc_info=error)
                self._ended.wait(backoff.next_ms() / 1000)

    def _follow(self, backoff: Backoff) -> None:
        """Read and tell until the close, or until anything but the target fails."""
        dead_letters = self._clients.dead_letters()
        with ExitStack() as at_end:
            target = self._clients.target()
            at_end.callback(target.close)
            consumer = self._clients.consumer()
            at_end.callback(consumer.close)
            storm_limit = self._route.storm_limit if self._route.tells_each else None
            reader = AlertReader(consumer, self._topic, self._route.name, storm_limit)
            generation = 0
            ends: SilenceEnds | None = None
            at_end.callback(lambda: _close(ends))
            while not self._ended.is_set():
                is_busy = ends is not None and ends.is_busy
                messages = reader.read(0.0 if is_busy else self._pause_s(time.monotonic()))
                if reader.generation != generation:
                    # Another process may tell what this one holds; if not, it is read again.
                    generation = reader.generation
                    self._groups, self._deliveries, self._told_again = AlertGroups(self._route), {}, Counter()
                    self._read_storms(reader)
                    _close(ends)
                    ends = self._silence_ends(reader)
                    self._health.ready(self.part)
                taken = [self._take(message, reader, dead_letters, ends) for message in messages]
                self._place([one for one in taken if one is not None], reader)
                if ends is not None:
                    self._notify_after_silences(ends, reader)
                self._notify(target, reader, dead_letters, ends)
                reader.storms.drop_ended(time.monotonic(), reader.read_until())
                reader.hold(self._groups.size >= MAX_PENDING)
                self._metrics.route_pending.labels(self._route.name).set(self._groups.size)
                reader.commit()
                if messages:
                    backoff.reset()

    def _pause_s(self, now_s: float) -> float:
        """Return how long the route may wait for alerts: until something is due, and never long after a close."""
        times = [max(delivery.next_s, self._resume_s) for delivery in self._deliveries.values()]
        if (due_s := self._groups.next_due_s()) is not None:
            times.append(due_s)
        return max(0.0, min([_POLL_S, *(due - now_s for due in times)]))

    def _silence_ends(self, reader: AlertReader) -> SilenceEnds | None:
        if not reader.is_reading:
            return None
        return SilenceEnds(self._silences, self._topic, self._clients.history, self._pending_of, reader.checked_ms)

    def _notify_after_silences(self, ends: SilenceEnds, reader: AlertReader) -> None:
        """Let the alerts wait that a silence has muted, and that are open when it ends."""
        told = list[PendingAlert]()
        for pending in ends.step(time.time_ns() // 1_000_000):
            if self._route.filter.takes(pending.alert):
                told.append(pending)
            else:
                ends.settle(pending.source.partition, pending.source.offset)
        self._place(told, reader, is_in_turn=False)
        # It is committed with the next alerts, and at once after muted ones are told; else nothing has happened since.
        reader.checked_ms = ends.checked_ms

    def _read_storms(self, reader: AlertReader) -> None:
        """Find out which alerts are open in the storms that an earlier run has begun."""
        if reader.is_reading and len(reader.storms):
            consumer = self._clients.history()
            past_of = partial(self._past_of, reader.storms)
            read_open_alerts(reader.storms, consumer, self._topic, reader.starts, past_of, self._ended.is_set)
            _log.info("goes on with storms", route=self._route.name, storms=len(reader.storms))

    def _past_of(self, storms: Storms, message: Message) -> PendingAlert | None:
        """Return the alert of a record that an earlier run has read; None when it has not told it."""
        pending = self._pending_of(message)
        if pending is None or (is_closed(pending.alert) and storms.holds(pending.alert)):
            # `_outcome` takes the end of such an alert, too, whatever else is true of it.
            return pending
        if not self._route.filter.takes(pending.alert):
            return None
        is_muted = self._silences.mutes(pending.alert, message.timestamp()[1])
        return None if is_muted and not storms.may_hold(pending) else pending

    def _place(self, waiting: list[PendingAlert], reader: AlertReader, *, is_in_turn: bool = True) -> None:
        """Let alerts wait, each with its group or its storm. All of them count for the storm of the first one."""
        now_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        if not self._route.tells_each:
            for pending in waiting:
                self._groups.add(pending, now_s)
            return
        for pending in waiting:
            reader.storms.arrive(pending, now_s, is_in_turn=is_in_turn)
        for pending in waiting:
            places = reader.storms.place(pending, now_s, now_ms, is_in_turn=is_in_turn)
            if len(places) > 1:
                self._told_again[pending.source.partition, pending.source.offset] += len(places) - 1
            for storm in places:
                self._groups.add(pending, now_s, storm)

    def _pending_of(self, message: Message) -> PendingAlert | None:
        """Return the alert of a record; None when it cannot be decoded. Raises RegistryUnavailableError."""
        source = source_record(message)
        try:
            record = self._decode(source.value or b"").record
        except WireFormatError:
            return None
        return PendingAlert(self._with_attributes(record), source)

    def _with_attributes(self, record: Mapping[str, Any]) -> Alert:
        return with_attributes(record, self._attributes(record["device_id"]))

    def _take(
        self, message: Message, reader: AlertReader, dead_letters: DeadLetterQueue, ends: SilenceEnds | None
    ) -> PendingAlert | None:
        """Return the alert of a record that is to be told; settle any other one. Raises RegistryUnavailableError."""
        source = source_record(message)
        partition, offset = message.partition() or 0, message.offset() or 0
        try:
            record = self._decode(source.value or b"").record
        except WireFormatError as error:
            self._dead_letter([PendingAlert({}, source)], error, dead_letters)
            reader.settle(partition, offset)
            return None
        alert = self._with_attributes(record)
        if ends is not None:
            ends.note(alert)
        outcome = self._outcome(alert, message.timestamp()[1], reader)
        if outcome is None:
            return PendingAlert(alert, source)
        self._metrics.route_alerts.labels(self._route.name, outcome).inc()
        reader.settle(partition, offset)
        return None

    def _outcome(self, alert: Alert, stored_ms: int, reader: AlertReader) -> str | None:
        """Return why a state of an alert is not told; None when it is."""
        if is_closed(alert) and not self._route.send_resolved:
            reader.storms.forget(alert)
            return "filtered"
        if is_closed(alert) and reader.storms.holds(alert):
            # The target knows of it.
            return None
        if not self._route.filter.takes(alert):
            return "filtered"
        if self._silences.mutes(alert, stored_ms):
            return "silenced"
        is_old = time.time() * 1000 - stored_ms > self._route.max_age_ms
        # An end that is not told would leave an alert open at its target for ever.
        return "expired" if is_old and not (is_closed(alert) and self._route.keeps_alerts) else None

    def _notify(
        self, target: Target, reader: AlertReader, dead_letters: DeadLetterQueue, ends: SilenceEnds | None
    ) -> None:
        now_s = time.monotonic()
        for taken in self._groups.take_due(now_s):
            self._deliveries[taken.key] = Delivery(taken, self._route.retry_for_ms, self._route.max_age_ms, now_s)
        due = [one for one in self._deliveries.values() if one.next_s <= now_s]
        for delivery in sorted(due, key=lambda one: one.next_s):
            if self._ended.is_set() or time.monotonic() < self._resume_s:
                return
            if not self._is_stored(delivery, reader):
                continue
            if self._attempt(delivery, target, dead_letters):
                del self._deliveries[delivery.taken.key]
                self._groups.told(delivery.taken, time.monotonic())
                for pending in delivery.taken.covered:
                    self._settle(pending, reader, ends)
                reader.checked_ms = reader.checked_ms if ends is None else ends.checked_ms
                reader.commit(at_once=True)
            if time.monotonic() - now_s > _TURN_S:
                return

    def _is_stored(self, delivery: Delivery, reader: AlertReader) -> bool:
        """Return whether Kafka knows how alerts are placed: a restart has to place them alike, and go on with a storm.

        An alert by itself is told also when Kafka refuses to store it.
        """
        if not reader.storms.is_changed or reader.commit(at_once=True):
            return True
        if delivery.taken.notification.storm is None:
            # Without storms the offsets alone say what is told.
            return True
        delivery.next_s = time.monotonic() + _STORE_PAUSE_S
        return False

    def _settle(self, pending: PendingAlert, reader: AlertReader, ends: SilenceEnds | None) -> None:
        source = pending.source
        place = source.partition, source.offset
        if self._told_again[place] > 0:
            self._told_again[place] -= 1
            return
        del self._told_again[place]
        reader.settle(source.partition or 0, source.offset or 0)
        if ends is not None:
            ends.settle(source.partition, source.offset)

    def _attempt(self, delivery: Delivery, target: Target, dead_letters: DeadLetterQueue) -> bool:
        """Attempt a delivery; return whether nothing is left to do for it."""
        covered = delivery.taken.covered
        name = self._route.name
        try:
            problem = delivery.attempt(target, time.monotonic)
        except Exception as error:
            # Whatever is wrong with one notification must not stop the others: not even a fault in its template.
            self._dead_letter(list(covered), error, dead_letters)
            self._metrics.notifications.labels(name, "dead-lettered").inc()
            return True
        if problem is not None:
            if delivery.is_throttled:
                self._resume_s = max(delivery.next_s, time.monotonic() + self._throttled.next_ms() / 1000)
            self._metrics.notifications.labels(name, "repeated").inc()
            _log.warning("a notification is repeated", route=name, alerts=len(covered), reason=problem)
            return False
        self._throttled.reset()
        self._metrics.notifications.labels(name, "delivered").inc()
        self._metrics.route_alerts.labels(name, "delivered").inc(len(covered))
        return True

    def _dead_letter(self, pending: list[PendingAlert], error: Exception, dead_letters: DeadLetterQueue) -> None:
        dead_letters.send(
            [
                dead_letter_record(one.source, error, stage="TASK_PUT", name=self._group, class_name=_CLASS)
                for one in pending
            ]
        )
        self._metrics.route_alerts.labels(self._route.name, "dead-lettered").inc(len(pending))
        _log.warning(
            "alerts become dead-letter records", route=self._route.name, alerts=len(pending), reason=str(error)
        )


def _close(ends: SilenceEnds | None) -> None:
    if ends is not None:
        ends.close()
