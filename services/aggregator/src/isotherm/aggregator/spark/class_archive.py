"""An archive of Spark's classes: a JVM that maps them from a file starts with half of the work (JEP 350, ADR 104).

Half of what a start of Spark costs is reading some 15,000 classes from jars and verifying them. The archive saves time
only: a JVM refuses one of another Java or another class path, says so in its log, and starts without it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.gateway import is_submitted
from isotherm.aggregator.spark.session import Spark
from isotherm.servicekit.settings import SettingsError

_WRITE_TIMEOUT_S = 300.0
"""How long the JVM may take to write the archive when it ends: 10 s alone on a machine."""
_ROWS = 1_000


class ArchiveNotWrittenError(Exception):
    """The JVM ended and there is no archive."""


def write(settings: AggregatorSettings) -> Path:
    """Start Spark, run queries like those of the service, and write the classes that this took; return the file.

    The file is `spark.class_archive`; an older one is replaced at the end. It fits the Java, the Spark and the jars
    that were used, at the places where they are now. Raises SettingsError if the setting is not set, and
    ArchiveNotWrittenError.
    """
    if is_submitted():
        raise SettingsError(["archive-classes starts a JVM of its own; call it without spark-submit"])
    archive = settings.spark.class_archive
    if archive is None:
        raise SettingsError(["spark.class_archive: not set; must be the file to write"])
    archive = archive.absolute()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="isotherm-classes-", dir=archive.parent) as name:
        folder = Path(name)
        written = folder / "classes.jsa"
        # It logs each class that it leaves out, as a warning.
        options = f"-XX:ArchiveClassesAtExit={written} -Xlog:cds*=error"
        started = settings.spark.model_copy(
            update={"class_archive": None, "java_options": f"{settings.spark.java_options} {options}".strip()}
        )
        spark = Spark(settings.model_copy(update={"spark": started}), folder / "spark")
        try:
            _load_classes(spark.session, folder)
        finally:
            spark.stop(_WRITE_TIMEOUT_S)
        if not written.exists():
            raise ArchiveNotWrittenError(f"the JVM has written no archive for {archive}; its log says why")
        written.replace(archive)
    return archive


def _load_classes(session: SparkSession, folder: Path) -> None:
    """Run a batch and a streaming query with windows, a watermark, state and a callback, so that Spark loads itself."""
    rows = session.range(0, _ROWS, 1, 2).select((F.col("id") % 7).alias("key"), F.rand(1).alias("value"))
    rows.groupBy("key").agg(F.avg("value"), F.stddev_pop("value"), F.count("value")).collect()
    ticks = folder / "ticks"
    ticks.mkdir()
    (ticks / "tick").write_text("1700000000000\n", encoding="utf-8")
    clock = session.readStream.format("text").load(str(ticks))
    timed = clock.select(
        F.timestamp_millis(F.col("value").cast("long")).alias("event_time"), F.length("value").alias("key")
    )
    windows = (
        timed.withWatermark("event_time", "1 second")
        .groupBy(F.window("event_time", "10 seconds"), "key")
        .agg(F.count("*").alias("readings"), F.max("event_time").alias("newest"))
    )
    query = (
        windows.writeStream.outputMode("append")
        .foreachBatch(_take)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _take(batch: DataFrame, _batch_id: int) -> None:
    batch.persist()
    batch.collect()
    batch.unpersist()
