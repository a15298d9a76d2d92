"""What is known of devices: their newest values and alerts from memory, their windows read when somebody asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from console import alerts as alert_topic
from console import latest as latest_topic
from console import windows as window_topic
from console.alerts import Alerts, alert_of
from console.browsing import Topics
from console.errors import UnavailableError
from console.following import Counters, Followed, Follower, avro, key_of
from console.latest import DeviceView, LatestStates, State, device_of
from console.paging import Budget, Search
from console.records import Record
from console.settings import SearchSettings
from console.windows import Window, by_metric, key_prefix, window_of
from servicekit.avro import Decoder, RegistryUnavailableError, SchemaRegistry, WireFormatError
from servicekit.health import Health
from servicekit.settings import KafkaSettings

_MOST_WINDOWS = 2_000


@dataclass(frozen=True)
class WindowsView:
    """The windows of a device that were published in some time."""

    metrics: Mapping[str, list[Window]]
    from_ms: int
    to_ms: int
    """Published from `from_ms` to `to_ms`, epoch; as far as was looked."""
    is_cut: bool
    """Whether the search ended before it had come as far back as was asked."""
    looked_at: int
    unreadable: int
    """Records of the device that are no windows."""


class DeviceBrowser:
    """Answers about devices; `condition` says whether everything was read that was there at the start."""

    def __init__(
        self,
        latest: LatestStates,
        alerts: Alerts,
        topics: Topics,
        schemas: SchemaRegistry,
        condition: Health,
        now_ms: Callable[[], int],
        search: SearchSettings,
    ) -> None:
        self.latest, self.alerts = latest, alerts
        self._topics, self._condition, self._now_ms, self._search = topics, condition, now_ms, search
        self._state = Decoder(schemas, latest_topic.SCHEMA)
        self._window = Decoder(schemas, window_topic.SCHEMA)

    @property
    def problem(self) -> str:
        """Why not everything is known that there is; empty when it is."""
        return "; ".join(self._condition.problems().values())

    def find(self, text: str, after: str, limit: int) -> list[DeviceView]:
        """Devices whose id contains a text and comes behind `after`, by id."""
        return [self._view(one) for one in self.latest.find(text, after, limit)]

    def device(self, device_id: str) -> DeviceView | None:
        """A device; None where nothing is known of it."""
        state = self.latest.get(device_id)
        return None if state is None else self._view(state)

    def windows(self, device_id: str, span_ms: int, until_ms: int | None = None) -> WindowsView:
        """The windows of a device that were published in `span_ms` before `until_ms` (epoch; None is now).

        Raises UnavailableError, NotFoundError when there is no topic of windows.
        """
        to_ms = self._now_ms() if until_ms is None else until_ms
        from_ms = max(0, to_ms - span_ms)
        reading = _Reading(self._window)
        with self._topics.reader(window_topic.TOPIC) as reader:
            ends = {partition: of.high for partition, of in reader.bounds.items()}
            search = Search(
                reader,
                reading.keep,
                Budget(time.monotonic, most_ms=self._search.timeout_ms, most_bytes=self._search.most_bytes),
                limit=_MOST_WINDOWS,
                key_prefix=key_prefix(device_id),
            )
            page = search.older(ends if until_ms is None else reader.at_time(to_ms), floor=reader.at_time(from_ms))
        is_whole = page.reached_ms is None
        return WindowsView(
            by_metric(page.items),
            from_ms if page.reached_ms is None else max(from_ms, page.reached_ms),
            to_ms,
            is_cut=not is_whole,
            looked_at=page.looked_at,
            unreadable=reading.unreadable,
        )

    def _view(self, state: State) -> DeviceView:
        try:
            record: Mapping[str, Any] = self._state(state.value).record
        except (WireFormatError, RegistryUnavailableError) as error:
            return DeviceView(state.device_id, problem=str(error))
        return device_of(record)


class _Reading:
    """Decodes the windows of one device."""

    def __init__(self, decode: Decoder) -> None:
        self._decode = decode
        self.unreadable = 0

    def keep(self, record: Record) -> Window | None:
        try:
            return None if record.value is None else window_of(self._decode(record.value).record)
        except RegistryUnavailableError as error:
            raise UnavailableError(f"the schema registry: {error}") from error
        except WireFormatError:
            self.unreadable += 1
            return None


def follower(
    settings: KafkaSettings,
    schemas: SchemaRegistry,
    latest: LatestStates,
    alerts: Alerts,
    condition: Health,
    counters: Counters,
) -> Follower:
    """What reads states and alerts; its own `condition` says how far it is, for the pages only."""

    def take_state(message: Message, value: bytes | None) -> None:
        latest.take(key_of(message), value)

    def take_alert(_message: Message, record: Mapping[str, Any] | None) -> None:
        if record is not None:
            alerts.take(alert_of(record))

    topics = {
        latest_topic.TOPIC: Followed(bytes, take_state),
        alert_topic.TOPIC: avro(schemas, alert_topic.SCHEMA, take_alert),
    }
    return Follower(settings, "console-devices", topics, condition, counters)
