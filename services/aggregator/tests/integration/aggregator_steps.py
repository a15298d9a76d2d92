"""An aggregator that gets its readings in steps, each of which is complete at once.

Its time advances by the readings alone (`advance_when_idle` is off): the last reading of a step, half a minute after
the others, finishes their windows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from aggregator_world import READING, RULES, Process, Topics, reading_v2, wait_for

from isotherm.schemas import schema
from isotherm.servicekit import avro
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.simulators import checker

AGGREGATE = schema("TemperatureAggregate", 1)
SCHEMAS = (READING, reading_v2())
STEP_MS = 60_000
DEVICES = 20


def begin_ms() -> int:
    """An hour ago, at the begin of a window."""
    return (time.time_ns() // 1_000_000 - 3_600_000) // STEP_MS * STEP_MS


@dataclass
class Steps:
    """An aggregator that runs, and what it was given so far."""

    topics: Topics
    process: Process
    begin_ms: int = field(default_factory=begin_ms)
    sent: list[dict[str, Any]] = field(default_factory=list)
    complete_until_ms: int = 0

    def __post_init__(self) -> None:
        registry = SchemaRegistry(self.topics.registry)
        self.decode = avro.Decoder(registry)
        self.encode = {version: registry.encoder(self.topics.input, s) for version, s in enumerate(SCHEMAS, start=1)}
        self.encode_target = registry.encoder("isotherm.connectors", schema("ConnectorConfig", 1))
        # Learnt now: a test may take the registry away.
        for topic, written in ((self.topics.output, AGGREGATE), ("isotherm.status", schema("TaskStatus", 1))):
            registry.schema(registry.schema_id(f"{topic}-value", written))
        self.producer = clients.producer(self.topics.kafka, self.topics.name)

    def send(self, version: int) -> int:
        """Produce a set of readings, and the one that completes it; how many that is."""
        at_ms = self.begin_ms + STEP_MS * (1 + self.complete_until_ms // STEP_MS)
        self.complete_until_ms = at_ms - self.begin_ms + STEP_MS // 2
        times = [("device", at_ms)] * DEVICES + [("clock", at_ms + STEP_MS // 2)]
        for number, (name, time_ms) in enumerate(times):
            reading = {
                "device_id": f"{name}-{number}",
                "metric": "temperature",
                "value": float(number),
                "unit": "Cel",
                "event_time": time_ms,
                "ingest_time": time_ms,
                "sequence": len(self.sent),
                "attributes": {},
            }
            self.sent.append(reading)
            value = self.encode[version]({**reading, "quality": "good"} if version == 2 else reading)
            self.producer.produce(self.topics.input, key=str(reading["device_id"]), value=value, timestamp=time_ms)
        assert self.producer.flush(60) == 0
        return len(times)

    def want(self, state: str, restarts: int = 0) -> None:
        """Write a target state, as the console does."""
        record = {
            "name": self.topics.name,
            "connector_class": "aggregator",
            "config": {},
            "target_state": state,
            "restart_count": restarts,
            "mode": "standalone",
            "worker_group": "",
            "updated_at": time.time_ns() // 1_000_000,
        }
        self.producer.produce("isotherm.connectors", key=self.topics.name, value=self.encode_target(record))
        assert self.producer.flush(60) == 0

    def status(self) -> dict[str, Any]:
        """What it said last."""
        said = self.topics.statuses(self.decode, self.process.pid)
        return said[-1] if said else {"state": "", "lag": {}, "counts": {}}

    def wait_for_state(self, state: str) -> None:
        """Wait until the service reports this state."""
        wait_for(lambda: bool(self.status()["state"] == state), state, self.process)

    def found(self) -> dict[Any, Any]:
        rows = [dict(self.decode(message.value() or b"").record) for message in self.topics.read(self.topics.output)]
        found, problems = checker.latest((checker.window_key(row), row) for row in rows)
        assert problems == []
        return found

    def expected(self) -> dict[checker.WindowKey, Any]:
        """Every window but the one that the last reading is in."""
        return {
            key: window
            for key, window in checker.expected_windows(self.sent, RULES).items()
            if key[3] <= self.begin_ms + self.complete_until_ms
        }

    def wait_for_windows(self) -> None:
        """Wait for every complete window, and compare them all."""
        wait_for(lambda: self.found().keys() >= self.expected().keys(), "every window", self.process)
        assert checker.mismatches(self.expected(), self.found()) == []
