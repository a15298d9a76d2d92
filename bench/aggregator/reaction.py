"""Measures how soon the aggregates of a window are in Kafka after the window became final, under a steady load.

    python bench/aggregator/reaction.py [--rate N] [--devices N] [--seconds N] [--window-ms MS] [--set KEY=VALUE ...]

Readings carry the time of their production. A window becomes final `allowed_lateness_ms` + `max_publish_delay_ms` after
its end, because a reading for it may still come before that. The measured time lasts from then until a consumer has the
aggregate. Windows that end within the first two minutes warm the JVM up and are not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from confluent_kafka import TopicPartition

import generator
from aggregator_process import AggregatorProcess
from isotherm.cli.apply import apply
from isotherm.schemas import schema
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.measurement import environment, load_average
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack

MOST_MS = 5_000
"""Limit of the 99th percentile."""
WARM_UP_MS = 120_000
LATENESS_MS, SKEW_MS, PUBLISH_DELAY_MS = 10_000, 5_000, 10_000
INPUT, OUTPUT = "thermostat.data", "temperatures.aggregated"
_POLL_S = 0.2
_AT_ONCE = 10_000


def reactions(
    kafka_settings: KafkaSettings, load: subprocess.Popen[str], from_ms: int, until_ms: int
) -> dict[int, list[int]]:
    """Return the reaction times in ms of the aggregates that arrive during the load, by the window's end (epoch ms).

    Counts windows that end between `from_ms` and `until_ms`. Raises RuntimeError when the load generator fails.
    """
    consumer = clients.consumer(kafka_settings, "bench", "bench-reaction", fetch_wait_max_ms=10)
    partitions = consumer.list_topics(OUTPUT, timeout=30).topics[OUTPUT].partitions
    consumer.assign([TopicPartition(OUTPUT, number, 0) for number in partitions])
    found: dict[int, list[int]] = defaultdict(list)
    try:
        while load.poll() is None:
            messages = consumer.consume(_AT_ONCE, _POLL_S)
            now_ms = time.time_ns() // 1_000_000
            for message in messages:
                end_ms = int((message.key() or b"").rpartition(b"|")[2])
                if from_ms <= end_ms < until_ms:
                    found[end_ms].append(now_ms - (end_ms + LATENESS_MS + PUBLISH_DELAY_MS))
    finally:
        consumer.close()
    if load.returncode:
        raise RuntimeError(f"the generator ended with code {load.returncode}")
    return found


def measure(stack: Stack, folder: Path, arguments: argparse.Namespace) -> dict[int, list[int]]:
    """Run generator and aggregator once; return the reaction times by the window's end."""
    kafka_settings = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
    registry = RegistrySettings(url=stack.registry.url)
    apply(kafka_settings, registry)
    schema_id = SchemaRegistry(registry).schema_id(f"{INPUT}-value", schema("SensorReading", 1))
    settings = {
        "kafka.bootstrap_servers": kafka_settings.bootstrap_servers,
        "registry.url": registry.url,
        "window_ms": arguments.window_ms,
        "allowed_lateness_ms": LATENESS_MS,
        "max_skew_ms": SKEW_MS,
        "max_publish_delay_ms": PUBLISH_DELAY_MS,
        "read_margin_ms": 0,
        "group_attributes": "",
        "spark.driver_memory": "2g",
        **dict(setting.split("=", 1) for setting in arguments.set),
    }
    command = [sys.executable, generator.__file__, kafka_settings.bootstrap_servers, INPUT, str(schema_id)]
    command += ["--devices", str(arguments.devices), "--rate", str(arguments.rate)]
    command += ["--readings", str(arguments.rate * arguments.seconds)]
    with AggregatorProcess(folder, settings) as aggregator:
        begin_ms = time.time_ns() // 1_000_000
        # The last windows that can become complete during the load.
        until_ms = begin_ms + arguments.seconds * 1000 - LATENESS_MS - PUBLISH_DELAY_MS - 2 * MOST_MS
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
            found = reactions(kafka_settings, load, begin_ms + WARM_UP_MS, until_ms)
            assert load.stdout is not None
            offered = json.load(load.stdout)
        aggregator.sample()
    print(f"offered {offered['readings']:,} readings at {offered['readings'] / offered['seconds']:,.0f}/s")
    return found


def report(found: dict[int, list[int]]) -> None:
    """Print the percentiles of every window, and of all windows together."""
    for end_ms, reaction in sorted(found.items()):
        print(f"  window to {end_ms}: {len(reaction):6,} aggregates, {_percentiles(reaction)}")
    everything = [reaction for reactions_of_window in found.values() for reaction in reactions_of_window]
    if not everything:
        raise RuntimeError("no window became final in this time: use more --seconds, or a shorter --window-ms")
    print(f"  all: {len(everything):,} aggregates, {_percentiles(everything)}")
    p99 = statistics.quantiles(everything, n=100)[98]
    print(f"  {'reached' if p99 <= MOST_MS else 'MISSED'}: p99 {p99:,.0f} ms of at most {MOST_MS:,}")


def _percentiles(reaction: list[int]) -> str:
    cuts = statistics.quantiles(reaction, n=100)
    return f"p50 {cuts[49]:6,.0f} ms, p99 {cuts[98]:6,.0f} ms, most {max(reaction):6,} ms"


def main() -> None:
    """Run the bench and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--devices", type=int, default=30_000)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--window-ms", type=int, default=20_000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the aggregator")
    arguments = parser.parse_args()
    print("\n".join(environment("pyspark", "confluent-kafka")))
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as name:
        stack = Stack(Path(name) / "stack", Ports.free(), quick_start=False)
        try:
            stack.up(["kafka", "registry"])
            found = measure(stack, Path(name), arguments)
            print(
                f"{arguments.devices:,} devices, windows of {arguments.window_ms} ms, "
                f"{' '.join(arguments.set) or 'default settings'}, load {load_average()}"
            )
            report(found)
        finally:
            stack.down()
            stack.wipe()


if __name__ == "__main__":
    main()
