"""An ingest service's link to Kafka is cut for ten minutes while the aggregator and other devices go on.

`OUTAGE_SECONDS` (600 when it is not set) says for how long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aggregator_devices import Devices, recounted
from aggregator_link import Link
from aggregator_world import READING, Process, Topics, wait_for
from coap_world import READINGS, World, opened, stop

from isotherm.servicekit import avro
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.simulators import checker
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.long]

OUTAGE_S = float(os.environ.get("OUTAGE_SECONDS", "600"))
DELAY_MS = 5_000
RULES = checker.Rules(window_ms=5_000, allowed_lateness_ms=5_000, max_skew_ms=5_000, publish_delay_ms=DELAY_MS)
SETTINGS = {
    "window_ms": RULES.window_ms,
    "allowed_lateness_ms": RULES.allowed_lateness_ms,
    "max_skew_ms": RULES.max_skew_ms,
    "max_publish_delay_ms": DELAY_MS,
    "read_margin_ms": 500,
    "group_attributes": "",
}


@pytest.fixture
def topics(kafka: Kafka, registry: Registry) -> Topics:
    declared = Topics(kafka.bootstrap_servers, registry.url, "aggregator-link")
    # Where the ingest service writes to.
    declared.input = "thermostat.data"
    declared.log_append_time = True
    declared.declare([READING])
    return declared


@pytest.fixture
def world(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[World]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


def test_an_outage_of_ten_minutes_loses_no_reading(
    topics: Topics, world: World, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    decoder, devices = avro.Decoder(SchemaRegistry(topics.registry)), Devices(topics)
    link = Link(topics.bootstrap_servers)
    world.cleanup.callback(link.close)
    world.way_to_kafka = link.bootstrap_servers

    def windows() -> dict[Any, Any]:
        rows = [dict(decoder(message.value() or b"").record) for message in topics.read(topics.output)]
        found, problems = checker.latest((checker.window_key(row), row) for row in rows)
        assert problems == []
        return found

    def from_ingest() -> int:
        return sum("coap.uri" in dict(message.headers() or []) for message in topics.read(topics.input))

    with Process(topics, tmp_path / "checkpoint", free_port(), **SETTINGS) as process:
        simulator = world.simulator("--rate", "2", "--max-age", "60")
        ingest = world.ingest(READINGS.format("sensors"), "queue_limit=5000")
        wait_for(lambda: from_ingest() > 5, "readings from the ingest service", process)
        link.cut()
        cut_s, before = time.monotonic(), from_ingest()

        def goes_on(condition: Callable[[], bool]) -> bool:
            devices.go_on()
            time.sleep(0.5)  # the pace of devices; the outage lasts as long as it lasts
            return condition()

        while time.monotonic() - cut_s < OUTAGE_S:
            assert goes_on(process.is_running)
        assert from_ingest() == before
        link.mend()
        wait_for(lambda: goes_on(lambda: from_ingest() > before + OUTAGE_S), "what was held back", process)
        stop(simulator)
        assert stop(ingest) == 0
        devices.go_on()

        stored = topics.read(topics.input)
        expected = recounted(stored, decoder, RULES)
        wait_for(lambda: windows().keys() >= expected.keys(), "every window", process)
        rejected = len(stored) - sum(int(window["count"]) for window in expected.values())
        wait_for(lambda: len(topics.read(topics.late) + topics.read(topics.dead)) >= rejected, "the rejects", process)
        dropped = process.metrics()["isotherm_aggregator_rows_dropped_by_watermark_total"]
        assert process.terminate() == 0

    late = [message for message in topics.read(topics.late) if "coap.uri" in dict(message.headers() or [])]
    found = windows()
    assert checker.mismatches(expected, found) == []
    counted = sum(row["count"] for row in found.values())
    assert counted + len(topics.read(topics.late)) + len(topics.read(topics.dead)) == len(stored)
    assert len(late) > OUTAGE_S
    assert dropped == 0
