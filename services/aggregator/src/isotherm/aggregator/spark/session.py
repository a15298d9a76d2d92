"""Starts Spark in a JVM that ends with this process and that holds the lock of the checkpoint folder."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from importlib.resources import as_file, files
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import promised_properties
from isotherm.servicekit import logs
from isotherm.servicekit.settings import SettingsError

JARS = (
    "spark-sql-kafka-0-10_2.13-",
    "spark-token-provider-kafka-0-10_2.13-",
    "spark-avro_2.13-",
    "kafka-clients-",
    "commons-pool2-",
    "hadoop-bare-naked-local-fs-",
)

MAX_AVRO_FIELD_BYTES = 16 * 1024 * 1024
"""Limit of Avro's allocations. A corrupt length could otherwise allocate 2 GiB and end the JVM by OutOfMemoryError."""

_DRIVER_CLASS_PATH = "spark.driver.extraClassPath"
_EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"

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
_JVM_END_TIMEOUT_S = 10.0
_STDERR = 2
"""The standard error of this process, where the JVM writes its log."""

_log = logs.logger(__name__)


def find_jars(folder: Path) -> list[Path]:
    """Return the jars that the service adds to Spark's own. Raises SettingsError naming the missing ones."""
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
    """Verify that Spark will find a Java runtime. Raises SettingsError."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java", path=f"{home}/bin" if home else None)
    if command is None:
        where = f"JAVA_HOME={home!r} has no bin/java" if home else "neither JAVA_HOME nor PATH leads to a java"
        raise SettingsError([f"Spark needs Java 17 or newer: {where}"])


def configuration(settings: AggregatorSettings, work_folder: Path, log_configuration: Path) -> dict[str, str]:
    """Return every `spark.*` property that the service sets.

    The setting `spark.properties` overrides them, but for those on which a promise rests. It adds to the class path of
    the driver and to the executors' options.
    """
    java_options = (
        f"-Dlog4j2.configurationFile={log_configuration}",
        # Avro's fast reader is built once for each schema; the other reader walks the schema for every value.
        "-Dorg.apache.avro.fastread=true",
        f"-Dorg.apache.avro.limits.string.maxLength={MAX_AVRO_FIELD_BYTES}",
        f"-Dorg.apache.avro.limits.bytes.maxLength={MAX_AVRO_FIELD_BYTES}",
        f"-Dorg.apache.avro.limits.collectionItems.maxLength={MAX_AVRO_FIELD_BYTES}",
    )
    jars = find_jars(settings.jars_dir.absolute())
    # Hadoop keeps the first file system that it makes for a scheme, and spark-submit makes one before it adds the jars.
    given = settings.spark.properties
    class_path = [str(jars[-1]), given.get(_DRIVER_CLASS_PATH, "")]
    # Throughput matters more than pauses (ADR 0034). The JVM refuses to start with two collectors.
    collector = () if _COLLECTOR.search(settings.spark.java_options) else ("-XX:+UseParallelGC",)
    return {
        "spark.app.name": "isotherm-aggregator",
        "spark.master": settings.spark.master,
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.driver.extraJavaOptions": " ".join(
            [*java_options, *collector, *_COMPILER, *_shared_classes(settings), settings.spark.java_options]
        ).strip(),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(work_folder),
        "spark.sql.warehouse.dir": str(work_folder / "warehouse"),
        # A large batch of rejects must not keep the cores from a small batch of windows.
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The UI is off, but Spark keeps for it what it would show of a thousand batches, and writes out each plan.
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "200",
        "spark.ui.liveUpdate.period": "-1",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.adaptive.enabled": "false",
        # More batches than can pass between two reads of the progress: the driver may wait for Kafka in between.
        "spark.sql.streaming.numRecentProgressUpdates": "500",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.cleaner.periodicGC.interval": "10min",
        **given,
        **promised_properties.FIXED,
        _DRIVER_CLASS_PATH: os.pathsep.join(filter(None, class_path)),
        _EXECUTOR_OPTIONS: " ".join([*java_options[1:], given.get(_EXECUTOR_OPTIONS, "")]).strip(),
    }


def _shared_classes(settings: AggregatorSettings) -> list[str]:
    archive = settings.spark.class_archive
    if archive is None:
        return []
    if not archive.exists():
        _log.warning("there is no archive of classes, Spark starts slower", class_archive=str(archive))
        return []
    # Spark starts in a folder of its own. The JVM splits a list of archives at colons.
    return [f"-XX:SharedArchiveFile={archive.absolute()}"]


def end_jvm(process: subprocess.Popen[bytes], timeout_s: float = _JVM_END_TIMEOUT_S) -> None:
    """End a JVM whose Spark has stopped, by ending its standard input, or by a kill after `timeout_s` seconds.

    Nothing is left to do in it, so a kill loses nothing, but while it lives it holds the lock of the checkpoint.
    """
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _log.warning("the JVM does not end, killing it", jvm_pid=process.pid, waited_s=timeout_s)
        process.kill()
        process.wait()


class Spark:
    """One Spark session in one JVM that ends with this process.

    The JVM reads its standard input and exits at the end of it, so it exits after this process is killed, too. It
    inherits `lock_descriptor`, so that the checkpoint folder stays locked until the JVM is gone. `work_folder` holds
    Spark's temporary files.
    """

    def __init__(self, settings: AggregatorSettings, work_folder: Path, lock_descriptor: int | None = None) -> None:
        # A failure in a callback ends the query, and the service logs that failure once.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        self._work_folder = work_folder
        # A killed process left its files here. The lock guarantees that no process uses them any more.
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
                # The JVM writes warnings of its own to standard output, which belongs to the result of `recompute`.
                "stdout": _STDERR,
                # A signal to the process group must not reach the JVM: the service stops the queries first.
                "start_new_session": True,
            },
        )
        self.session = SparkSession(SparkContext(gateway=self._gateway, conf=conf))

    @property
    def jvm_pid(self) -> int:
        """The process id of the JVM."""
        return int(self._gateway.proc.pid)

    def stop(self, timeout_s: float = _JVM_END_TIMEOUT_S) -> None:
        """Stop Spark and return when its JVM has ended. The JVM is killed if it has not ended after `timeout_s`."""
        self.session.stop()
        self._gateway.shutdown()
        end_jvm(self._gateway.proc, timeout_s)
        # PySpark would otherwise connect the next session of this process to the JVM that has ended.
        SparkContext._gateway = None
        SparkContext._jvm = None
        shutil.rmtree(self._work_folder, ignore_errors=True)
