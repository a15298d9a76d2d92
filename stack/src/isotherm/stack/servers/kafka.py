"""Apache Kafka as a single node in KRaft mode (broker and controller in one process)."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import uuid
from pathlib import Path
from typing import ClassVar

from isotherm.stack.java import find_java
from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers.java_server import JavaServer
from isotherm.stack.servers.server import Launch, Runtime, ServerFailed

NODE_ID = 1
_CHECKPOINT = "bootstrap.checkpoint"
_PROBE_TIMEOUT_S = 2.0

# A Metadata request, version 1, without topics (Kafka protocol guide), as in docker-compose.yml. The
# third word of the answer counts the brokers that take requests: none as long as this one is fenced.
_METADATA_REQUEST = bytes.fromhex("0000000e 0003 0001 00000001 ffff 00000000")
_ANSWER_BYTES, _COUNT_AT = 12, 8

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
controller.quorum.voters={node_id}@{host}:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
message.max.bytes={message_max_bytes}
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms={session_timeout_ms}
broker.heartbeat.interval.ms=500
metadata.max.idle.interval.ms=0
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


class Kafka(JavaServer):
    """One Kafka broker; topics have to be created, since it creates none by itself."""

    name: ClassVar[str] = "kafka"

    def __init__(self, folder: Path, runtime: Runtime, *, port: int, controller_port: int) -> None:
        super().__init__(folder, runtime)
        self.port = port
        self.controller_port = controller_port

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port, self.controller_port)

    @property
    def bootstrap_servers(self) -> str:
        """Value for a client's ``bootstrap.servers``."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def address(self) -> str:
        return self.bootstrap_servers

    def prepare(self) -> Launch:
        jars = self.runtime.artifacts.folder("kafka")
        properties = self.conf_folder / "server.properties"
        properties.write_text(self.render_properties(), encoding="utf-8")
        logging = self.conf_folder / "log4j2.properties"
        logging.write_text(_LOGGING, encoding="utf-8")
        self._format_once(jars, properties)
        options = [*(_SMALL_HEAP if self.runtime.quick_start else _BENCH_HEAP)]
        options += [f"-Dlog4j2.configurationFile={logging}"]
        return self.java_launch(jars, options, ["-cp", f"{jars}/*", "kafka.Kafka"], [str(properties)])

    def render_properties(self) -> str:
        """Return the text of ``server.properties``."""
        return _PROPERTIES.format(
            node_id=NODE_ID,
            host=LOOPBACK,
            port=self.port,
            controller_port=self.controller_port,
            data=self.data_folder,
            message_max_bytes=MESSAGE_MAX_BYTES,
            session_timeout_ms=_SESSION_TIMEOUT_MS,
        )

    def is_ready(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=_PROBE_TIMEOUT_S) as connection:
                connection.sendall(_METADATA_REQUEST)
                answer = connection.recv(_ANSWER_BYTES, socket.MSG_WAITALL)
        except OSError:
            return False
        return len(answer) == _ANSWER_BYTES and int.from_bytes(answer[_COUNT_AT:]) > 0

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
        lines = [f"node.id={NODE_ID}", f"directory.id={_kafka_uuid()}", "version=1", f"cluster.id={_kafka_uuid()}"]
        partial = meta.with_suffix(".partial")
        partial.write_text("\n".join(lines) + "\n", encoding="ascii")
        partial.replace(meta)

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


def _kafka_uuid() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
