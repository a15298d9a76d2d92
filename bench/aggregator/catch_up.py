"""Compares the aggregator with Kafka Streams on a full topic: readings a second, and CPU seconds for a million.

    python bench/aggregator/catch_up.py [--devices N] [--readings N] [--rounds N] [--only NAME] [--set KEY=VALUE ...]

A topic is filled once. Then `isotherm-aggregator run` and a Kafka Streams program (`StreamsWindows.java`) read it from
the beginning, one after the other, and write the same windows, each with its own checkpoint or changelog, with the same
heap, collector and Avro reader, on all cores. The first fifth warms the JVM up and is not counted. The rate counts up
to the last reading, of the slower query where there are two. CPU seconds count up to the last window in the output. The
broker runs on the same machine; its CPU time is printed separately. Every run must make the windows that follow from
the generator's arithmetic.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from aggregator_process import AggregatorProcess
from filled_topic import Output, expected_windows, fill
from generator import HEADLINE_RATE
from isotherm.cli.apply import apply
from isotherm.cli.plan import DeclaredTopic
from isotherm.schemas import schema
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.java import find_java
from isotherm.stack.measurement import cpu_s, environment, load_average
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack
from measured_process import MeasuredProcess, Sample
from streams_process import StreamsProcess, compiled

OURS, STREAMS = "aggregator", "Kafka Streams"
GOALS = {30_000: (150_000, 230_000), 300_000: (75_000, 125_000)}
"""Readings a second by number of devices: the minimum and the goal."""
MOST_CPU_S = {30_000: 10.0}
"""Limit of the CPU seconds for a million readings, by number of devices."""
MOST_OF_STREAMS = 1.3
HEAP = "3g"
WINDOW_MS, LATENESS_MS, SKEW_MS = 60_000, 10_000, 5_000
INPUT, OUTPUT, STREAMS_OUTPUT = "thermostat.data", "temperatures.aggregated", "bench.streams.aggregated"
PARTITIONS = 4
_PATIENCE_S = 900.0


@dataclass(frozen=True)
class Measured:
    """The figures of one run after its warm-up."""

    rate: float
    """Readings a second."""
    seconds: float
    own_per_million: float
    """CPU seconds of the process for a million readings."""
    broker_per_million: float
    resident_mb: float

    def __str__(self) -> str:
        return (
            f"{self.rate:9,.0f} readings/s, {self.own_per_million:6.2f} CPU s a million, "
            f"broker {self.broker_per_million:5.2f}, {self.resident_mb:6,.0f} MB, {self.seconds:4.0f} s"
        )


class Bench:
    """The stack with the filled topic."""

    def __init__(self, stack: Stack, folder: Path, devices: int, readings: int, settings: list[str]) -> None:
        self._stack, self._folder, self._devices, self._readings = stack, folder, devices, readings
        self._settings = dict(setting.split("=", 1) for setting in settings)
        self._kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
        self._registry = RegistrySettings(url=stack.registry.url)
        apply(self._kafka, self._registry)
        # The readings are of yesterday and carry their ingest times, as if the topic had been filled then.
        replayed = DeclaredTopic(INPUT, PARTITIONS, {"message.timestamp.type": "CreateTime"})
        apply(self._kafka, self._registry, topics=[DeclaredTopic(STREAMS_OUTPUT, PARTITIONS), replayed], subjects=[])
        ids = SchemaRegistry(self._registry)
        self._reading_id = ids.schema_id(f"{INPUT}-value", schema("SensorReading", 1))
        self._aggregate_id = ids.schema_id(f"{OUTPUT}-value", schema("TemperatureAggregate", 1))
        self._runs = 0
        # The readings fill complete windows of yesterday.
        self._begin_ms = (time.time_ns() // 1_000_000 - 86_400_000) // WINDOW_MS * WINDOW_MS
        self._expected = expected_windows(devices, readings, self._begin_ms, WINDOW_MS)

    def fill(self) -> None:
        """Produce all readings, and after them one in each partition that is an hour younger and ends the windows."""
        mark_ms = self._begin_ms + self._readings * 1000 // HEADLINE_RATE + 3_600_000
        times = ["--begin-ms", self._begin_ms, "--mark-ms", mark_ms]
        filled = fill(self._kafka, INPUT, self._reading_id, self._devices, "--readings", self._readings, *times)
        print(
            f"{self._devices:,} devices, {filled['readings']:,} readings in {self._expected:,} windows of "
            f"{WINDOW_MS // 1000} s, produced at {self._readings / filled['seconds']:,.0f}/s"
        )

    def aggregator(self) -> Measured:
        """Measure `isotherm-aggregator run`."""
        settings = {
            "kafka.bootstrap_servers": self._kafka.bootstrap_servers,
            "registry.url": self._registry.url,
            "window_ms": WINDOW_MS,
            "allowed_lateness_ms": LATENESS_MS,
            "max_skew_ms": SKEW_MS,
            "group_attributes": "",
            "require_log_append_time": False,
            "spark.driver_memory": HEAP,
            **self._settings,
        }
        return self._measure(AggregatorProcess(self._run_folder(), settings), OUTPUT, self._expected)

    def streams(self, classes: Path) -> Measured:
        """Measure the Kafka Streams program."""
        arguments = {
            "input": INPUT,
            "output": STREAMS_OUTPUT,
            "reading-id": self._reading_id,
            "aggregate-id": self._aggregate_id,
            "window-ms": WINDOW_MS,
            "lateness-ms": LATENESS_MS,
            "skew-ms": SKEW_MS,
            "streams.bootstrap.servers": self._kafka.bootstrap_servers,
        }
        folder = self._run_folder()
        process = StreamsProcess(folder, classes, f"bench-{folder.name}", HEAP, arguments)
        return self._measure(process, STREAMS_OUTPUT, self._expected)

    def _run_folder(self) -> Path:
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        folder.mkdir()
        return folder

    def _measure(self, process: MeasuredProcess, topic: str, windows: int) -> Measured:
        output = Output(self._kafka, self._registry, topic)
        broker_s = cpu_s(self._stack.kafka.pid)
        try:
            with process:
                records = self._readings + PARTITIONS
                reading = process.until(lambda now: now.read >= records, f"{records} records", _PATIENCE_S)
                writing = process.until(lambda _: output.records() >= windows, f"{windows} windows", _PATIENCE_S)
            broker_s = cpu_s(self._stack.kafka.pid) - broker_s
            found, readings = output.windows_and_readings()
        finally:
            output.close()
        if (found, readings) != (self._expected, self._readings):
            right = f"{self._expected:,} with {self._readings:,}"
            raise RuntimeError(f"{found:,} windows with {readings:,} readings, there must be {right}")
        return _measured(reading, writing[-1], self._readings, broker_s)


def _measured(reading: list[Sample], end: Sample, readings: int, broker_s: float) -> Measured:
    first = next(sample for sample in reading if sample.read >= readings / 5)
    last = reading[-1]
    done = last.read - first.read
    return Measured(
        rate=done / (last.at_s - first.at_s),
        seconds=end.at_s - reading[0].at_s,
        own_per_million=1e6 * (end.cpu_s - first.cpu_s) / done,
        broker_per_million=1e6 * broker_s / readings,
        resident_mb=max(sample.resident_mb for sample in [*reading, end]),
    )


def report(devices: int, runs: dict[str, list[Measured]]) -> None:
    """Print the medians, and whether they reach the goals."""
    middle = {name: _median(found) for name, found in runs.items()}
    print("\n  medians")
    for name, found in middle.items():
        print(f"           {name:14} {found}")
    if OURS not in runs:
        return
    print()
    rate, own = middle[OURS].rate, middle[OURS].own_per_million
    if devices in GOALS:
        least, goal = GOALS[devices]
        _print_goal(rate >= least, f"{rate:,.0f} readings/s of at least {least:,}, goal {goal:,}")
    if devices in MOST_CPU_S:
        most = MOST_CPU_S[devices]
        _print_goal(own <= most, f"{own:.2f} CPU s a million of at most {most:.0f}, broker excluded")
    if STREAMS in runs:
        ratio = own / middle[STREAMS].own_per_million
        _print_goal(
            ratio <= MOST_OF_STREAMS, f"{ratio:.2f} of Kafka Streams' CPU s, at most {MOST_OF_STREAMS}, goal 1.0"
        )


def _median(runs: list[Measured]) -> Measured:
    """Return the median of each figure."""
    middle = {each.name: statistics.median(getattr(run, each.name) for run in runs) for each in fields(Measured)}
    return Measured(**middle)


def _print_goal(is_reached: bool, what: str) -> None:
    print(f"  {'reached' if is_reached else 'MISSED':8} {what}")


def main() -> None:
    """Run the bench and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=30_000)
    parser.add_argument("--readings", type=int, default=20_000_000, help="of one run: some two minutes at this default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=(OURS, STREAMS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the aggregator")
    arguments = parser.parse_args()
    print("\n".join(environment("pyspark", "confluent-kafka")))
    settings = " ".join(arguments.set) or "default settings"
    print(f"java      {find_java().major}, heaps of {HEAP}; {settings}", flush=True)
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as name:
        folder = Path(name)
        classes = compiled(folder / "classes")
        stack = Stack(folder / "stack", Ports.free(), quick_start=False)
        try:
            stack.up(["kafka", "registry"])
            bench = Bench(stack, folder, arguments.devices, arguments.readings, arguments.set)
            bench.fill()
            kinds: dict[str, Callable[[], Measured]] = {OURS: bench.aggregator, STREAMS: lambda: bench.streams(classes)}
            chosen = [arguments.only] if arguments.only else list(kinds)
            runs: dict[str, list[Measured]] = {name: [] for name in chosen}
            for number in range(arguments.rounds):
                for name in chosen:
                    run = kinds[name]()
                    runs[name].append(run)
                    print(f"  round {number + 1}  {name:14} {run}, load {load_average()}", flush=True)
            report(arguments.devices, runs)
        finally:
            stack.down()
            stack.wipe()


if __name__ == "__main__":
    main()
