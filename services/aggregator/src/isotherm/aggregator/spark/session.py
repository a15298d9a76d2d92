"""Spark's JVM: how it is started, so that it never outlives its purpose and never shares a checkpoint."""

from __future__ import annotations

import logging
import os
import re
import shutil
from importlib.resources import as_file, files
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.servicekit.settings import SettingsError

JARS = (
    "spark-sql-kafka-0-10_2.13-",
    "spark-token-provider-kafka-0-10_2.13-",
    "spark-avro_2.13-",
    "kafka-clients-",
    "commons-pool2-",
)

MAX_AVRO_FIELD_BYTES = 16 * 1024 * 1024
"""A corrupt length would otherwise have Avro allocate up to 2 GiB, and an OutOfMemoryError is no dead letter."""

_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_JVM_END_TIMEOUT_S = 10.0


def find_jars(folder: Path) -> list[Path]:
    """The five jars beside Spark's own. Raises SettingsError naming those that are missing."""
    found, problems = [], []
    for prefix in JARS:
        matching = sorted(folder.glob(f"{prefix}*.jar"))
        if len(matching) == 1:
            found.append(matching[0])
        else:
            problems.append(
                f"jars_dir: {str(folder)!r} is not allowed: it holds {len(matching)} files {prefix}*.jar, must be 1"
            )
    if problems:
        raise SettingsError(problems)
    return found


def find_java() -> None:
    """Check that Spark will find a Java. Raises SettingsError."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java", path=f"{home}/bin" if home else None)
    if command is None:
        where = f"JAVA_HOME={home!r} has no bin/java" if home else "neither JAVA_HOME nor PATH leads to a java"
        raise SettingsError([f"Spark needs Java 17 or newer: {where}"])


def configuration(settings: AggregatorSettings, work_folder: Path, log_configuration: Path) -> dict[str, str]:
    """Every `spark.*` property that the service sets; `spark.properties` of the settings win."""
    java_options = (
        f"-Dlog4j2.configurationFile={log_configuration}",
        # Avro's reader that is put together once for a schema, instead of walking the schema for every value.
        "-Dorg.apache.avro.fastread=true",
        f"-Dorg.apache.avro.limits.string.maxLength={MAX_AVRO_FIELD_BYTES}",
        f"-Dorg.apache.avro.limits.bytes.maxLength={MAX_AVRO_FIELD_BYTES}",
        f"-Dorg.apache.avro.limits.collectionItems.maxLength={MAX_AVRO_FIELD_BYTES}",
    )
    # Throughput before pauses (ADR 34); the JVM refuses to start with two collectors.
    collector = () if _COLLECTOR.search(settings.spark.java_options) else ("-XX:+UseParallelGC",)
    return {
        "spark.app.name": "isotherm-aggregator",
        "spark.master": settings.spark.master,
        "spark.jars": ",".join(str(jar) for jar in find_jars(settings.jars_dir.absolute())),
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.driver.extraJavaOptions": " ".join([*java_options, *collector, settings.spark.java_options]).strip(),
        "spark.executor.extraJavaOptions": " ".join(java_options[1:]),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(work_folder),
        "spark.sql.warehouse.dir": str(work_folder / "warehouse"),
        # A large batch of rejects must not keep a small one of windows from the cores.
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.adaptive.enabled": "false",
        # A record must not be able to end the query: out-of-range values become null or wrap, and are refused.
        "spark.sql.ansi.enabled": "false",
        # More batches than there can be between two looks: the driver may wait for Kafka or the registry meanwhile.
        "spark.sql.streaming.numRecentProgressUpdates": "500",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.cleaner.periodicGC.interval": "10min",
        **settings.spark.properties,
    }


class Spark:
    """One Spark session in one JVM that ends with this process.

    The JVM reads its standard input and ends at its end, also when this process was killed. It inherits
    `lock_descriptor`, if any, so that the checkpoint folder stays locked until it is really gone. Spark's temporary
    files are in `work_folder`.
    """

    def __init__(self, settings: AggregatorSettings, work_folder: Path, lock_descriptor: int | None = None) -> None:
        # What fails in a callback ends the query, and the service logs that once.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        self._work_folder = work_folder
        # Whoever was killed here before left files behind; the lock says that nobody uses them any more.
        shutil.rmtree(work_folder, ignore_errors=True)
        work_folder.mkdir(parents=True)
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf = SparkConf(loadDefaults=False)
        with as_file(files("isotherm.aggregator") / "log4j2.properties") as packaged:
            log_configuration = shutil.copy(packaged, self._work_folder)
        conf.setAll(list(configuration(settings, self._work_folder, Path(log_configuration)).items()))
        self._gateway = launch_gateway(  # type: ignore[no-untyped-call]  # it has no annotations
            conf,
            {
                "pass_fds": () if lock_descriptor is None else (lock_descriptor,),
                "cwd": self._work_folder,
                # A signal to our process group is for us: we stop the queries before the JVM goes.
                "start_new_session": True,
            },
        )
        self.session = SparkSession(SparkContext(gateway=self._gateway, conf=conf))

    @property
    def jvm_pid(self) -> int:
        """The process id of the JVM."""
        return int(self._gateway.proc.pid)

    def stop(self) -> None:
        """Stop Spark and return when its JVM is gone."""
        self.session.stop()
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()
        self._gateway.proc.wait(_JVM_END_TIMEOUT_S)
        # PySpark would lead the next session of this process to the JVM that is gone.
        SparkContext._gateway = None
        SparkContext._jvm = None
        shutil.rmtree(self._work_folder, ignore_errors=True)
