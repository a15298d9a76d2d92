"""The device browser: newest values and alerts from memory, windows read from their topic on demand."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

from confluent_kafka import Consumer, Message

from isotherm.console.devices import alerts as alert_topic
from isotherm.console.devices import device_states as latest_topic
from isotherm.console.devices import provisioned as provisioned_topic
from isotherm.console.devices import rules as rule_topic
from isotherm.console.devices import silences as silence_topic
from isotherm.console.devices import windows as window_topic
from isotherm.console.devices.alerts import Alerts, alert_of
from isotherm.console.devices.device_states import DeviceRecordCache, DeviceView, device_of
from isotherm.console.devices.provisioned import Provisioned, provisioned_of
from isotherm.console.devices.rules import Rules, rule_of
from isotherm.console.devices.silences import Silences, silence_of
from isotherm.console.devices.windows import (
    Window,
    by_metric,
    key_prefix,
    window_of,
)
from isotherm.console.records.decoding import decoded
from isotherm.console.records.paging import Search, SearchBudget
from isotherm.console.records.record import Record
from isotherm.console.records.topic_follower import FollowerMetrics, TopicFollower, TopicHandler, avro_handler, key_of
from isotherm.console.records.topics import Topics
from isotherm.console.settings import SearchSettings
from isotherm.servicekit.avro import (
    Decoder,
    RegistryUnavailableError,
    SchemaRegistry,
    WireFormatError,
)
from isotherm.servicekit.health import Health

_MAX_WINDOWS = 2_000


@dataclass(frozen=True)
class WindowsView:
    """The windows of a device that were published in a time range."""

    metrics: Mapping[str, list[Window]]
    from_ms: int
    to_ms: int
    """The range of publishing times that was searched: `from_ms` to `to_ms`, epoch milliseconds."""
    is_cut: bool
    """Whether the search ended before it had read the whole range."""
    records_read: int
    unreadable: int
    """Records of the device that could not be decoded."""


class DeviceBrowser:
    """Finds devices, their alerts and their windows. `health` tells whether the follower has caught up."""

    def __init__(
        self,
        latest: DeviceRecordCache,
        provisioned: DeviceRecordCache,
        alerts: Alerts,
        topics: Topics,
        schemas: SchemaRegistry,
        health: Health,
        now_ms: Callable[[], int],
        search: SearchSettings,
    ) -> None:
        self.latest, self.provisioned, self.alerts = latest, provisioned, alerts
        self._topics, self._health, self._now_ms, self._search = topics, health, now_ms, search
        self._decode_state = Decoder(schemas, latest_topic.SCHEMA)
        self._decode_provisioned = Decoder(schemas, provisioned_topic.SCHEMA)
        self._decode_window = Decoder(schemas, window_topic.SCHEMA)

    @property
    def problem(self) -> str:
        """Why some devices or alerts may be missing; empty when the follower has caught up."""
        return "; ".join(self._health.problems().values())

    @property
    def known(self) -> int:
        """How many devices in memory have reported or are provisioned."""
        return len(self.latest) + self.silent

    @property
    def silent(self) -> int:
        """How many provisioned devices in memory have never reported."""
        return self.provisioned.count_missing_in(self.latest)

    @property
    def is_full(self) -> bool:
        """Whether a device was dropped from memory."""
        return self.latest.is_full or self.provisioned.is_full

    def find(self, text: str, after: str, limit: int) -> list[DeviceView]:
        """Return `limit` devices whose id contains `text` and sorts after `after`, sorted by id."""
        found = (self.latest.find(text, after, limit), self.provisioned.find(text, after, limit))
        ids = (device_id for device_id, _ in groupby(heapq.merge(*([one.device_id for one in of] for of in found))))
        return [self._view(one) for one in islice(ids, limit)]

    def device(self, device_id: str) -> DeviceView | None:
        """Return a device; None when it is unknown."""
        if self.latest.get(device_id) is None and self.provisioned.get(device_id) is None:
            return None
        return self._view(device_id)

    def windows(self, device_id: str, span_ms: int, until_ms: int | None = None) -> WindowsView:
        """Return the windows of a device that were published in the `span_ms` before `until_ms`.

        `until_ms` is in epoch milliseconds; None means now. Raises UnavailableError, and NotFoundError when the topic
        of windows does not exist.
        """
        to_ms = self._now_ms() if until_ms is None else until_ms
        from_ms = max(0, to_ms - span_ms)
        windows = _WindowReader(self._decode_window)
        with self._topics.reader(window_topic.TOPIC) as reader:
            ends = {partition: of.high for partition, of in reader.bounds.items()}
            search = Search(
                reader,
                windows.keep,
                SearchBudget(time.monotonic, max_ms=self._search.timeout_ms, max_bytes=self._search.max_bytes),
                limit=_MAX_WINDOWS,
                key_prefix=key_prefix(device_id),
            )
            page = search.older(
                ends if until_ms is None else reader.offsets_at(to_ms), floor=reader.offsets_at(from_ms)
            )
        is_whole = page.reached_ms is None
        return WindowsView(
            by_metric(page.items),
            from_ms if page.reached_ms is None else max(from_ms, page.reached_ms),
            to_ms,
            is_cut=not is_whole,
            records_read=page.records_read,
            unreadable=windows.unreadable,
        )

    def _view(self, device_id: str) -> DeviceView:
        state, metadata = self.latest.get(device_id), self.provisioned.get(device_id)
        view = DeviceView(device_id, has_reported=state is not None)
        try:
            if state is not None:
                view = device_of(self._decode_state(state.value).record)
            provisioned: Provisioned | None = None
            if metadata is not None:
                provisioned = provisioned_of(self._decode_provisioned(metadata.value).record)
        except (WireFormatError, RegistryUnavailableError) as error:
            return replace(view, problem=str(error))
        return replace(view, provisioned=provisioned)


class _WindowReader:
    """Decodes the windows of one device, and counts the records that are not windows."""

    def __init__(self, decode: Decoder) -> None:
        self._decoded = decoded(decode, window_of)
        self.unreadable = 0

    def keep(self, record: Record) -> Window | None:
        window = self._decoded(record)
        self.unreadable += window is None and record.value is not None
        return window


def device_follower(
    make_consumer: Callable[[], Consumer],
    schemas: SchemaRegistry,
    latest: DeviceRecordCache,
    provisioned: DeviceRecordCache,
    alerts: Alerts,
    silences: Silences,
    rules: Rules,
    health: Health,
    counters: FollowerMetrics,
) -> TopicFollower:
    """Return the follower of device states, provisioned devices, alerts, silences and rules.

    It has its own `health`, which only pages show: connectors can be controlled while devices are missing.
    """

    def update_state(message: Message, value: bytes | None) -> None:
        latest.update(key_of(message), value)

    def update_provisioned(message: Message, value: bytes | None) -> None:
        provisioned.update(key_of(message), value)

    def update_alert(_message: Message, record: Mapping[str, Any] | None) -> None:
        if record is not None:
            alerts.update(alert_of(record))

    def update_silence(message: Message, record: Mapping[str, Any] | None) -> None:
        silences.update(key_of(message), None if record is None else silence_of(record))

    def update_rule(message: Message, record: Mapping[str, Any] | None) -> None:
        rules.update(key_of(message), None if record is None else rule_of(record))

    topics = {
        latest_topic.TOPIC: TopicHandler(bytes, update_state),
        provisioned_topic.TOPIC: TopicHandler(bytes, update_provisioned),
        alert_topic.TOPIC: avro_handler(schemas, alert_topic.SCHEMA, update_alert),
        silence_topic.TOPIC: avro_handler(schemas, silence_topic.SCHEMA, update_silence),
        rule_topic.TOPIC: avro_handler(schemas, rule_topic.SCHEMA, update_rule),
    }
    return TopicFollower("console-devices", make_consumer, topics, health, counters)
