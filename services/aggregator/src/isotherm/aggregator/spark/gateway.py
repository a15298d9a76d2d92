"""The JVM of Spark: `spark-submit` has started it, or this process starts one that ends with it (ADR 0171).

Under `spark-submit` the JVM is the parent of this process and names its gateway in the environment. Otherwise the
service calls `spark-submit` itself, so both ways have the same configuration files, class paths and masters.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import properties
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

JVM_END_TIMEOUT_S = 10.0
_STDERR = 2
"""The standard error of this process, where the JVM writes its log."""
_STDIN = 0
_GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""The variable in which `spark-submit` names the port of its JVM to the program that it starts."""
_BEFORE_SPARK = 100
"""Priority of the service's shutdown hook in Hadoop's list. Spark's own are at most 50 and come later."""

_OF_THE_JVM = (
    "spark.master",
    "spark.submit.deployMode",
    "spark.jars",
    "spark.jars.packages",
    "spark.driver.memory",
    "spark.driver.extraClassPath",
)
"""Properties that have no effect on a JVM that runs."""

_log = logs.logger(__name__)


def is_submitted() -> bool:
    """Return whether `spark-submit` has started this process."""
    return _GATEWAY_VARIABLE in os.environ


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


def verify_jvm_is_free_to_choose(settings: AggregatorSettings) -> None:
    """Raise SettingsError naming each setting that has no effect, because `spark-submit` has started the JVM."""
    spark = settings.spark
    options = {"master": "--master", "driver_memory": "--driver-memory", "java_options": "--driver-java-options"}
    options["class_archive"] = "--driver-java-options -XX:SharedArchiveFile=FILE"
    problems = [
        f"spark.{name}: {str(getattr(spark, name))!r} is not allowed: spark-submit has started the JVM; use {option}"
        for name, option in options.items()
        if name in spark.model_fields_set
    ]
    problems += [
        f"spark.properties: {name}: {spark.properties[name]!r} is not allowed: spark-submit has started the JVM; give "
        "it to spark-submit"
        for name in _OF_THE_JVM
        if name in spark.properties
    ]
    if problems:
        raise SettingsError(problems)
    if settings.jars_dir is not None:
        _log.info("jars_dir is not used: spark-submit brings the jars", jars_dir=str(settings.jars_dir))


def end_jvm(process: subprocess.Popen[bytes], timeout_s: float = JVM_END_TIMEOUT_S) -> None:
    """End a JVM whose Spark has stopped, by ending its standard input, or by a kill after `timeout_s` seconds.

    Nothing is left to do in it, so a kill loses nothing.
    """
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _log.warning("the JVM does not end, killing it", jvm_pid=process.pid, waited_s=timeout_s)
        process.kill()
        process.wait()


class Gateway:
    """The way from Python to the JVM of Spark."""

    def __init__(self, settings: AggregatorSettings, work_folder: Path) -> None:
        """Take the JVM of `spark-submit`, or start one.

        A JVM that is started reads its standard input and exits at the end of it, so it exits after this process is
        killed, too. `work_folder` holds Spark's temporary files.
        """
        self._ended = threading.Event()
        if is_submitted():
            self.java = launch_gateway()  # type: ignore[no-untyped-call]  # it has no annotations
            # What spark-submit has read files with would be used for the checkpoint, too, whatever the session says.
            self.java.jvm.org.apache.hadoop.fs.FileSystem.closeAll()
        else:
            self.java = _launched(settings, work_folder)

    @property
    def jvm(self) -> Any:
        """Java's packages and classes, as py4j shows them."""
        return self.java.jvm

    @property
    def jvm_pid(self) -> int:
        """The process id of the JVM."""
        return int(self.jvm.java.lang.ProcessHandle.current().pid())

    def has_class(self, name: str) -> bool:
        """Return whether the JVM finds a class, among the jars that `spark-submit` has added, too."""
        resource = f"{name.replace('.', '/')}.class"
        return self.jvm.java.lang.Thread.currentThread().getContextClassLoader().getResource(resource) is not None

    def when_jvm_ends(self, request_stop: Callable[[], None], timeout_s: float) -> None:
        """Call `request_stop` when the JVM of `spark-submit` is to end, and let it wait until `end` or `timeout_s`.

        No effect on a JVM that the service has started: nobody else ends it.
        """
        if self.java.proc is not None:
            return
        ensure_callback_server_started(self.java)  # type: ignore[no-untyped-call]  # it has no annotations
        hooks = self.jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        seconds = self.jvm.java.util.concurrent.TimeUnit.SECONDS
        # Hadoop keeps hooks in a set. A Thread has Java's own hashCode; a Python object would have to have one.
        hook = self.jvm.java.lang.Thread(_Hook(request_stop, self._ended, timeout_s))
        # Hadoop's own bound comes on top: a hook that is late is left alone.
        hooks.addShutdownHook(hook, _BEFORE_SPARK, int(timeout_s) + 1, seconds)
        threading.Thread(target=_await_end_of_input, args=[request_stop], name="spark-submit", daemon=True).start()

    def end(self, timeout_s: float) -> None:
        """Leave the JVM of `spark-submit`, which ends after this process; end any other within `timeout_s` seconds."""
        self._ended.set()
        if self.java.proc is None:
            return
        self.java.shutdown()
        end_jvm(self.java.proc, timeout_s)


class _Hook:
    """A java.lang.Runnable that asks the service to stop, and returns when it has stopped."""

    def __init__(self, request_stop: Callable[[], None], ended: threading.Event, timeout_s: float) -> None:
        self._request_stop = request_stop
        self._ended = ended
        self._timeout_s = timeout_s

    def run(self) -> None:
        """Do so. Java calls this in a thread of its own."""
        self._request_stop()
        self._ended.wait(self._timeout_s)

    class Java:
        """What py4j has to know of it."""

        implements = ("java.lang.Runnable",)


def _await_end_of_input(request_stop: Callable[[], None]) -> None:
    """Call `request_stop` when a JVM is gone that was killed: it holds the other end of this process's input."""
    while os.read(_STDIN, 4096):
        pass
    request_stop()


def _launched(settings: AggregatorSettings, work_folder: Path) -> Any:
    archive = settings.spark.class_archive
    if archive is not None and not archive.exists():
        _log.warning("there is no archive of classes, Spark starts slower", class_archive=str(archive))
    if "SPARK_HOME" not in os.environ and "SPARK_CONF_DIR" not in os.environ:
        # Nobody has configured this Spark. One that somebody has may have a cluster, which must reach the driver.
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        if settings.spark.master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with as_file(files("isotherm.aggregator") / "log4j2.properties") as packaged:
        log_configuration = Path(shutil.copy(packaged, work_folder))
    jars = [] if settings.jars_dir is None else find_jars(settings.jars_dir.absolute())
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(properties.of_new_jvm(settings, work_folder, log_configuration, jars).items()))
    return launch_gateway(  # type: ignore[no-untyped-call]  # it has no annotations
        conf,
        {
            "cwd": work_folder,
            # The JVM writes warnings of its own to standard output, which belongs to the result of `recompute`.
            "stdout": _STDERR,
            # A signal to the process group must not reach the JVM: the service stops the queries first.
            "start_new_session": True,
        },
    )


def keep_signal_handler() -> Callable[[], None]:
    """Return a function that puts this process's handler of SIGINT back: PySpark's raises wherever the program is."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None  # PySpark sets none in another thread
    handler = signal.getsignal(signal.SIGINT)
    return lambda: None if handler is None else _set_sigint(handler)


def _set_sigint(handler: Any) -> None:
    signal.signal(signal.SIGINT, handler)
