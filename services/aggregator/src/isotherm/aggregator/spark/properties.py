"""The properties that the service sets in Spark: those of a JVM that it starts, and those of its session. Pure.

What Spark's user has set wins over the service's own, but for the properties on which a promise rests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from isotherm.aggregator.checkpoint_location import local_folder
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import promised_properties
from isotherm.servicekit.settings import SettingsError

MAX_AVRO_FIELD_BYTES = 16 * 1024 * 1024
"""Limit of Avro's allocations. A corrupt length could otherwise allocate 2 GiB and end the JVM by OutOfMemoryError."""

AVRO_LIMITS = (
    "org.apache.avro.limits.string.maxLength",
    "org.apache.avro.limits.bytes.maxLength",
    "org.apache.avro.limits.collectionItems.maxLength",
)
"""Java's system properties that limit it."""

FAST_READER = "org.apache.avro.fastread"
"""Java's system property for Avro's fast reader, which is built once for each schema.

The other reader walks the schema for every value.
"""

STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
COUNTS_STATE_ROWS = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"

_OF_ROCKSDB = {
    # A snapshot of the state at each commit costs more than the batch.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # One more read of the state for each row that is written.
    COUNTS_STATE_ROWS: "false",
    # Spark's 8 MB hold a hundredth of what a million devices touch in each batch: nearly every read unpacks a block.
    "spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB": "512",
    "spark.sql.streaming.stateStore.rocksdb.writeBufferSizeMB": "128",
}
"""For each partition of the state, as measured in ADR 263. Memory is taken as the state grows."""

_DRIVER_CLASS_PATH = "spark.driver.extraClassPath"
_EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
_UI = "spark.ui.enabled"

_COMPILER = (
    "-XX:Tier4InvocationThreshold=100000",
    "-XX:Tier4MinInvocationThreshold=50000",
    "-XX:Tier4CompileThreshold=200000",
    "-XX:Tier4BackEdgeThreshold=1000000",
)
"""Twenty times the JVM's defaults: what a few readings a second run through is not worth the second compiler's time.

At full load a loop over readings passes these thresholds within seconds.
"""

_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


def is_local(master: str) -> bool:
    """Return whether a Spark master runs everything in the driver's JVM."""
    return re.match(r"local(\[|$)", master) is not None


