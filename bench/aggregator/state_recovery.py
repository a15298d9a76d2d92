"""Measures how large the state of open windows is, and how long a start with it takes after kill -9.

    python bench/aggregator/state_recovery.py [--devices 1 100000 1200000] [--stores heap rocksdb] [--set K=V]

For each store and number of devices, an aggregator with a new checkpoint reads two readings of each device, whose
windows stay open for an hour. Then it is killed with its JVM, and started again. The time begins when Kafka gives the
new process the lease, so it is without the session of the killed one (up to 30 s); it ends when a reading that came
meanwhile is in a batch, for which Spark has loaded the state. With one device it is what a start costs without state.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from datetime import datetime
from pathlib import Path

import psutil

from aggregator_process import AggregatorProcess
from filled_topic import fill
from isotherm.cli.apply import apply
from isotherm.schemas import schema
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.measurement import environment, load_average
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
STORES: dict[str, dict[str, str]] = {"heap": {}, "rocksdb": ROCKSDB}
INPUT = "thermostat.data"
_WINDOW_MS = 3_600_000
_TIMEOUT_S = 900.0
_HELD = "this process holds the lease"


def measure(stack: Stack, folder: Path, store: str, devices: int, arguments: argparse.Namespace) -> str:
    """Fill the state of one aggregator, kill it, start it again; return a line with the figures."""
    kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
    registry = RegistrySettings(url=stack.registry.url)
    schema_id = SchemaRegistry(registry).schema_id(f"{INPUT}-value", schema("SensorReading", 1))
    settings = {
        "name": f"{store}-{devices}",
        "kafka.bootstrap_servers": kafka.bootstrap_servers,
        "registry.url": registry.url,
        "window_ms": _WINDOW_MS,
        "spark.master": "local[2]",
        # Only what this run produces.
        "start_from": time.time_ns() // 1_000_000,
        "spark.properties": json.dumps(STORES[store]),
        **dict(setting.split("=", 1) for setting in arguments.set),
    }
    begin_ms = time.time_ns() // 1_000_000 - 60_000
    readings = 2 * devices
    fill(kafka, INPUT, schema_id, devices, "--readings", readings, "--begin-ms", begin_ms)
    with AggregatorProcess(folder, settings) as first:
        first.until(lambda now: now.read >= readings, "the readings", _TIMEOUT_S)
        resident_mb = first.sample().resident_mb
        pid = first._process.pid
        for process in (*psutil.Process(pid).children(recursive=True), psutil.Process(pid)):
            os.kill(process.pid, signal.SIGKILL)
    stored = sum(path.stat().st_size for path in (folder / "checkpoint/windows/state").rglob("*") if path.is_file())
    fill(kafka, INPUT, schema_id, 1, "--readings", 10, "--begin-ms", begin_ms + 1_000)
    with AggregatorProcess(folder, settings) as again:
        again.until(lambda now: now.read > 0, "a batch after the start", _TIMEOUT_S)
        ready_s = time.time() - _held_at_s(again.log)
        rows = again.state_rows()
    return (
        f"{store:8} {devices:10,} devices, {rows:10,} open windows: {stored / 1e6:8,.1f} MB in the checkpoint, "
        f"{resident_mb:6,.0f} MB resident, {ready_s:6.1f} s from the lease to the first batch, load {load_average()}"
    )


def _held_at_s(log: Path) -> float:
    for line in log.read_text(encoding="utf-8").splitlines():
        if _HELD in line:
            return datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp()
    raise RuntimeError("the aggregator did not log that it holds the lease")


def main() -> None:
    """Run the bench and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 100_000, 1_200_000])
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
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
            for devices in arguments.devices:
                for store in arguments.stores:
                    folder = Path(name) / f"{store}-{devices}"
                    folder.mkdir()
                    print(measure(stack, folder, store, devices, arguments), flush=True)
        finally:
            stack.down()
            stack.wipe()


if __name__ == "__main__":
    main()
