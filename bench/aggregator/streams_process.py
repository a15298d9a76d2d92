"""The Kafka Streams program (`StreamsWindows.java`) as a measured process, on the JDK that runs the servers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from isotherm.schemas import schema
from isotherm.stack.artifacts import Artifacts
from isotherm.stack.java import find_java
from measured_process import MeasuredProcess

_SOURCE = Path(__file__).with_name("StreamsWindows.java")
_TAIL_BYTES = 4_096


def compiled(folder: Path) -> Path:
    """Compile the program into `folder`, which is created when missing, and return `folder`.

    Raises FileNotFoundError when only a JRE is installed.
    """
    folder.mkdir(exist_ok=True)
    command = [f"{find_java().home}/bin/javac", "-cp", f"{Artifacts().folder('kafka-streams')}/*"]
    subprocess.run([*command, "-d", str(folder), str(_SOURCE)], check=True)
    return folder


class StreamsProcess(MeasuredProcess):
    """One run with the JVM options of the aggregator.

    `name` is the application id; it is new, so that state and changelog begin empty. `heap` is as for `-Xmx`.
    """

    def __init__(self, folder: Path, classes: Path, name: str, heap: str, arguments: Mapping[str, object]) -> None:
        for record in ("SensorReading", "TemperatureAggregate"):
            (folder / f"{record}.avsc").write_text(json.dumps(schema(record, 1)), encoding="utf-8")
        values: dict[str, object] = {
            "reading": folder / "SensorReading.avsc",
            "aggregate": folder / "TemperatureAggregate.avsc",
            "streams.application.id": name,
            "streams.state.dir": folder / "state",
            "streams.auto.offset.reset": "earliest",
            "streams.compression.type": "lz4",
            "streams.linger.ms": 5,
            "streams.num.stream.threads": os.cpu_count(),
            "streams.max.poll.records": 5_000,
            "streams.commit.interval.ms": 10_000,
            # Room for all open windows, so that only commits write state to the changelog.
            "streams.statestore.cache.max.bytes": 512 * 1024 * 1024,
            **arguments,
        }
        classpath = f"{Artifacts().folder('kafka-streams')}/*:{classes}"
        options = (f"-Xmx{heap}", "-XX:+UseParallelGC", "-Dorg.apache.avro.fastread=true")
        command = [find_java().command, *options, "-cp", classpath, "StreamsWindows"]
        super().__init__([*command, *(f"{key}={value}" for key, value in values.items())], folder / "streams.log")

    def read(self) -> int:
        """Return the number that the program prints twice a second."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines(keepends=True)
        said = [line for line in lines if line.startswith("read ") and line.endswith("\n")]
        return int(said[-1].split()[1]) if said else 0
