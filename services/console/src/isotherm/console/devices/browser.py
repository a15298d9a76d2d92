"""What is known of devices: their newest values and alerts from memory, their windows read when somebody asks."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

from confluent_kafka import Message

from isotherm.console.devices import alerts as alert_topic
from isotherm.console.devices import device_states as latest_topic
from isotherm.console.devices import provisioned as provisioned_topic
from isotherm.console.devices import windows as window_topic
from isotherm.console.devices.alerts import Alerts, alert_of
from isotherm.console.devices.device_states import DeviceView, LatestStates, device_of
from isotherm.console.devices.provisioned import Provisioned, provisioned_of
from isotherm.console.devices.windows import (
    Window,
    by_metric,
    key_prefix,
    window_of,
)
from isotherm.console.errors import UnavailableError
from isotherm.console.records.paging import Budget, Search
from isotherm.console.records.record import Record
from isotherm.console.records.topic_follower import (
    Counters,
    Followed,
    Follower,
    avro,
    key_of,
)
from isotherm.console.records.topics import Topics
from isotherm.console.settings import SearchSettings
from isotherm.servicekit.avro import (
    Decoder,
    RegistryUnavailableError,
    SchemaRegistry,
    WireFormatError,
)
from isotherm.servicekit.health import Health
from isotherm.servicekit.settings import KafkaSettings

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
        provisioned: LatestStates,
        alerts: Alerts,
        topics: Topics,
        schemas: SchemaRegistry,
        condition: Health,
        now_ms: Callable[[], int],
        search: SearchSettings,
    ) -> None:
        self.latest, self.provisioned, self.alerts = latest, provisioned, alerts
        self._topics, self._condition, self._now_ms, self._search = topics, condition, now_ms, search
        self._state = Decoder(schemas, latest_topic.SCHEMA)
        self._provisioned = Decoder(schemas, provisioned_topic.SCHEMA)
        self._window = Decoder(schemas, window_topic.SCHEMA)

    @property
    def problem(self) -> str:
        """Why not everything is known that there is; empty when it is."""
        return "; ".join(self._condition.problems().values())

    @property
    def known(self) -> int:
        """Devices that have reported or are provisioned, as many as are kept."""
        return len(self.latest) + self.silent

    @property
    def silent(self) -> int:
        """Those of them that have never reported."""
        return self.provisioned.count_beside(self.latest)

    @property
    def is_full(self) -> bool:
        """Whether a device was left out."""
        return self.latest.is_full or self.provisioned.is_full

    def find(self, text: str, after: str, limit: int) -> list[DeviceView]:
        """Devices whose id contains a text and comes behind `after`, by id."""
        found = (self.latest.find(text, after, limit), self.provisioned.find(text, after, limit))
        ids = (device_id for device_id, _ in groupby(heapq.merge(*([one.device_id for one in of] for of in found))))
        return [self._view(one) for one in islice(ids, limit)]

    def device(self, device_id: str) -> DeviceView | None:
        """A device; None where nothing is known of it."""
        if self.latest.get(device_id) is None and self.provisioned.get(device_id) is None:
            return None
        return self._view(device_id)

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

    def _view(self, device_id: str) -> DeviceView:
        state, told = self.latest.get(device_id), self.provisioned.get(device_id)
        view = DeviceView(device_id, has_reported=state is not None)
        try:
            if state is not None:
                view = device_of(self._state(state.value).record)
            provisioned: Provisioned | None = None
            if told is not None:
                provisioned = provisioned_of(self._provisioned(told.value).record)
        except (WireFormatError, RegistryUnavailableError) as error:
            return replace(view, problem=str(error))
        return replace(view, provisioned=provisioned)


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
    provisioned: LatestStates,
    alerts: Alerts,
    condition: Health,
    counters: Counters,
) -> Follower:
    """What reads states, provisioned devices and alerts; its own `condition` says how far it is, for the pages only."""

    def take_state(message: Message, value: bytes | None) -> None:
        latest.take(key_of(message), value)

    def take_provisioned(message: Message, value: bytes | None) -> None:
        provisioned.take(key_of(message), value)

    def take_alert(_message: Message, record: Mapping[str, Any] | None) -> None:
        if record is not None:
            alerts.take(alert_of(record))

    topics = {
        latest_topic.TOPIC: Followed(bytes, take_state),
        provisioned_topic.TOPIC: Followed(bytes, take_provisioned),
        alert_topic.TOPIC: avro(schemas, alert_topic.SCHEMA, take_alert),
    }
    return Follower(settings, "console-devices", topics, condition, counters)
