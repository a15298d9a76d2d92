"""Compares the aggregator with Kafka Streams at a live rate: CPU seconds, memory, lag and reaction, broker included.

    python bench/aggregator/live.py [--rate N] [--devices N] [--seconds N] [--store rocksdb] [--only NAME] [--set K=V]

Readings carry the time of their production. `isotherm-aggregator run`, with groups and its defaults as shipped, and a
Kafka Streams program (`StreamsWindows.java`, emitting windows as they close) get the same load one after the other,
each from a new topic. The first third warms up and is not counted. The lag is what the topic holds and the process has
not read, divided by the rate. A window's reaction lasts from when it is final until a consumer has its aggregate: its
end, the lateness, and for the aggregator also the publish delay and the read margin, of which Kafka Streams knows
nothing. The program makes no groups. A window that lacks a device ends the bench.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

import generator
from aggregator_process import AggregatorProcess
from isotherm.aggregator.spark import properties
from isotherm.cli.apply import apply
from isotherm.cli.plan import DeclaredSubject, DeclaredTopic
from isotherm.schemas import schema
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.java import find_java
from isotherm.stack.measurement import cpu_s, environment, load_average, resident_bytes
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack
from measured_process import MeasuredProcess, Sample
from streams_process import StreamsProcess, compiled

OURS, STREAMS = "aggregator", "Kafka Streams"
STORES = {"heap": "IN_MEMORY", "rocksdb": "ROCKS_DB"}
ROCKSDB = {"spark.properties": json.dumps({properties.STATE_STORE: properties.ROCKSDB})}
PARTITIONS = 4
WINDOW_MS, LATENESS_MS, SKEW_MS, PUBLISH_DELAY_MS, READ_MARGIN_MS = 60_000, 60_000, 60_000, 40_000, 5_000
"""The aggregator's defaults."""
_POLL_S = 0.2
_SAMPLE_S = 1.0
_AT_ONCE = 20_000
_UNCOUNTED = 3
"""The first of so many parts warms up."""
_LAST_WORDS_S = 30.0
_MOST_LAG_S = 10.0


@dataclass(frozen=True)
class Measured:
    """The figures of one run after its warm-up."""

    own_per_million: float
    broker_per_million: float
    """CPU seconds for a million readings."""
    cores: float
    lag_s: float
    """The most that was seen."""
    resident_mb: float
    broker_mb: float
    reactions_ms: list[int]
    windows: int

    def __str__(self) -> str:
        cuts = statistics.quantiles(self.reactions_ms, n=100) if self.reactions_ms else [0.0] * 99
        return (
            f"{self.own_per_million:6.2f} CPU s a million, broker {self.broker_per_million:5.2f}, "
            f"{self.cores:4.2f} cores, lag at most {self.lag_s:5.1f} s, "
            f"{self.resident_mb:6,.0f} MB, broker {self.broker_mb:6,.0f} MB, "
            f"{self.windows} windows, final to found p50 {cuts[49]:6,.0f} ms, p99 {cuts[98]:6,.0f} ms"
        )


class Watcher:
    """Follows the input's ends and the aggregates in the output, with their time of arrival."""

    def __init__(self, kafka: KafkaSettings, source: str, output: str, final_ms: int) -> None:
        self._consumer: Consumer = clients.consumer(kafka, "bench", f"bench-{output}", fetch_wait_max_ms=10)
        self._source = source
        self._final_ms = final_ms
        self._consumer.assign([TopicPartition(output, number, 0) for number in range(PARTITIONS)])
        self.found: dict[int, list[int]] = defaultdict(list)
        """Reactions in ms by the window's end (epoch ms)."""

    def offered(self) -> int:
        """Return how many records the input has."""
        ends = (
            self._consumer.get_watermark_offsets(TopicPartition(self._source, number), timeout=30)
            for number in range(PARTITIONS)
        )
        return sum(end for _, end in ends)

    def follow(self, seconds: float) -> None:
        """Take what arrives within this time."""
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s:
            messages = self._consumer.consume(_AT_ONCE, _POLL_S)
            now_ms = time.time_ns() // 1_000_000
            counts = Counter((message.key() or b"").rpartition(b"|")[2] for message in messages)
            for end, count in counts.items():
                self.found[int(end)] += [now_ms - int(end) - self._final_ms] * count

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