def of_new_jvm(
    settings: AggregatorSettings, work_folder: Path, log_configuration: Path, jars: Sequence[Path]
) -> dict[str, str]:
    """Return the properties with which `spark-submit` starts a JVM for the service.

    `jars` are those that the service adds to Spark's own, the file system of the checkpoint last. `spark-defaults.conf`
    decides about the master and the driver's memory unless the settings do. The setting `spark.properties` overrides
    the others, and adds to the class path of the driver.
    """
    spark = settings.spark
    java_options = [
        f"-Dlog4j2.configurationFile={log_configuration}",
        *_avro_options(),
        # Throughput matters more than pauses (ADR 0034). The JVM refuses to start with two collectors.
        *(() if _COLLECTOR.search(spark.java_options) else ("-XX:+UseParallelGC",)),
        *_COMPILER,
        # Spark starts in a folder of its own. The JVM splits a list of archives at colons.
        *(
            [f"-XX:SharedArchiveFile={spark.class_archive.absolute()}"]
            if spark.class_archive is not None and spark.class_archive.exists()
            else []
        ),
        spark.java_options,
    ]
    properties = {
        "spark.app.name": "isotherm-aggregator",
        "spark.driver.extraJavaOptions": " ".join(java_options).strip(),
        "spark.local.dir": str(work_folder),
        "spark.sql.warehouse.dir": str(work_folder / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
    }
    if "master" in spark.model_fields_set:
        properties["spark.master"] = spark.master
    if "driver_memory" in spark.model_fields_set:
        properties["spark.driver.memory"] = spark.driver_memory
    # spark-submit makes a file system before it adds the jars, and Hadoop keeps the first one of each scheme.
    naked, raw = promised_properties.NAKED_FILE_SYSTEM, promised_properties.RAW_FILE_SYSTEM
    if local_folder(settings.checkpoint_dir) is not None:
        properties[promised_properties.FILE_SYSTEM] = naked if jars else raw
    if jars:
        properties["spark.jars"] = ",".join(str(jar) for jar in jars)
        properties[_DRIVER_CLASS_PATH] = str(jars[-1])
    properties |= spark.properties
    if jars and _DRIVER_CLASS_PATH in spark.properties:
        properties[_DRIVER_CLASS_PATH] = os.pathsep.join([str(jars[-1]), spark.properties[_DRIVER_CLASS_PATH]])
    return properties


def of_session(
    settings: AggregatorSettings, started_with: Mapping[str, str], has_class: Callable[[str], bool]
) -> dict[str, str]:
    """Return the properties to add to those with which Spark's JVM was started.

    `has_class` says whether the JVM has a class. Raises SettingsError naming each property in `started_with` that
    breaks a promise, and RocksDB where Spark could not use it.
    """
    checkpoint = settings.checkpoint_dir
    promised_properties.verify_submitted(started_with, checkpoint, settings.shuffle_partitions)
    given = settings.spark.properties
    chosen = {**_of_files(checkpoint, has_class), **started_with, **given}
    if is_rocksdb(chosen) and chosen.get(promised_properties.FILE_SYSTEM) == promised_properties.RAW_FILE_SYSTEM:
        # Spark casts it to Hadoop's other class, when it stores the first commit.
        raise SettingsError(
            [
                f"{STATE_STORE}: {ROCKSDB!r} is not allowed without the jar hadoop-bare-naked-local-fs: Spark cannot "
                f"use it with {promised_properties.FILE_SYSTEM}={promised_properties.RAW_FILE_SYSTEM}"
            ]
        )
    defaults = {
        # A large batch of rejects must not keep the cores from a small batch of windows.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "false",
        # More batches than can pass between two reads of the progress: the driver may wait for Kafka in between.
        "spark.sql.streaming.numRecentProgressUpdates": "500",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.cleaner.periodicGC.interval": "10min",
        **_of_files(checkpoint, has_class),
        **(_OF_ROCKSDB if is_rocksdb(chosen) else {}),
        **({} if _has_ui(settings, started_with) else _ui_off()),
    }
    if started_with.get("spark.master", settings.spark.master).startswith("local"):
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    executor_options = given.get(_EXECUTOR_OPTIONS, started_with.get(_EXECUTOR_OPTIONS, ""))
    return {
        **{name: value for name, value in defaults.items() if name not in started_with},
        **{name: value for name, value in given.items() if name != _DRIVER_CLASS_PATH},
        **_ui_on(settings.spark.ui_port),
        **promised_properties.fixed(checkpoint),
        promised_properties.SHUFFLE_PARTITIONS: str(settings.shuffle_partitions),
        _EXECUTOR_OPTIONS: " ".join([*_avro_options(), executor_options]).strip(),
    }


def _of_files(checkpoint: str, has_class: Callable[[str], bool]) -> dict[str, str]:
    """Return the properties by which the files of a checkpoint are written where Spark's own choice is not the best."""
    naked, abortable = promised_properties.NAKED_FILE_SYSTEM, promised_properties.ABORTABLE_FILE_MANAGER
    if local_folder(checkpoint) is not None:
        return {promised_properties.FILE_SYSTEM: naked if has_class(naked) else promised_properties.RAW_FILE_SYSTEM}
    if not checkpoint.startswith("s3a:"):
        return {}
    # Hadoop's default is for columns of large files.
    reader = {"spark.hadoop.fs.s3a.input.stream.type": "classic"}
    return {**reader, **({promised_properties.FILE_MANAGER: abortable} if has_class(abortable) else {})}


def is_rocksdb(properties: Mapping[str, str]) -> bool:
    """Return whether the state is in RocksDB, by the properties of a session."""
    return properties.get(STATE_STORE) == ROCKSDB


def counts_state_rows(properties: Mapping[str, str]) -> bool:
    """Return whether Spark reports how many rows the state has, by the properties of a session."""
    return not is_rocksdb(properties) or properties.get(COUNTS_STATE_ROWS, "true").lower() == "true"


def _avro_options() -> list[str]:
    return [f"-D{FAST_READER}=true", *(f"-D{limit}={MAX_AVRO_FIELD_BYTES}" for limit in AVRO_LIMITS)]


def _has_ui(settings: AggregatorSettings, started_with: Mapping[str, str]) -> bool:
    chosen = settings.spark.properties.get(_UI, started_with.get(_UI, "false"))
    return settings.spark.ui_port is not None or chosen.strip().lower() == "true"


def _ui_on(port: int | None) -> dict[str, str]:
    return {} if port is None else {_UI: "true", "spark.ui.port": str(port)}


def _ui_off() -> dict[str, str]:
    return {
        _UI: "false",
        # Spark keeps for the UI what it would show of a thousand batches, and writes out each plan.
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "200",
        "spark.ui.liveUpdate.period": "-1",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.sql.ui.explainMode": "simple",
    }
