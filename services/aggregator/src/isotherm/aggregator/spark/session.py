"""The Spark session of the service, in a JVM that it has started or that `spark-submit` has started."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import promised_properties, properties
from isotherm.aggregator.spark.gateway import (
    JVM_END_TIMEOUT_S,
    Gateway,
    find_jars,
    find_java,
    is_submitted,
    keep_signal_handler,
    verify_jvm_is_free_to_choose,
)
from isotherm.servicekit import logs
from isotherm.servicekit.settings import SettingsError

_TESTED_VERSION = "4.2."
_NEEDED = {
    "org.apache.spark.sql.kafka010.KafkaSourceProvider": "org.apache.spark:spark-sql-kafka-0-10_2.13",
    "org.apache.spark.sql.avro.AvroDataToCatalyst": "org.apache.spark:spark-avro_2.13",
}
"""A class of each of the packages that Spark itself does not contain, with the package's name for `--packages`."""

_log = logs.logger(__name__)


def verify(settings: AggregatorSettings) -> None:
    """Raise SettingsError for everything about Spark that is wrong and visible before a JVM is asked."""
    promised_properties.verify(settings.spark.properties, settings.checkpoint_dir)
    if is_submitted():
        verify_jvm_is_free_to_choose(settings)
        return
    find_java()
    if settings.jars_dir is not None:
        find_jars(settings.jars_dir)


class Spark:
    """One Spark session."""

    def __init__(self, settings: AggregatorSettings, work_folder: Path) -> None:
        """Start Spark. Raises SettingsError when Spark was started with properties or jars that do not do.

        `work_folder` is for Spark's temporary files, and for nothing else: it is emptied now and deleted at the end.
        """
        # A failure in a callback ends the query, and the service logs that failure once.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        self._work_folder = work_folder
        # A killed process left its files here.
        shutil.rmtree(work_folder, ignore_errors=True)
        work_folder.mkdir(parents=True)
        restore_signal_handler = keep_signal_handler()
        self._gateway = Gateway(settings, work_folder)
        try:
            conf = _configuration(settings, self._gateway)
            self.jvm_pid = self._gateway.jvm_pid
            """The process id of the JVM."""
            self.session = SparkSession(SparkContext(gateway=self._gateway.java, conf=conf))
        except BaseException:
            self._end(JVM_END_TIMEOUT_S)
            raise
        restore_signal_handler()

    def kill(self) -> None:
        """Kill the JVM, and whatever it writes."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.jvm_pid, signal.SIGKILL)

    def when_jvm_ends(self, request_stop: Callable[[], None], timeout_s: float) -> None:
        """Call `request_stop` when `spark-submit` is to end, which then waits for `stop`, at most `timeout_s`."""
        self._gateway.when_jvm_ends(request_stop, timeout_s)

    def stop(self, timeout_s: float = JVM_END_TIMEOUT_S) -> None:
        """Stop Spark, and return when a JVM that the service has started has ended.

        That JVM is killed if it has not ended after `timeout_s`.
        """
        self.session.stop()
        self._end(timeout_s)

    def _end(self, timeout_s: float) -> None:
        self._gateway.end(timeout_s)
        # PySpark would otherwise connect the next session of this process to the JVM that has ended.
        SparkContext._gateway = None
        SparkContext._jvm = None
        shutil.rmtree(self._work_folder, ignore_errors=True)


def _configuration(settings: AggregatorSettings, gateway: Gateway) -> SparkConf:
    _verify_version(gateway)
    _verify_classes(gateway)
    _limit_avro(gateway)
    # With the defaults: what spark-submit was given, on its command line or in spark-defaults.conf.
    conf = SparkConf(loadDefaults=True, _jvm=gateway.jvm)
    return conf.setAll(list(properties.of_session(settings, dict(conf.getAll()), gateway.has_class).items()))


def _verify_version(gateway: Gateway) -> None:
    """Raise SettingsError when the JVM runs another Spark than this Python has."""
    version = str(getattr(getattr(gateway.jvm.org.apache.spark, "package$"), "MODULE$").SPARK_VERSION())
    if version.split(".")[:2] != pyspark.__version__.split(".")[:2]:
        raise SettingsError(
            [
                f"SPARK_HOME: Spark {version} is not allowed: pyspark of this Python is {pyspark.__version__}, "
                "both must be one"
            ]
        )
    if not version.startswith(_TESTED_VERSION):
        _log.warning("this service is tested with another Spark", version=version, tested=f"{_TESTED_VERSION}0")


def _verify_classes(gateway: Gateway) -> None:
    problems = [
        f"jars_dir: this Spark has no {package}: set jars_dir for `run`, or give the package {package}:"
        f"{pyspark.__version__} (--packages, or --jars, or a Spark that contains it)"
        for name, package in _NEEDED.items()
        if not gateway.has_class(name)
    ]
    if problems:
        raise SettingsError(problems)


def _limit_avro(gateway: Gateway) -> None:
    """Bound what Avro allocates, in a JVM that has not used Avro yet. Raises SettingsError for a higher bound."""
    system, problems = gateway.jvm.java.lang.System, []
    if system.getProperty(properties.FAST_READER) is None:
        system.setProperty(properties.FAST_READER, "true")
    for name in properties.AVRO_LIMITS:
        value = system.getProperty(name)
        if value is None:
            system.setProperty(name, str(properties.MAX_AVRO_FIELD_BYTES))
        elif not value.isdecimal() or not 0 < int(value) <= properties.MAX_AVRO_FIELD_BYTES:
            problems.append(
                f"spark.driver.extraJavaOptions: -D{name}={value} is not allowed: must be 1 to "
                f"{properties.MAX_AVRO_FIELD_BYTES}, which bounds what a corrupt record can allocate"
            )
    if problems:
        raise SettingsError(problems)
