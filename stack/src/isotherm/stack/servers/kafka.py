"""Apache Kafka in KRaft mode: nodes that are broker and controller in one process, alone or as a cluster."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from isotherm.stack.java import find_java
from isotherm.stack.kafka import access, metadata
from isotherm.stack.kafka.access import ADMIN
from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers.java_server import JavaServer
from isotherm.stack.servers.server import Launch, Runtime, ServerFailed

NODE_ID = 1
_CHECKPOINT = "bootstrap.checkpoint"

# Room for a dead letter: a record of 1 MiB plus the headers that say what was wrong with it.
MESSAGE_MAX_BYTES = 1_310_720

# After a kill the controller refuses the new process until the session of the old one has run out: with
# Kafka's default of 9 s a restart takes 12 s instead of 5.
_SESSION_TIMEOUT_MS = 3_000

# One thread collects in a few milliseconds what two hundred readings a second leave behind, and keeps the heap small.
_SMALL_HEAP = ("-Xms96m", "-Xmx512m", "-XX:+UseSerialGC")
_BENCH_HEAP = ("-Xms256m", "-Xmx768m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")

_PROPERTIES = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=CLIENTS://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=CLIENTS://{host}:{advertised_port}
listener.security.protocol.map=CLIENTS:{protocol},CONTROLLER:{protocol}
inter.broker.listener.name=CLIENTS
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor={copies}
min.insync.replicas={in_sync}
message.max.bytes={message_max_bytes}
offsets.topic.num.partitions=4
offsets.topic.replication.factor={copies}
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms={session_timeout_ms}
broker.heartbeat.interval.ms=500
replica.lag.time.max.ms={replica_lag_ms}
metadata.max.idle.interval.ms={idle_interval_ms}
num.network.threads=2
num.io.threads=4
background.threads=2
log.cleaner.enable=true
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=8388608
log.segment.bytes=134217728
log.index.size.max.bytes=1048576
"""

CONSOLE_LOGGING = """\
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %m (%c)%n%throwable
rootLogger.appenderRef.console.ref=console
"""
"""Log4j 2's properties for a server of Kafka's artifacts; the root logger's level is still to be given."""

_LOGGING = f"""\
{CONSOLE_LOGGING}\
rootLogger.level=INFO
logger.config.name=org.apache.kafka.common.config.AbstractConfig
logger.config.level=WARN
"""


_MAX_COPIES = 3
_IDLE_INTERVAL_MS = 500
"""Kafka's default, for the nodes of a cluster: followers learn from it that they are not behind."""

_REPLICA_LAG_MS = 10_000
"""How long a follower that does not fetch holds up the acknowledgements of its leader (Kafka's default: 30 s)."""


class NodePorts(NamedTuple):
    """The ports of one node of a cluster."""

    port: int
    controller_port: int
    advertised_port: int
    """Where clients and the other brokers find the node: `port`, or a relay's."""


