"""A small Spark for the tests of data frames."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import session
from isotherm.stack.artifacts import Artifacts


@contextmanager
def small_spark(folder: Path) -> Iterator[SparkSession]:
    """A session with the service's properties, which is quick to start."""
    chosen = AggregatorSettings.model_validate(
        {
            "checkpoint_dir": folder,
            "jars_dir": Artifacts().folder("spark"),
            "shuffle_partitions": 1,
            "spark": {"master": "local[2]", "java_options": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"},
        }
    )
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    started = session.Spark(chosen, folder / "spark", lock)
    try:
        yield started.session
    finally:
        started.stop()
        os.close(lock)
