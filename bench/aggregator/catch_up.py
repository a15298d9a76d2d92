"""How fast the aggregator reads a topic that is full: readings a second, processor seconds for a million.

    python bench/aggregator/catch_up.py [--devices N] [--readings N] [--set KEY=VALUE ...]

The first fifth warms the JVM up and is not counted. Both queries count (windows, and what is in none): the rate is that
of the one that is behind. The broker is on the same machine; its processor time is printed apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aggregator_process import AggregatorProcess, Sample
from environment import cpu_s, environment
from isotherm_cli.apply import apply
from isotherm_schemas import schema
from servicekit.avro import SchemaRegistry
from servicekit.settings import KafkaSettings, RegistrySettings
from stack.artifacts import Artifacts
from stack.local import Stack
from stack.ports import Ports

TOPIC = "thermostat.data"
SETTINGS = ("window_ms=60000", "spark.driver_memory=3g", "group_attributes=")


def fill(kafka: KafkaSettings, registry: RegistrySettings, devices: int, readings: int, *more: str) -> dict[str, float]:
    """Produce with the generator, in a process of its own; what it says."""
    schemas = SchemaRegistry(registry)
    schema_id = schemas.schema_id(f"{TOPIC}-value", schema("SensorReading", 1))
    command = [sys.executable, str(Path(__file__).with_name("generator.py")), kafka.bootstrap_servers, TOPIC]
    command += [str(schema_id), "--devices", str(devices), "--readings", str(readings), *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def report(samples: list[Sample], readings: int, broker_cpu_s: float) -> None:
    """Print what the samples say of the stretch after the warm-up."""
    first = next(sample for sample in samples if sample.slowest >= readings / 5)
    last = samples[-1]
    done = last.slowest - first.slowest
    seconds = last.at_s - first.at_s
    own = 1e6 * (last.cpu_s - first.cpu_s) / done
    peak = max(sample.resident_mb for sample in samples)
    print(f"  catch-up  {done / seconds:9,.0f} readings/s over {done:,} readings, {seconds:.0f} s")
    print(f"  CPU       {own:9.2f} s a million readings; {own * 115_741 / 1e6:.2f} cores at 115,741 readings/s")
    print(f"  broker    {1e6 * broker_cpu_s / last.slowest:9.2f} CPU s a million readings, filling left out")
    print(f"  memory    {peak:9,.0f} MB resident at most, driver and JVM")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=30_000)
    parser.add_argument("--readings", type=int, default=10_000_000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the aggregator")
    arguments = parser.parse_args()
    print("\n".join(environment()))
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as name:
        folder = Path(name)
        stack = Stack(folder / "stack", Ports.free(), quick_start=False)
        try:
            stack.up(["kafka", "registry"])
            kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
            registry = RegistrySettings(url=stack.registry.url)
            apply(kafka, registry)
            begin_ms = time.time_ns() // 1_000_000 - 86_400_000
            filled = fill(kafka, registry, arguments.devices, arguments.readings, "--begin-ms", str(begin_ms))
            print(f"\n{arguments.devices:,} devices, {filled['readings']:,} readings; {' '.join(arguments.set)}")
            settings = [*SETTINGS, *arguments.set]
            before = cpu_s(stack.kafka.pid)
            with AggregatorProcess(folder, kafka, registry, Artifacts().folder("spark"), settings) as process:
                samples = process.until(arguments.readings, timeout_s=900)
                report(samples, arguments.readings, cpu_s(stack.kafka.pid) - before)
        finally:
            stack.down()
            stack.wipe()


if __name__ == "__main__":
    main()