class Bench:
    """The stack, and the options of all runs."""

    def __init__(self, stack: Stack, folder: Path, arguments: argparse.Namespace) -> None:
        self._stack, self._folder, self._arguments = stack, folder, arguments
        self._kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
        self._registry = RegistrySettings(url=stack.registry.url)
        apply(self._kafka, self._registry)
        ids = SchemaRegistry(self._registry)
        self._reading_id = ids.schema_id("thermostat.data-value", schema("SensorReading", 1))
        self._aggregate_id = ids.schema_id("temperatures.aggregated-value", schema("TemperatureAggregate", 1))
        self._runs = 0
        self._write_devices()

    def _write_devices(self) -> None:
        """Say of each device where it is: three of them in a home."""
        encode = SchemaRegistry(self._registry).encoder("devices", schema("Device", 1))
        producer = clients.producer(self._kafka, "bench-devices", queue_buffering_max_messages=200_000, linger_ms=50)
        for number in range(self._arguments.devices):
            device = {
                "device_id": f"device-{number:06d}",
                "home": f"home-{number // 3}",
                "room": f"room-{number % 12}",
                "region": f"region-{number % 50}",
                "model": f"model-{number % 20}",
                "thresholds": {},
            }
            producer.produce("devices", key=str(device["device_id"]), value=encode(device))
            while len(producer) > 100_000:
                producer.poll(0.05)
        if producer.flush(120):
            raise RuntimeError("the devices were not written")

    def _topics(self) -> tuple[Path, str, str]:
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        folder.mkdir()
        names = (f"bench.live.{self._runs}.in", f"bench.live.{self._runs}.out")
        timed = DeclaredTopic(names[0], PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
        subjects = [
            DeclaredSubject(f"{name}-value", [schema(record, 1)])
            for name, record in zip(names, ("SensorReading", "TemperatureAggregate"), strict=True)
        ]
        apply(self._kafka, self._registry, topics=[timed, DeclaredTopic(names[1], PARTITIONS, {})], subjects=subjects)
        return folder, *names

    def aggregator(self) -> Measured:
        """Measure `isotherm-aggregator run`."""
        folder, source, output = self._topics()
        settings: dict[str, object] = {
            "name": folder.name,
            "kafka.bootstrap_servers": self._kafka.bootstrap_servers,
            "registry.url": self._registry.url,
            "input_topics": source,
            "output_topic": output,
            "spark.driver_memory": self._arguments.heap,
            **(ROCKSDB if self._arguments.store == "rocksdb" else {}),
            **dict(setting.split("=", 1) for setting in self._arguments.set),
        }
        final_ms = LATENESS_MS + PUBLISH_DELAY_MS + READ_MARGIN_MS
        return self._measure(AggregatorProcess(folder, settings), source, output, final_ms)

    def streams(self, classes: Path) -> Measured:
        """Measure the Kafka Streams program."""
        folder, source, output = self._topics()
        arguments = {
            "input": source,
            "output": output,
            "reading-id": self._reading_id,
            "aggregate-id": self._aggregate_id,
            "window-ms": WINDOW_MS,
            "lateness-ms": LATENESS_MS,
            "skew-ms": SKEW_MS,
            "store": STORES[self._arguments.store],
            "emit": "on-window-close",
            "streams.bootstrap.servers": self._kafka.bootstrap_servers,
        }
        process = StreamsProcess(folder, classes, f"bench-{folder.name}", self._arguments.heap, arguments)
        return self._measure(process, source, output, LATENESS_MS)

    def _measure(self, process: MeasuredProcess, source: str, output: str, final_ms: int) -> Measured:
        arguments = self._arguments
        command = [sys.executable, generator.__file__, self._kafka.bootstrap_servers, source, str(self._reading_id)]
        command += ["--devices", str(arguments.devices), "--rate", str(arguments.rate)]
        command += ["--readings", str(arguments.rate * arguments.seconds)]
        broker = self._stack.kafka.pid
        with process, closing(Watcher(self._kafka, source, output, final_ms)) as watcher:
            # Both read from the beginning: the load may begin when the process does.
            begin_s = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
                lags, samples, brokers = [], [], []
                while load.poll() is None:
                    watcher.follow(_SAMPLE_S)
                    if time.perf_counter() - begin_s < arguments.seconds / _UNCOUNTED:
                        continue
                    offered = watcher.offered()
                    samples.append(process.sample())
                    brokers.append(cpu_s(broker))
                    lags.append((offered - samples[-1].read) / arguments.rate)
                    if offered >= arguments.rate * arguments.seconds:
                        break  # What is left is the generator's end.
                assert load.stdout is not None
                said = json.load(load.stdout)
            if load.returncode:
                raise RuntimeError(f"the generator ended with code {load.returncode}")
            rate, cores = said["readings"] / said["seconds"], said["cpu_s"] / said["seconds"]
            print(f"    offered {rate:,.0f}/s by {cores:.2f} cores", flush=True)
            watcher.follow(_LAST_WORDS_S)
            broker_mb = resident_bytes(broker) / 1e6
        return self._figures(samples, lags, brokers[-1] - brokers[0], broker_mb, watcher)

    def _figures(
        self, samples: list[Sample], lags: list[float], broker_cpu_s: float, broker_mb: float, watcher: Watcher
    ) -> Measured:
        first, last = samples[0], samples[-1]
        done = last.read - first.read
        # The first and the last windows may be parts, or are not due yet.
        whole = sorted(watcher.found)[1:-1]
        for end_ms in whole:
            if (found := len(watcher.found[end_ms])) != self._arguments.devices:
                raise RuntimeError(f"{found:,} aggregates of the window to {end_ms}, not {self._arguments.devices:,}")
        counted = whole[len(whole) // _UNCOUNTED :]
        return Measured(
            own_per_million=1e6 * (last.cpu_s - first.cpu_s) / done,
            broker_per_million=1e6 * broker_cpu_s / done,
            cores=(last.cpu_s - first.cpu_s) / (last.at_s - first.at_s),
            lag_s=max(lags),
            resident_mb=max(sample.resident_mb for sample in samples),
            broker_mb=broker_mb,
            reactions_ms=[ms for end_ms in counted for ms in watcher.found[end_ms]],
            windows=len(counted),
        )


def report(runs: dict[str, list[Measured]]) -> None:
    """Print whether the goals are reached, by the medians."""
    if OURS not in runs:
        return
    lag_s = max(run.lag_s for run in runs[OURS])
    print(f"  {'reached' if lag_s < _MOST_LAG_S else 'MISSED':8} lag at most {lag_s:.1f} s, goal {_MOST_LAG_S:.0f}")
    if STREAMS in runs:
        own, peer = (statistics.median(run.own_per_million for run in runs[name]) for name in (OURS, STREAMS))
        ratio = own / peer
        print(f"  {'reached' if ratio <= 1 else 'MISSED':8} {ratio:.2f} of Kafka Streams' CPU s, goal 1.0")


def main() -> None:
    """Run the bench and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=generator.HEADLINE_RATE)
    parser.add_argument("--devices", type=int, default=1_200_000)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--store", choices=list(STORES), default="rocksdb", help="where both keep their windows")
    parser.add_argument("--heap", default="3g", help="of both JVMs")
    parser.add_argument("--only", choices=(OURS, STREAMS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the aggregator")
    arguments = parser.parse_args()
    print("\n".join(environment("pyspark", "confluent-kafka")))
    print(
        f"{arguments.rate:,} readings/s for {arguments.seconds} s, {arguments.devices:,} devices; java "
        f"{find_java().major}, heaps of {arguments.heap}, {arguments.store}; {' '.join(arguments.set) or 'defaults'}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as name:
        folder = Path(name)
        classes = compiled(folder / "classes")
        stack = Stack(folder / "stack", Ports.free(), quick_start=False)
        try:
            stack.up(["kafka", "registry"])
            bench = Bench(stack, folder, arguments)
            kinds: dict[str, Callable[[], Measured]] = {OURS: bench.aggregator, STREAMS: lambda: bench.streams(classes)}
            chosen = [arguments.only] if arguments.only else list(kinds)
            runs: dict[str, list[Measured]] = {name: [] for name in chosen}
            for number in range(arguments.rounds):
                for name in chosen:
                    runs[name].append(kinds[name]())
                    print(f"  round {number + 1}  {name:14} {runs[name][-1]}, load {load_average()}", flush=True)
            report(runs)
        finally:
            stack.down()
            stack.wipe()


if __name__ == "__main__":
    main()
