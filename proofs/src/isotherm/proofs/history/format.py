"""The format of a history: JSON Lines, one event a line, settings first. `docs/reference/histories.md` describes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

VERSION = 1
Event = Mapping[str, Any]
Holds = Literal["readings", "late", "windows", "groups", "alerts", "records"]

KEYED_EVENTS = frozenset({"published", "acknowledged", "refused", "record", "row"})
"""Events about one device (or other key). Only these are numerous, so a pass may leave out those of other keys."""
RUN_EVENTS = frozenset(
    {
        "history",
        "topic-end",
        "store-end",
        "clients-end",
        "device",
        "offset",
        "dead-letter",
        "counter",
        "restarted",
        "replayed",
        "drained",
        "recomputed",
        "watermark",
        "connection-lost",
        "fault",
    }
)
"""Events about the whole run; every one is kept in memory."""

_EVENTS = KEYED_EVENTS | RUN_EVENTS
MQTT, COAP = "mqtt-proxy", "coap-ingest"
"""The services by which a reading comes (`via`)."""


class HistoryError(ValueError):
    """A line is not an event of this format; the text names the line."""


@dataclass(frozen=True)
class TopicSettings:
    """What a topic holds, and its number of partitions."""

    holds: Holds
    partitions: int


@dataclass(frozen=True)
class StoreSettings:
    """A table, index or structure of a store."""

    topic: str
    """The topic whose records it holds."""
    keeps: Literal["identities", "records"]
    """One row an identity, or one item a record (append-only)."""
    group: str
    """The consumer group of the task that writes it."""


@dataclass(frozen=True)
class WindowSettings:
    """The settings of the aggregation; times in ms."""

    input: str
    output: str
    late: str
    dead_letters: str
    window_ms: int
    allowed_lateness_ms: int
    max_skew_ms: int
    max_publish_delay_ms: int
    slide_ms: int | None = None


@dataclass(frozen=True)
class GroupSettings:
    """The settings of the groups of windows."""

    output: str
    attributes: tuple[str, ...]
    unknown_group: str = "unknown"
    """The group of devices without the attribute; empty: they are left out."""


@dataclass(frozen=True)
class AlertRule:
    """An alert rule of kind `above`, `below` or `rate`."""

    name: str
    kind: Literal["above", "below", "rate"]
    metric: str
    threshold: float
    hysteresis: float = 0.0
    for_ms: int = 0
    window_ms: int = 600_000


@dataclass(frozen=True)
class AlertSettings:
    """The settings of the alerts; times in ms."""

    input: str
    output: str
    group: str
    reorder_ms: int
    max_skew_ms: int
    rules: tuple[AlertRule, ...] = ()
    overridden_devices: frozenset[str] = frozenset()
    """Devices with thresholds of their own, whose incidents are not recomputed."""


@dataclass(frozen=True)
class Settings:
    """The settings of a run that decide what is right."""

    topics: Mapping[str, TopicSettings] = field(default_factory=dict)
    stores: Mapping[str, StoreSettings] = field(default_factory=dict)
    windows: WindowSettings | None = None
    groups: GroupSettings | None = None
    alerts: AlertSettings | None = None

    def holding(self, holds: Holds) -> list[str]:
        """Names of the topics that hold something."""
        return [name for name, topic in self.topics.items() if topic.holds == holds]


def settings_of(event: Event) -> Settings:
    """Return the settings of the first line. Raises HistoryError."""
    if event.get("event") != "history" or event.get("version") != VERSION:
        raise HistoryError(f"line 1: not the settings of a history of version {VERSION}")
    try:
        windows, groups, alerts = event.get("windows"), event.get("groups"), event.get("alerts")
        if groups is not None:
            groups = GroupSettings(**{**groups, "attributes": tuple(groups["attributes"])})
        if alerts is not None:
            rules = tuple(AlertRule(**rule) for rule in alerts.get("rules", ()))
            devices = frozenset(alerts.get("overridden_devices", ()))
            alerts = AlertSettings(**{**alerts, "rules": rules, "overridden_devices": devices})
        return Settings(
            {name: TopicSettings(**topic) for name, topic in event["topics"].items()},
            {name: StoreSettings(**store) for name, store in event["stores"].items()},
            None if windows is None else WindowSettings(**windows),
            groups,
            alerts,
        )
    except (TypeError, KeyError) as error:
        raise HistoryError(f"line 1: {error}") from None


def events(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number (from 1) and event of every line. Raises HistoryError."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise HistoryError(f"line {number}: {error}") from None
            if not isinstance(event, dict) or event.get("event") not in _EVENTS:
                raise HistoryError(f"line {number}: not an event of version {VERSION}")
            yield number, event
