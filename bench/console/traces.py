"""How long the trace of a reading takes in a topic with many of them.

    python bench/console/traces.py [--readings 100000000] [--rate 115741] [--devices 30000] [--traces 100]

Starts Kafka and the registry of the stack on free ports, writes READINGS into `thermostat.data` at RATE a second with
the generator of the aggregator's benches, draws TRACES of them by chance and asks the console, a process of its own,
for the trace of each: by its time, by its sequence and by its record. Every answer is compared with the record. Prints
median, p95 and the largest of each in ms. Goal: each below 2 s.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from confluent_kafka import TopicPartition

import isotherm.schemas
import pages
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

GOAL_MS = 2_000.0
TOPIC = "thermostat.data"
GENERATOR = Path(__file__).parents[1] / "aggregator" / "generator.py"
TIMEOUT_S = 60.0
WAYS = ("time", "sequence", "record")


class Drawn(NamedTuple):
    """A stored reading."""

    device_id: str
    event_time_ms: int
    sequence: int
    record: str

    def asked(self, way: str) -> Mapping[str, Any]:
        """Return the parameters of a question."""
        ways: dict[str, Mapping[str, Any]] = {
            "time": {"at": f"@{self.event_time_ms}"},
            "sequence": {"sequence": self.sequence},
            "record": {"record": self.record},
        }
        return ways[way]


def draw(settings: KafkaSettings, registry: RegistrySettings, count: int, chance: random.Random) -> list[Drawn]:
    """Return readings from anywhere in the topic."""
    consumer = clients.consumer(settings, "bench", "bench-draw")
    decode = Decoder(SchemaRegistry(registry))
    partitions = list(consumer.list_topics(TOPIC, timeout=TIMEOUT_S).topics[TOPIC].partitions)
    drawn: list[Drawn] = []
    while len(drawn) < count:
        partition = chance.choice(partitions)
        low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=TIMEOUT_S)
        consumer.assign([TopicPartition(TOPIC, partition, chance.randrange(low, high))])
        (message,) = consumer.consume(1, TIMEOUT_S)
        found = decode(message.value() or b"").record
        event_time_ms = round(found["event_time"].timestamp() * 1_000)
        record = f"{TOPIC}/{partition}/{message.offset()}"
        if not found["device_id"].startswith("mark-"):
            drawn.append(Drawn(found["device_id"], event_time_ms, found["sequence"], record))
    consumer.close()
    return drawn


def trace(client: httpx.Client, of: Drawn, way: str) -> float:
    """Ask for a trace; return how long it took in ms. Ends the bench when it is not that of the reading."""
    began = time.perf_counter()
    answer = client.get(f"/isotherm/devices/{of.device_id}/trace", params=dict(of.asked(way)))
    took_ms = (time.perf_counter() - began) * 1_000
    if answer.status_code != httpx.codes.OK:
        raise SystemExit(f"{of} by {way}: {answer.status_code} {answer.text[:300]}")
    stored = next(one["record"] for one in answer.json()["steps"] if one["state"] == "stored")
    if "{topic}/{partition}/{offset}".format(**stored) != of.record:
        raise SystemExit(f"{of} by {way}: {answer.text[:600]}")
    return took_ms


def fill(settings: KafkaSettings, registry: RegistrySettings, given: argparse.Namespace) -> Mapping[str, float]:
    """Write the readings; return the generator's figures."""
    schema_id = SchemaRegistry(registry).schema_id(f"{TOPIC}-value", isotherm.schemas.schema("SensorReading", 1))
    command = [sys.executable, str(GENERATOR), settings.bootstrap_servers, TOPIC, str(schema_id)]
    options = {"--devices": given.devices, "--readings": given.readings, "--rate": given.rate}
    command += [str(word) for option in options.items() for word in option]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: Mapping[str, float] = json.loads(done.stdout)
    return figures


def main() -> int:
    """Measure and print the response times; exit code 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--readings", type=int, default=100_000_000)
    parser.add_argument("--rate", type=int, default=115_741)
    parser.add_argument("--devices", type=int, default=30_000)
    parser.add_argument("--traces", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    is_met = True
    packages = ("fastapi", "uvicorn", "confluent-kafka")
    with pages.servers("isotherm-bench-traces-", *packages) as (settings, registry, folder):
        figures = fill(settings, registry, given)
        print(f"{given.readings:,} readings of {given.devices:,} devices in {TOPIC}: {figures}")
        drawn = draw(settings, registry, given.traces, random.Random(given.seed))
        print(f"{'trace by':12} {'median':>8} {'p95':>8} {'max':>8}  ms")
        with pages.console(settings, registry, folder) as client:
            for way in WAYS:
                times = sorted(trace(client, one, way) for one in drawn)
                p95 = times[int(len(times) * 0.95)]
                is_met = is_met and times[-1] < GOAL_MS
                print(f"{way:12} {statistics.median(times):8.1f} {p95:8.1f} {times[-1]:8.1f}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
