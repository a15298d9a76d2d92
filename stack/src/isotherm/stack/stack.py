"""The stack: all servers of one folder, started in parallel."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from isotherm.stack.artifacts import Artifacts
from isotherm.stack.ports import Ports
from isotherm.stack.servers.cassandra import Cassandra
from isotherm.stack.servers.connect import Connect
from isotherm.stack.servers.elasticsearch import Elasticsearch
from isotherm.stack.servers.hazelcast import DEFAULT_BACKUPS, Hazelcast, SecondHazelcast
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry
from isotherm.stack.servers.server import (
    READY_TIMEOUT_S,
    Runtime,
    Server,
    wait_all_ready,
)

DEFAULT_FOLDER = Path(".stack")


class UnknownServer(ValueError):
    """No server of the stack has this name."""


class Stack:
    """The servers of one folder. Several stacks run side by side when folders and ports differ.

    ``detached`` servers outlive this process; others end with it, even when it is killed. For benches set
    ``quick_start`` to False (:class:`isotherm.stack.servers.server.Runtime`).
    """

    def __init__(
        self,
        folder: Path = DEFAULT_FOLDER,
        ports: Ports | None = None,
        *,
        artifacts: Artifacts | None = None,
        hazelcast_backups: int = DEFAULT_BACKUPS,
        detached: bool = False,
        quick_start: bool = True,
    ) -> None:
        self.folder = folder.absolute()
        self.ports = ports or Ports()
        self.artifacts = artifacts or Artifacts()
        runtime = Runtime(self.artifacts, detached=detached, quick_start=quick_start)
        self._make_kafka(runtime)
        self._make_stores(runtime, hazelcast_backups)
        self._standard: list[Server] = [
            self.kafka,
            self.registry,
            self.elasticsearch,
            self.cassandra,
            self.hazelcast,
        ]
        every = [*self._standard, self.hazelcast_second, self.connect]
        self.servers: dict[str, Server] = {server.name: server for server in every}

    def _make_kafka(self, runtime: Runtime) -> None:
        """Kafka, the schema registry and Kafka Connect."""
        ports = self.ports
        self.kafka = Kafka(self.folder / "kafka", runtime, port=ports.kafka, controller_port=ports.kafka_controller)
        self.registry = Registry(self.folder / "registry", runtime, port=ports.registry)
        bootstrap = self.kafka.bootstrap_servers
        self.connect = Connect(self.folder / "connect", runtime, port=ports.connect, bootstrap_servers=bootstrap)

    def _make_stores(self, runtime: Runtime, hazelcast_backups: int) -> None:
        """Elasticsearch, Cassandra and the two members of Hazelcast."""
        ports = self.ports
        self.elasticsearch = Elasticsearch(
            self.folder / "elasticsearch",
            runtime,
            port=ports.elasticsearch,
            transport_port=ports.elasticsearch_transport,
        )
        self.cassandra = Cassandra(
            self.folder / "cassandra",
            runtime,
            port=ports.cassandra,
            storage_port=ports.cassandra_storage,
            jmx_port=ports.cassandra_jmx,
        )
        members = (ports.hazelcast, ports.hazelcast_second)
        self.hazelcast = Hazelcast(
            self.folder / "hazelcast",
            runtime,
            port=ports.hazelcast,
            member_ports=members,
            backups=hazelcast_backups,
        )
        self.hazelcast_second = SecondHazelcast(
            self.folder / "hazelcast-second",
            runtime,
            port=ports.hazelcast_second,
            member_ports=members,
            backups=hazelcast_backups,
        )

    def select(self, names: Iterable[str] | None = None) -> list[Server]:
        """The servers with these names. Raises UnknownServer.

        Without names: the suite's five servers, and the second Hazelcast member and Connect if they run.
        """
        if names is None:
            return [server for server in self.servers.values() if server in self._standard or server.alive()]
        chosen = []
        for name in names:
            if name not in self.servers:
                raise UnknownServer(f"unknown server {name!r}; known are {', '.join(self.servers)}")
            chosen.append(self.servers[name])
        return chosen

    def up(self, names: Iterable[str] | None = None, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start servers in parallel and wait until each answers; running servers are left alone.

        When one fails, the servers that this call started are stopped again. Raises ServerFailed, ArtifactError or
        UnknownServer.
        """
        chosen = self.select(names)
        started: list[Server] = []
        try:
            for server in chosen:
                if not server.alive():
                    started.append(server)
                    server.start()
            wait_all_ready(chosen, timeout_s)
        except BaseException:
            stop_all(started)
            raise

    def down(self, names: Iterable[str] | None = None) -> None:
        """Stop servers and keep their data."""
        stop_all(self.select(names))

    def wipe(self, names: Iterable[str] | None = None) -> None:
        """Delete the data of stopped servers. Raises ServerFailed when one runs."""
        for server in self.servers.values() if names is None else self.select(names):
            server.wipe()


def stop_all(servers: Iterable[Server]) -> None:
    """Stop servers in parallel: ask all of them to end first, then wait for each."""
    chosen = list(servers)
    for server in chosen:
        server.ask_to_stop()
    for server in chosen:
        server.stop()
