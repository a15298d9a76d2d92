"""The headline load, ten billion readings a day, offered for minutes; every window recounted afterwards.

`SOAK_SECONDS` (600 when it is not set) says for how long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aggregator_recount import recount
from confluent_kafka import TopicPartition

from isotherm_cli.apply import apply
from isotherm_schemas import schema
from servicekit import kafka as clients
from servicekit.avro import Decoder, SchemaRegistry
from servicekit.settings import KafkaSettings, RegistrySettings
from simulators import checker
from stack.artifacts import Artifacts
from stack.local import Stack
from stack.ports import Ports

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(0)]

SOAK_S = int(os.environ.get("SOAK_SECONDS", "600"))
RATE = 115_741
DEVICES = 30_000
PARTITIONS = 4
LAG_LIMIT = 10 * RATE
WARM_UP_S = 60.0
"""Spark's JVM compiles its code meanwhile; the lag that it starts with is worked off."""
RULES = checker.Rules(window_ms=60_000, allowed_lateness_ms=10_000, max_skew_ms=5_000)
DEADLINE_S = 300.0
GENERATOR = Path(__file__).parents[4] / "bench" / "aggregator" / "generator.py"
INPUT, OUTPUT = "thermostat.data", "temperatures.aggregated"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Kafka and the registry with heaps for load, not for a quick start."""
    started = Stack(tmp_path / "stack", Ports.free(), quick_start=False)
    started.up(["kafka", "registry"])
    yield started
    started.down()
    started.wipe()


class Aggregator:
    """`aggregator run` under the rules of this test."""

    def __init__(self, folder: Path, kafka: KafkaSettings, registry: RegistrySettings, port: int) -> None:
        self._port = port
        self.log = folder / "aggregator.log"
        values = {
            "kafka.bootstrap_servers": kafka.bootstrap_servers,
            "registry.url": registry.url,
            "window_ms": RULES.window_ms,
            "allowed_lateness_ms": RULES.allowed_lateness_ms,
            "max_skew_ms": RULES.max_skew_ms,
            "read_slack_ms": 10_000,
            "group_attributes": "",
            "checkpoint_dir": folder / "checkpoint",
            "jars_dir": Artifacts().folder("spark"),
            "spark.driver_memory": "3g",
            "http.port": port,
        }
        command = [sys.executable, "-m", "aggregator", "run"]
        command += [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def metrics(self) -> dict[str, float]:
        """Samples of `/metrics`, by name and labels; empty before it answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        return {n: float(v) for n, _, v in (line.rpartition(" ") for line in lines if not line.startswith("#"))}

    def lag(self) -> float:
        """Records that the query which is behind has not read yet."""
        found = self.metrics()
        name = 'isotherm_aggregator_lag_records{{partition="{}",query="{}",topic="thermostat.data"}}'
        queries = ("windows", "rejects")
        return max(sum(found.get(name.format(n, query), 0.0) for n in range(PARTITIONS)) for query in queries)


def read(kafka: KafkaSettings, registry: RegistrySettings) -> list[dict[str, Any]]:
    """Every aggregate that is published."""
    decoder = Decoder(SchemaRegistry(registry))
    consumer = clients.consumer(kafka, "soak", "soak", enable_partition_eof=True)
    numbers = list(consumer.list_topics(OUTPUT, timeout=30).topics[OUTPUT].partitions)
    consumer.assign([TopicPartition(OUTPUT, number, 0) for number in numbers])
    rows: list[dict[str, Any]] = []
    ended = 0
    while ended < len(numbers):
        for message in consumer.consume(10_000, 30.0):
            if message.error() is None:
                rows.append(dict(decoder(message.value() or b"").record))
            else:
                ended += 1
    consumer.close()
    return rows


def published(kafka: KafkaSettings) -> int:
    """How many aggregates there are, transaction markers aside (nobody writes transactions here)."""
    consumer = clients.consumer(kafka, "soak", "soak")
    numbers = list(consumer.list_topics(OUTPUT, timeout=30).topics[OUTPUT].partitions)
    ends = [consumer.get_watermark_offsets(TopicPartition(OUTPUT, number), timeout=30) for number in numbers]
    consumer.close()
    return sum(high for _, high in ends)


def until(condition: Callable[[], bool], what: str, aggregator: Aggregator) -> None:
    """Ask another process again and again."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        tail = aggregator.log.read_text(encoding="utf-8")[-3_000:]
        assert aggregator.process.poll() is None, f"the aggregator ended:\n{tail}"
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:.0f} s for {what}:\n{tail}"
        time.sleep(1.0)  # between two questions


def test_the_headline_load_is_kept_up_with_and_every_window_is_right(
    stack: Stack, tmp_path: Path, free_port: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
    registry = RegistrySettings(url=stack.registry.url)
    apply(kafka, registry)
    schema_id = SchemaRegistry(registry).schema_id(f"{INPUT}-value", schema("SensorReading", 1))
    aggregator = Aggregator(tmp_path, kafka, registry, free_port())
    command = [sys.executable, str(GENERATOR), kafka.bootstrap_servers, INPUT, str(schema_id)]
    command += ["--devices", str(DEVICES), "--readings", str(SOAK_S * RATE), "--rate", str(RATE)]
    lags: list[float] = []
    try:
        until(lambda: bool(aggregator.metrics()), "the aggregator's metrics", aggregator)
        begin = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as generator:
            while generator.poll() is None:
                assert aggregator.process.poll() is None, aggregator.log.read_text(encoding="utf-8")[-3_000:]
                if time.monotonic() - begin > WARM_UP_S:
                    lags.append(aggregator.lag())
                time.sleep(1.0)  # between two samples
            assert generator.stdout is not None
            offered = json.loads(generator.stdout.read())
        records, expected = recount(kafka, INPUT, PARTITIONS, schema("SensorReading", 1), RULES)
        until(lambda: published(kafka) >= len(expected), "every window", aggregator)
        metrics = aggregator.metrics()
    finally:
        aggregator.process.terminate()
        aggregator.process.wait(60)

    found, problems = checker.latest((checker.window_key(row), row) for row in read(kafka, registry))
    with capsys.disabled():
        print(  # noqa: T201 - the figures are what a soak is run for
            f"\noffered {offered['readings']:,} readings in {offered['seconds']:.0f} s "
            f"({offered['readings'] / offered['seconds']:,.0f}/s), {records:,} in the topic, "
            f"{len(expected):,} windows; "
            f"lag at most {max(lags):,.0f} ({max(lags) / RATE:.1f} s of load)"
        )
    assert records == offered["readings"] == SOAK_S * RATE
    assert problems == []
    assert checker.mismatches(expected, found) == []
    assert metrics["isotherm_aggregator_rows_dropped_by_watermark_total"] == 0
    assert max(lags) <= LAG_LIMIT
