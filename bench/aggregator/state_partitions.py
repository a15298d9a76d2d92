"""Measures what partitions of the state cost: CPU of the aggregator at rest, at few readings and at many.

    python bench/aggregator/state_partitions.py [--partitions 2 8 32] [--rates 0 220 20000] [--seconds N] [--set K=V]

Every partition is a task, a state store and its files in every batch, however few rows there are. For each number of
partitions an aggregator with a new checkpoint gets each rate for some seconds, one after the other; the first third of
each is not counted. Groups are on, as shipped. Cores are CPU seconds of the process with its JVM for a second.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import generator
from aggregator_process import AggregatorProcess
from isotherm.cli.apply import apply
from isotherm.schemas import schema
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.measurement import environment, load_average
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack

INPUT = "thermostat.data"
WINDOW_MS, LATENESS_MS, SKEW_MS, PUBLISH_DELAY_MS = 10_000, 5_000, 2_000, 3_000
_READY_S = 120.0
_UNCOUNTED = 3
"""The first of so many parts is not counted."""


def measure(stack: Stack, folder: Path, partitions: int, arguments: argparse.Namespace) -> list[str]:
    """Run one aggregator through all rates; return a line for each."""
    kafka, registry = (
        KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers),
        RegistrySettings(url=stack.registry.url),
    )
    schema_id = SchemaRegistry(registry).schema_id(f"{INPUT}-value", schema("SensorReading", 1))
    settings = {
        "name": f"partitions-{partitions}",
        "kafka.bootstrap_servers": kafka.bootstrap_servers,
        "registry.url": registry.url,
        "window_ms": WINDOW_MS,
        "allowed_lateness_ms": LATENESS_MS,
        "max_skew_ms": SKEW_MS,
        "max_publish_delay_ms": PUBLISH_DELAY_MS,
        "spark.master": "local[2]",
        "shuffle_partitions": partitions,
        **dict(setting.split("=", 1) for setting in arguments.set),
    }
    lines = []
    with AggregatorProcess(folder, settings) as aggregator:
        # A first reading shows that it runs: a generator's end adds one to each partition.
        _offer(kafka, schema_id, 1, 220, arguments.devices).wait()
        aggregator.until(lambda now: now.read > 0, "the first batch", _READY_S)
        for rate in arguments.rates:
            offering = None
            if rate:
                offering = _offer(kafka, schema_id, arguments.seconds, rate, arguments.devices)
            begin_s = time.perf_counter()
            while time.perf_counter() < begin_s + arguments.seconds / _UNCOUNTED:
                time.sleep(0.5)  # the uncounted part
            first = aggregator.sample()
            while time.perf_counter() < begin_s + arguments.seconds:
                time.sleep(0.5)  # the counted part
            last = aggregator.sample()
            if offering is not None:
                offering.wait()
            cores = (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s)
            read = (last.read - first.read) / (last.at_s - first.at_s)
            lines.append(
                f"{partitions:4} partitions, {rate:6,}/s offered, {read:8,.0f}/s read: {cores:5.2f} cores, "
                f"{last.resident_mb:6,.0f} MB, load {load_average()}"
            )
            print(lines[-1], flush=True)
    return lines


def _offer(kafka: KafkaSettings, schema_id: int, seconds: int, rate: int, devices: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, generator.__file__, kafka.bootstrap_servers, INPUT, str(schema_id)]
    command += ["--devices", str(devices), "--rate", str(rate), "--readings", str(rate * seconds)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def main() -> None:
    """Run the bench and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--rates", type=int, nargs="+", default=[0, 220, 20_000])
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=60, help="for each rate")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the aggregator")
    arguments = parser.parse_args()
    print("\n".join(environment("pyspark", "confluent-kafka")))
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as name:
        stack = Stack(Path(name) / "stack", Ports.free(), quick_start=False)
        try:
            stack.up(["kafka", "registry"])
            apply(
                KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers),
                RegistrySettings(url=stack.registry.url),
            )
            for partitions in arguments.partitions:
                folder = Path(name) / str(partitions)
                folder.mkdir()
                measure(stack, folder, partitions, arguments)
        finally:
            stack.down()
            stack.wipe()


if __name__ == "__main__":
    main()
