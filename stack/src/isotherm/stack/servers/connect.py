"""A Kafka Connect worker with the file connectors: the control plane whose behaviour ours is compared with."""

from __future__ import annotations

from pathlib import Path

from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers import probes
from isotherm.stack.servers.java_server import JavaServer
from isotherm.stack.servers.kafka import CONSOLE_LOGGING
from isotherm.stack.servers.server import Launch, Runtime

_PROBE_TIMEOUT_S = 5.0

# One worker: no delay before the tasks of a lost one are given to others, and topics without replicas. On a busy
# machine it may need long to read its configurations; by default it would give up after 3 s and then do nothing for
# five minutes.
_PROPERTIES = """\
bootstrap.servers={bootstrap_servers}
group.id=connect
listeners=http://{host}:{port}
plugin.path={plugins}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
config.storage.topic=connect-configs
offset.storage.topic=connect-offsets
status.storage.topic=connect-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=1
status.storage.partitions=1
offset.flush.interval.ms=1000
scheduled.rebalance.max.delay.ms=0
worker.sync.timeout.ms=30000
worker.unsync.backoff.ms=500
"""

_LOGGING = f"{CONSOLE_LOGGING}rootLogger.level=WARN\n"


class Connect(JavaServer):
    """One distributed worker of Apache Kafka Connect; its state is in Kafka's topics `connect-*`."""

    name: str = "connect"

    def __init__(self, folder: Path, runtime: Runtime, *, port: int, bootstrap_servers: str) -> None:
        super().__init__(folder, runtime)
        self.port = port
        self.bootstrap_servers = bootstrap_servers
        self.plugin_folders: tuple[Path, ...] = ()
        """Folders with connectors beside those of Apache Kafka; to be set before the start."""

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port,)

    @property
    def url(self) -> str:
        """Base address of the REST API."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def address(self) -> str:
        return self.url

    def prepare(self) -> Launch:
        jars = self.runtime.artifacts.folder("kafka")
        properties = self.conf_folder / "connect.properties"
        properties.write_text(
            _PROPERTIES.format(
                bootstrap_servers=self.bootstrap_servers,
                host=LOOPBACK,
                port=self.port,
                plugins=",".join(map(str, (self.runtime.artifacts.folder("connect"), *self.plugin_folders))),
            ),
            encoding="utf-8",
        )
        logging = self.conf_folder / "log4j2.properties"
        logging.write_text(_LOGGING, encoding="utf-8")
        options = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", *self.runtime.jit_options()]
        options += [f"-Dlog4j2.configurationFile={logging}"]
        classes = ["-cp", f"{jars}/*", "org.apache.kafka.connect.cli.ConnectDistributed"]
        return self.java_launch(jars, options, classes, [str(properties)])

    def is_ready(self) -> bool:
        """Tell whether the worker has joined its group: before, the list of connectors is refused."""
        answer = probes.get(self.port, "/connectors", _PROBE_TIMEOUT_S)
        return answer is not None and answer.is_ok
