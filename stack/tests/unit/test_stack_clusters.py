"""Clusters as they are configured, and the metadata that a broker answers with."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import pytest

from isotherm.stack import ports
from isotherm.stack.clusters import CLUSTERS, Nodes
from isotherm.stack.kafka import metadata
from isotherm.stack.kafka.metadata import Metadata, Partition
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack


def lines(properties: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in properties.splitlines())


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return Stack(tmp_path, Ports(), nodes=CLUSTERS)


def test_every_node_has_its_own_name_and_port(stack: Stack) -> None:
    listening = [
        (getattr(node, "host", ports.LOOPBACK), port) for node in stack.servers.values() for port in node.ports[:1]
    ]
    assert len(set(listening)) == len(listening) == len(stack.servers)
    assert stack.kafka_cluster.names == ["kafka", "kafka-2", "kafka-3"]
    assert set(stack.cassandra_cluster.names) <= {server.name for server in stack.select()}
    assert stack.cassandra_cluster.addresses == ["127.0.0.1:9042", "127.0.0.2:9042", "127.0.0.3:9042"]


def test_three_brokers_keep_three_copies_and_acknowledge_with_two(stack: Stack) -> None:
    for number, node in enumerate(stack.kafka_cluster.nodes, 1):
        properties = lines(node.render_properties())
        assert properties["node.id"] == str(number)
        assert properties["controller.quorum.voters"].count("@") == 3
        assert {properties[f"{topic}.replication.factor"] for topic in ("default", "offsets.topic")} == {"3"}
        assert properties["transaction.state.log.replication.factor"] == "3"
        assert (properties["min.insync.replicas"], properties["transaction.state.log.min.isr"]) == ("2", "2")


def test_brokers_behind_relays_are_found_at_the_relays(tmp_path: Path) -> None:
    stack = Stack(tmp_path, Ports(), nodes=Nodes(kafka=2), advertised_brokers=[1001, 1002])
    properties = lines(stack.kafka_cluster.nodes[1].render_properties())
    assert properties["advertised.listeners"] == "CLIENTS://127.0.0.1:1002"
    assert properties["listeners"].startswith(f"CLIENTS://127.0.0.1:{stack.kafka_cluster.nodes[1].port},")
    assert stack.kafka.bootstrap_servers == "127.0.0.1:1001,127.0.0.1:1002"


def test_a_broker_alone_keeps_one_copy(tmp_path: Path) -> None:
    properties = lines(Stack(tmp_path, Ports()).kafka.render_properties())
    assert (properties["default.replication.factor"], properties["min.insync.replicas"]) == ("1", "1")


def test_the_nodes_of_cassandra_share_the_ring(stack: Stack) -> None:
    tokens = [int(node.render_config()["initial_token"]) for node in stack.cassandra_cluster.nodes]
    assert [later - earlier for earlier, later in pairwise(tokens)] == [2**64 // 3] * 2


@pytest.mark.parametrize("nodes", [{"kafka": 0}, {"hazelcast": 3}])
def test_an_impossible_number_of_nodes_is_refused(nodes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"has \d (nodes|members)"):
        Nodes(**nodes)


def test_metadata_is_decoded_with_leaders_and_copies() -> None:
    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    brokers = b"".join(struct.pack(">i", number) + text("h") + struct.pack(">ih", 9092, -1) for number in (1, 3))
    partition = struct.pack(">hii", 0, 0, 3) + struct.pack(">iii", 2, 1, 3) + struct.pack(">ii", 1, 3)
    topics = struct.pack(">ih", 1, 0) + text("t") + struct.pack(">?i", False, 1) + partition
    answer = struct.pack(">ii", 1, 2) + brokers + struct.pack(">i", 1) + topics

    assert metadata.decode(answer) == Metadata(
        frozenset({1, 3}), {("t", 0): Partition(3, frozenset({1, 3}), frozenset({3}))}
    )
    with pytest.raises(struct.error):
        metadata.decode(answer[:-1])
    assert metadata.request(()).hex() == "0000000e0003000100000001ffff00000000"
