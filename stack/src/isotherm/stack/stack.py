"""The stack: all servers of one folder, started in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from isotherm.stack.artifacts import Artifacts
from isotherm.stack.clusters import CassandraCluster, ElasticsearchCluster, HazelcastCluster, KafkaCluster, Nodes
from isotherm.stack.ports import LOOPBACK, Ports, hold_free_port
from isotherm.stack.servers.cassandra import Cassandra
from isotherm.stack.servers.connect import Connect
from isotherm.stack.servers.elasticsearch import (
    ELASTICSEARCH_9,
    OPENSEARCH_2,
    OPENSEARCH_3,
    Distribution,
    Elasticsearch,
)
from isotherm.stack.servers.hazelcast import DEFAULT_BACKUPS, Hazelcast, SecondHazelcast
from isotherm.stack.servers.kafka import Kafka, NodePorts
from isotherm.stack.servers.postgresql import Postgresql
from isotherm.stack.servers.registry import Registry
from isotherm.stack.servers.server import (
    READY_TIMEOUT_S,
    Runtime,
    Server,
    wait_all_ready,
)
from isotherm.stack.servers.storage.s3 import S3

DEFAULT_FOLDER = Path(".stack")


class UnknownServer(ValueError):
    """No server of the stack has this name."""


class Stack:
    """The servers of one folder. Several stacks run side by side when folders and ports differ.

    ``nodes`` says how many servers of a product form a cluster; ``kafka``, ``cassandra`` and so on are their first
    nodes. The ports of further nodes are chosen by this process, so a cluster cannot be detached. With
    ``advertised_brokers`` clients and brokers find the brokers at these ports, which are those of relays to them.
    With ``kafka_users`` (passwords by name, ``admin`` among them) Kafka asks for a login, and its authorizer refuses
    what no ACL allows. The registry needs no Kafka; Kafka Connect does not log in.
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
        nodes: Nodes | None = None,
        advertised_brokers: Sequence[int] = (),
        kafka_users: Mapping[str, str] | None = None,
        detached: bool = False,
        quick_start: bool = True,
    ) -> None:
        self.folder = folder.absolute()
        self.ports = ports or Ports()
        self.artifacts = artifacts or Artifacts()
        runtime = Runtime(self.artifacts, detached=detached, quick_start=quick_start)
        nodes = nodes or Nodes()
        self._make_kafka(runtime, nodes.kafka, advertised_brokers, kafka_users)
        self._make_stores(runtime, nodes)
        self._make_hazelcast(runtime, nodes.hazelcast, hazelcast_backups)
        self._standard: list[Server] = [
            *self.kafka_cluster.nodes,
            self.registry,
            *self.elasticsearch_cluster.nodes,
            *self.cassandra_cluster.nodes,
            *self.hazelcast_cluster.nodes,
        ]
        self.postgresql = Postgresql(self.folder / "postgresql", runtime, port=self.ports.postgresql)
        self.s3 = S3(self.folder / "s3", runtime, port=self.ports.s3)
        self.elasticsearch9 = self._search(runtime, "elasticsearch9", ELASTICSEARCH_9)
        self.opensearch = self._search(runtime, "opensearch", OPENSEARCH_3)
        self.opensearch2 = self._search(runtime, "opensearch2", OPENSEARCH_2)
        search = [self.elasticsearch9, self.opensearch, self.opensearch2]
        every = [*self._standard, self.hazelcast_second, self.connect, self.postgresql, self.s3, *search]
        self.servers: dict[str, Server] = {server.name: server for server in every}

    def _make_kafka(
        self, runtime: Runtime, brokers: int, advertised: Sequence[int], users: Mapping[str, str] | None
    ) -> None:
        """Kafka, the schema registry and Kafka Connect."""
        ports = self.ports
        pairs = _pairs_of_ports((ports.kafka, ports.kafka_controller), brokers)
        found_at = advertised or [port for port, _ in pairs]
        cluster = [NodePorts(*pair, found_at[number]) for number, pair in enumerate(pairs)]
        self.kafka_cluster = KafkaCluster(
            Kafka(
                self.folder / _numbered("kafka", number),
                runtime,
                port=node.port,
                controller_port=node.controller_port,
                node_id=number,
                cluster=cluster,
                users=users,
            )
            for number, node in enumerate(cluster, 1)
        )
        self.kafka = self.kafka_cluster.nodes[0]
        self.registry = Registry(self.folder / "registry", runtime, port=ports.registry)
        bootstrap = self.kafka.bootstrap_servers
        self.connect = Connect(self.folder / "connect", runtime, port=ports.connect, bootstrap_servers=bootstrap)

    def _make_stores(self, runtime: Runtime, nodes: Nodes) -> None:
        """Elasticsearch and Cassandra."""
        ports = self.ports
        pairs = _pairs_of_ports((ports.elasticsearch, ports.elasticsearch_transport), nodes.elasticsearch)
        self.elasticsearch_cluster = ElasticsearchCluster(
            Elasticsearch(
                self.folder / _numbered("elasticsearch", number),
                runtime,
                port=port,
                transport_port=transport_port,
                transport_ports=[transport for _, transport in pairs],
            )
            for number, (port, transport_port) in enumerate(pairs, 1)
        )
        self.elasticsearch = self.elasticsearch_cluster.nodes[0]
        hosts = [LOOPBACK, *(f"127.0.0.{number}" for number in range(2, nodes.cassandra + 1))]
        self.cassandra_cluster = CassandraCluster(
            Cassandra(
                self.folder / _numbered("cassandra", number),
                runtime,
                port=ports.cassandra,
                storage_port=ports.cassandra_storage,
                jmx_port=ports.cassandra_jmx if number == 1 else hold_free_port(),
                host=host,
                hosts=hosts,
            )
            for number, host in enumerate(hosts, 1)
        )
        self.cassandra = self.cassandra_cluster.nodes[0]

    def _search(self, runtime: Runtime, name: str, distribution: Distribution) -> Elasticsearch:
        """A further server with Elasticsearch's API; it is no part of the suite's five."""
        return Elasticsearch(
            self.folder / name,
            runtime,
            port=getattr(self.ports, name),
            transport_port=getattr(self.ports, f"{name}_transport"),
            distribution=distribution,
            name=name,
        )

    def _make_hazelcast(self, runtime: Runtime, members: int, backups: int) -> None:
        """The two members of Hazelcast, of which the second one is optional."""
        ports = (self.ports.hazelcast, self.ports.hazelcast_second)
        self.hazelcast = Hazelcast(
            self.folder / "hazelcast", runtime, port=ports[0], member_ports=ports, backups=backups
        )
        self.hazelcast_second = SecondHazelcast(
            self.folder / "hazelcast-second", runtime, port=ports[1], member_ports=ports, backups=backups
        )
        self.hazelcast_cluster = HazelcastCluster([self.hazelcast, self.hazelcast_second][:members])

    def select(self, names: Iterable[str] | None = None) -> list[Server]:
        """The servers with these names. Raises UnknownServer.

        Without names: the suite's five servers, and the others if they run.
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


def _numbered(product: str, number: int) -> str:
    """Return the name of a node and of its folder."""
    return product if number == 1 else f"{product}-{number}"


def _pairs_of_ports(first: tuple[int, int], nodes: int) -> list[tuple[int, int]]:
    """Return two ports for each node of a cluster: the given ones for the first node, free ones for the others."""
    return [first, *((hold_free_port(), hold_free_port()) for _ in range(1, nodes))]
