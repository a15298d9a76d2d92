"""Clusters: the nodes of one product, their addresses, and whether all of them are whole again after a loss.

A node is a :class:`Server`: `kill`, `pause`, `resume`, `start` and `wait_ready` are its own. A node is ready when it
serves, also while another one is down; `wait_whole` waits until every node is back and has its copies.
"""

from __future__ import annotations

import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from isotherm.stack.servers import probes
from isotherm.stack.servers.cassandra import Cassandra
from isotherm.stack.servers.elasticsearch import Elasticsearch
from isotherm.stack.servers.hazelcast import Hazelcast
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.server import READY_TIMEOUT_S, Server, wait_all_ready

_PROBE_TIMEOUT_S = 5.0
_POLL_S = 0.2
_MOST_MEMBERS = 2

# Frames of Cassandra's native protocol, version 4 (specification sections 2, 4.1.1, 4.1.4 and 6).
_STARTUP, _QUERY, _RESULT, _CONSISTENCY_ALL = 0x01, 0x07, 0x08, 0x0005
_OPTIONS = struct.pack(">HH11sH5s", 1, 11, b"CQL_VERSION", 5, b"3.4.5")
# A keyspace that each cluster has, with three copies.
_READ_ALL_COPIES = b"SELECT view_name FROM system_distributed.view_build_status WHERE keyspace_name='' AND view_name=''"
_HEADER = struct.Struct(">BBhBI")

Node = TypeVar("Node", bound=Server)


@dataclass(frozen=True)
class Nodes:
    """How many servers of each product a stack has.

    Memory beyond that of single servers, heaps at most: 0.5 GiB a further broker or node of Elasticsearch or Cassandra,
    0.25 GiB for the second member of Hazelcast. All at :data:`CLUSTERS` take 4 GiB.
    """

    kafka: int = 1
    cassandra: int = 1
    elasticsearch: int = 1
    hazelcast: int = 1

    def __post_init__(self) -> None:
        for product, number in vars(self).items():
            if number < 1:
                raise ValueError(f"{product} has {number} nodes, at least 1 is needed")
        if self.hazelcast > _MOST_MEMBERS:
            raise ValueError(f"hazelcast has {self.hazelcast} members, at most {_MOST_MEMBERS} are possible")


CLUSTERS = Nodes(kafka=3, cassandra=3, elasticsearch=2, hazelcast=2)
"""Every product survives the loss of a node."""


class Cluster(ABC, Generic[Node]):
    """The nodes of one product."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)

    @property
    def names(self) -> list[str]:
        """Names of the nodes, for :meth:`Stack.up`."""
        return [node.name for node in self.nodes]

    @property
    def addresses(self) -> list[str]:
        """Where clients find each node."""
        return [node.address for node in self.nodes]

    def others(self, node: Node) -> list[Node]:
        """All nodes but this one."""
        return [one for one in self.nodes if one is not node]

    @abstractmethod
    def is_whole(self) -> bool:
        """Ask once whether every node is there and has the copies that it should have."""

    def wait_whole(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the cluster is whole. Raises ServerFailed when a node ends, or after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        wait_all_ready(self.nodes, timeout_s)
        while not self.is_whole():
            if time.monotonic() > deadline:
                raise self.nodes[0].failure(f"and its cluster were not whole after {timeout_s:.0f} s")
            time.sleep(_POLL_S)


class KafkaCluster(Cluster[Kafka]):
    """Brokers; with three of them the replication factor is 3 and `min.insync.replicas` 2, for internal topics too."""

    @property
    def bootstrap_servers(self) -> str:
        """Value for a client's ``bootstrap.servers``: all nodes."""
        return self.nodes[0].bootstrap_servers

    def leader_of(self, topic: str, partition: int) -> Kafka | None:
        """The node that leads a partition, as the first broker that answers knows it; None while there is none."""
        for node in self.nodes:
            metadata = node.ask_metadata([topic]) if node.alive() else None
            if metadata is not None and (found := metadata.partitions.get((topic, partition))) is not None:
                return next((one for one in self.nodes if one.node_id == found.leader), None)
        return None

    def is_whole(self) -> bool:
        ids = {node.node_id for node in self.nodes}
        for node in self.nodes:
            metadata = node.ask_metadata(None)
            if metadata is None or metadata.brokers != ids:
                return False
            if any(one.leader not in ids or one.in_sync != one.replicas for one in metadata.partitions.values()):
                return False
        return True


class CassandraCluster(Cluster[Cassandra]):
    """Nodes of one data centre, `datacenter1`. Keyspaces say themselves how many copies they have."""

    def is_whole(self) -> bool:
        """Ask whether each node can read at consistency ALL, for which it has to know of three live nodes."""
        return all(_reads_all_copies(node) for node in self.nodes) if len(self.nodes) > 1 else self.nodes[0].is_ready()


class ElasticsearchCluster(Cluster[Elasticsearch]):
    """Nodes of which the first one is master."""

    def is_whole(self) -> bool:
        answer = probes.get(self.nodes[0].port, "/_cluster/health", _PROBE_TIMEOUT_S)
        if answer is None or not answer.is_ok:
            return False
        health = answer.json()
        return bool(health["status"] == "green" and health["number_of_nodes"] == len(self.nodes))


class HazelcastCluster(Cluster[Hazelcast]):
    """Members; each map and queue has one synchronous backup."""

    def is_whole(self) -> bool:
        for node in self.nodes:
            answer = probes.get(node.port, "/hazelcast/health/cluster-size", _PROBE_TIMEOUT_S)
            if answer is None or not answer.is_ok or answer.json() != len(self.nodes) or not node.is_ready():
                return False
        return True


def _reads_all_copies(node: Cassandra) -> bool:
    query = struct.pack(">I", len(_READ_ALL_COPIES)) + _READ_ALL_COPIES + struct.pack(">HB", _CONSISTENCY_ALL, 0)
    try:
        with socket.create_connection((node.host, node.port), timeout=_PROBE_TIMEOUT_S) as connection:
            _ask(connection, _STARTUP, _OPTIONS)
            return _ask(connection, _QUERY, query) == _RESULT
    except (OSError, struct.error):
        return False


def _ask(connection: socket.socket, operation: int, body: bytes) -> int:
    """Send a frame and return the operation of the answer. Raises OSError, struct.error."""
    connection.sendall(_HEADER.pack(0x04, 0, 0, operation, len(body)) + body)
    _, _, _, answered, length = _HEADER.unpack(connection.recv(_HEADER.size, socket.MSG_WAITALL))
    connection.recv(length, socket.MSG_WAITALL)
    return int(answered)