class Kafka(JavaServer):
    """One Kafka broker; topics have to be created, since it creates none by itself.

    ``cluster`` has the ports of all nodes of its cluster; node 1 is the first of them. With three nodes there are three
    copies of each record, and a producer with ``acks=all`` is told of success when at least two nodes have it.
    With ``users`` (passwords by name) clients have to log in by SASL/PLAIN, and may do only what an ACL allows them;
    the user ``admin``, who must be among them, may do everything.
    """

    name: str = "kafka"

    def __init__(
        self,
        folder: Path,
        runtime: Runtime,
        *,
        port: int,
        controller_port: int,
        node_id: int = NODE_ID,
        cluster: Sequence[NodePorts] = (),
        users: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, runtime)
        self.users = dict(users or {})
        self.port = port
        self.controller_port = controller_port
        self.node_id = node_id
        self.cluster = tuple(cluster) or (NodePorts(port, controller_port, port),)
        if node_id != NODE_ID:
            self.name = f"kafka-{node_id}"

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port, self.controller_port)

    @property
    def bootstrap_servers(self) -> str:
        """Value for a client's ``bootstrap.servers``: all nodes."""
        return ",".join(f"{LOOPBACK}:{node.advertised_port}" for node in self.cluster)

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def prepare(self) -> Launch:
        jars = self.runtime.artifacts.folder("kafka")
        properties = self.conf_folder / "server.properties"
        properties.write_text(self.render_properties(), encoding="utf-8")
        logging = self.conf_folder / "log4j2.properties"
        logging.write_text(_LOGGING + (access.LOGGING if self.users else ""), encoding="utf-8")
        self._format_once(jars, properties)
        options = [*(_SMALL_HEAP if self.runtime.quick_start else _BENCH_HEAP)]
        options += [f"-Dlog4j2.configurationFile={logging}"]
        return self.java_launch(jars, options, ["-cp", f"{jars}/*", "kafka.Kafka"], [str(properties)])

    def render_properties(self) -> str:
        """Return the text of ``server.properties``."""
        copies = min(_MAX_COPIES, len(self.cluster))
        voters = (f"{number}@{LOOPBACK}:{node.controller_port}" for number, node in enumerate(self.cluster, NODE_ID))
        return (access.properties(self.users) if self.users else "") + _PROPERTIES.format(
            protocol=access.PROTOCOL if self.users else "PLAINTEXT",
            node_id=self.node_id,
            voters=",".join(voters),
            copies=copies,
            in_sync=max(1, copies - 1),
            idle_interval_ms=_IDLE_INTERVAL_MS if len(self.cluster) > 1 else 0,
            host=LOOPBACK,
            port=self.port,
            advertised_port=self.cluster[self.node_id - NODE_ID].advertised_port,
            replica_lag_ms=_REPLICA_LAG_MS,
            controller_port=self.controller_port,
            data=self.data_folder,
            message_max_bytes=MESSAGE_MAX_BYTES,
            session_timeout_ms=_SESSION_TIMEOUT_MS,
        )

    def is_ready(self) -> bool:
        """Tell whether the broker takes requests: it knows itself as registered and not fenced."""
        known = self.ask_metadata(())
        return known is not None and self.node_id in known.brokers

    def ask_metadata(self, topics: Sequence[str] | None) -> metadata.Metadata | None:
        """Return what the node knows of these topics (None: of all); None when it does not answer in 2 s."""
        login = metadata.Login(ADMIN, self.users[ADMIN]) if self.users else None
        return metadata.ask(self.port, topics, login)

    def client_properties(self, user: str) -> dict[str, str]:
        """Return librdkafka's properties by which a client logs in as one of ``users``; empty without users."""
        return access.client_properties(user, self.users[user]) if self.users else {}

    def access_log(self, since: int = 0) -> access.AccessLog:
        """Return what the authorizer has decided since its log had so many bytes; empty without users."""
        with self.log_path.open("rb") as log:
            log.seek(since)
            return access.read_log(log.read().decode(errors="replace"))

    def _format_once(self, jars: Path, properties: Path) -> None:
        """Format the data folder as ``kafka-storage format`` does, but start that JVM once per Kafka version.

        The checkpoint it writes holds only feature levels, the same for every cluster, so it is kept in the
        cache; the identity of cluster and folder is in ``meta.properties``.
        """
        meta = self.data_folder / "meta.properties"
        if meta.exists():
            return
        cached = jars.parent / _CHECKPOINT
        if not cached.exists():
            self._write_checkpoint(jars, properties, cached)
        shutil.copyfile(cached, self.data_folder / _CHECKPOINT)
        lines = [f"node.id={self.node_id}", f"directory.id={_kafka_uuid()}", "version=1"]
        lines += [f"cluster.id={self._cluster_id()}"]
        partial = meta.with_suffix(".partial")
        partial.write_text("\n".join(lines) + "\n", encoding="ascii")
        partial.replace(meta)

    def _cluster_id(self) -> str:
        """Return the same identity for each node of a cluster; a node that is alone gets a new one."""
        shared = uuid.uuid5(uuid.NAMESPACE_URL, str(self.folder.parent))
        return _kafka_uuid(shared if len(self.cluster) > 1 else uuid.uuid4())

    def _write_checkpoint(self, jars: Path, properties: Path, target: Path) -> None:
        command = [find_java().command, "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
        command += ["kafka.tools.StorageTool", "format", "-t", _kafka_uuid(), "-c", str(properties)]
        result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if result.returncode != 0:
            raise ServerFailed(f"kafka: formatting {self.data_folder} failed:\n{result.stdout}{result.stderr}")
        partial = target.with_name(f"{_CHECKPOINT}.{os.getpid()}")
        shutil.copyfile(self.data_folder / _CHECKPOINT, partial)
        partial.replace(target)


def accepts_connections(port: int) -> bool:
    """Tell whether something listens on a port of 127.0.0.1."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0):
            return True
    except OSError:
        return False


def _kafka_uuid(number: uuid.UUID | None = None) -> str:
    return base64.urlsafe_b64encode((number or uuid.uuid4()).bytes).decode("ascii").rstrip("=")
