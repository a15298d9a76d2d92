"""Topics as the suite writes them, in memory, and readings of every fate in them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from aiokafka.partitioner import murmur2
from console_in_memory import NOW, MemoryReader, World

import isotherm.schemas
from isotherm.console.records.record import Record

READINGS, LATE, WINDOWS, ALERTS = "thermostat.data", "thermostat.late", "temperatures.aggregated", "alerts"
DEAD = "aggregator.dead-letters"
PARTITIONS = 4
WINDOW_MS = 60_000
BEGIN = NOW - 3_600_000 - NOW % WINDOW_MS
FATES = ("windowed", "late", "future", "copied", "alerting", "revised", "lost", "refused", "filtered")


@dataclass
class Told:
    """What was done with one reading."""

    fate: str
    value: dict[str, Any]
    place: str
    window: str = ""


class Pipeline:
    """Topics as the suite writes them, one record after another."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.records: dict[str, list[Record]] = {topic: [] for topic in (READINGS, LATE, WINDOWS, ALERTS, DEAD)}
        self.ends = Counter[tuple[str, int]]()
        self.clock_ms = BEGIN

    def append(
        self, topic: str, record: str, key: str, value: dict[str, Any], *headers: tuple[str, bytes], at_ms: int
    ) -> Record:
        encoded = self.world.schemas.encoded(topic, record, 1, value)
        return self.append_raw(topic, key.encode(), encoded, *headers, at_ms=at_ms)

    def append_raw(self, topic: str, key: bytes, value: bytes, *headers: tuple[str, bytes], at_ms: int) -> Record:
        partition = (murmur2(key) & 0x7FFFFFFF) % PARTITIONS
        offset = self.ends[topic, partition]
        self.ends[topic, partition] += 1
        made = Record(topic, partition, offset, at_ms, key, value, list(headers))
        self.records[topic].append(made)
        return made

    def finish(self) -> None:
        for topic, records in self.records.items():
            self.world.topics.topics[topic] = MemoryReader(records, dict.fromkeys(range(PARTITIONS), 0))

    def reading(
        self, device: str, sequence: int, event_ms: int, at_ms: int, **more: Any
    ) -> tuple[dict[str, Any], Record]:
        value = {
            **isotherm.schemas.examples(READINGS)[0].value,
            "device_id": device,
            "metric": "temperature",
            "value": 20.0 + sequence % 10,
            "event_time": event_ms,
            "ingest_time": at_ms - 3,
            "sequence": sequence,
            **more,
        }
        headers = (("mqtt.client_id", device.encode()), ("mqtt.topic", b"devices/x"), ("mqtt.qos", b"1"))
        return value, self.append(READINGS, "SensorReading", device, value, *headers, at_ms=at_ms)

    def window(self, value: dict[str, Any], at_ms: int, revision: int, *headers: tuple[str, bytes]) -> Record:
        start = value["event_time"] // WINDOW_MS * WINDOW_MS
        row = {
            **isotherm.schemas.examples(WINDOWS)[0].value,
            "device_id": value["device_id"],
            "metric": value["metric"],
            "window_start": start,
            "window_end": start + WINDOW_MS,
            "count": revision % 7 + 1,
            "revision": revision,
        }
        escaped = value["device_id"].replace("%", "%25").replace("|", "%7C")
        key = f"{escaped}|{value['metric']}|{start}|{start + WINDOW_MS}"
        return self.append(WINDOWS, "TemperatureAggregate", key, row, *headers, at_ms=at_ms)


def place_of(record: Record) -> str:
    return f"{record.topic}/{record.partition}/{record.offset}"


def live(pipeline: Pipeline, device: str, sequence: int, fate: str) -> Told:
    """Let one reading live through the suite; each has a minute of its own, so that its window is its own too."""
    pipeline.clock_ms += WINDOW_MS
    at_ms = pipeline.clock_ms
    event_ms = at_ms - 40
    if fate == "late":
        event_ms = at_ms - 200_000 - WINDOW_MS * 10_000
    elif fate == "future":
        event_ms = at_ms + 7_200_000
    value, record = pipeline.reading(
        device, sequence, event_ms, at_ms, metric="lost" if fate == "lost" else "temperature"
    )
    told = Told(fate, value, place_of(record))
    origin = [("topic", READINGS), ("partition", str(record.partition)), ("offset", str(record.offset))]
    said = [(f"__connect.errors.{name}", text.encode()) for name, text in origin]
    name = ("__connect.errors.connector.name", b"aggregator")
    if fate == "future":
        pipeline.append_raw(DEAD, record.key or b"", record.value or b"", *said, name, at_ms=at_ms + 900)
    elif fate == "late":
        appended = ("aggregator.appended_ms", str(at_ms).encode())
        pipeline.append(LATE, "SensorReading", device, value, appended, at_ms=at_ms + 900)
        row = pipeline.window(value, at_ms + 20_000, at_ms + 20_000, ("aggregator.late_readings", b"1"))
        told.window = place_of(row)
    elif fate != "lost":
        end_ms = (event_ms // WINDOW_MS + 1) * WINDOW_MS
        told.window = place_of(pipeline.window(value, end_ms + 5_000, end_ms + 5_000))
        if fate == "revised":
            late = ("aggregator.late_readings", b"1")
            told.window += " " + place_of(pipeline.window(value, end_ms + 30_000, end_ms + 30_000, late))
    if fate == "copied":
        copy = pipeline.append_raw(READINGS, record.key or b"", record.value or b"", at_ms=at_ms + 2_000)
        told.place += " " + place_of(copy)
    if fate == "alerting":
        alert = {
            **isotherm.schemas.examples(ALERTS)[0].value,
            "alert_id": f"{device}/above/temperature/{event_ms}",
            "device_id": device,
            "metric": "temperature",
            "opened_at": event_ms,
            "updated_at": event_ms,
            "closed_at": None,
            "state": "opened",
        }
        for _ in range(2):
            pipeline.append(ALERTS, "Alert", device, alert, at_ms=at_ms + 100)
    if fate == "refused":
        name = ("__connect.errors.connector.name", b"a")
        pipeline.append_raw(DEAD, record.key or b"", record.value or b"", *said, name, at_ms=at_ms + 400)
    return told
