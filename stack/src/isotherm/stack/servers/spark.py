"""A standalone cluster of Spark: a master and workers, from the jars of this environment's pyspark."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers import probes
from isotherm.stack.servers.java_server import JavaServer
from isotherm.stack.servers.server import Launch, Runtime, ServerFailed

_PROBE_TIMEOUT_S = 5.0

# What `spark-class` adds for Java 17 (org.apache.spark.launcher.JavaModuleOptions), as far as a master or worker needs.
MODULES = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.lang.invoke", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")
)


def spark_home() -> Path:
    """Return the folder of pyspark, which holds all of Spark. Raises ServerFailed when pyspark is not installed."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ServerFailed("a Spark cluster needs pyspark, which is not installed in this Python")
    return Path(found.origin).parent


class _SparkDaemon(JavaServer):
    """A master or a worker with its web page, which also answers as JSON."""

    def __init__(self, folder: Path, runtime: Runtime, *, port: int, page_port: int) -> None:
        super().__init__(folder, runtime)
        self.port = port
        self.page_port = page_port

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port, self.page_port)

    @property
    def address(self) -> str:
        return f"spark://{LOOPBACK}:{self.port}"

    def _launch(self, main_class: str, arguments: Sequence[str]) -> Launch:
        home = spark_home()
        options = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", *self.runtime.jit_options(), *MODULES]
        options.append("-Dspark.master.rest.enabled=false")
        listen = ["--host", LOOPBACK, "--port", str(self.port), "--webui-port", str(self.page_port)]
        launch = self.java_launch(
            self.runtime.artifacts.folder("spark"),
            options,
            ["-cp", f"{home}/jars/*", main_class],
            [*listen, *arguments],
        )
        launch.environment.update(
            {
                "SPARK_HOME": str(home),
                "SPARK_CONF_DIR": str(self.conf_folder),
                "SPARK_LOCAL_IP": LOOPBACK,
                # Of the jars of Spark 4. A worker needs it to start an executor; `load-spark-env.sh` sets it elsewhere.
                "SPARK_SCALA_VERSION": "2.13",
            }
        )
        return launch


class SparkMaster(_SparkDaemon):
    """The master of a standalone cluster; it knows its workers and applications only while it runs."""

    name: str = "spark-master"

    def prepare(self) -> Launch:
        return self._launch("org.apache.spark.deploy.master.Master", [])

    def is_ready(self) -> bool:
        return self.state().get("status") == "ALIVE"

    def state(self) -> dict[str, Any]:
        """Return what the master says of its workers and applications; empty while it does not answer."""
        answer = probes.get(self.page_port, "/json/", _PROBE_TIMEOUT_S)
        if answer is None or not answer.is_ok:
            return {}
        try:
            found: dict[str, Any] = answer.json()
        except ValueError:
            # While the master starts, its page answers for every path that it does not know yet.
            return {}
        return found


class SparkWorker(_SparkDaemon):
    """A worker of a standalone cluster: it starts the executors, which are in its process group."""

    name: str = "spark-worker"

    def __init__(
        self, folder: Path, runtime: Runtime, *, port: int, page_port: int, master: SparkMaster, cores: int = 1
    ) -> None:
        """`cores` is how many tasks of all its executors run at a time. They get 1 GiB of memory together."""
        super().__init__(folder, runtime, port=port, page_port=page_port)
        self._master = master
        self._cores = cores

    def prepare(self) -> Launch:
        arguments = ["--cores", str(self._cores), "--memory", "1g", "--work-dir", str(self.data_folder)]
        return self._launch("org.apache.spark.deploy.worker.Worker", [*arguments, self._master.address])

    def is_ready(self) -> bool:
        workers = self._master.state().get("workers", [])
        return any(worker["port"] == self.port and worker["state"] == "ALIVE" for worker in workers)

    def executor_logs(self) -> list[Path]:
        """Return the log of every executor that it has started."""
        return sorted(self.data_folder.glob("*/*/stderr"))
