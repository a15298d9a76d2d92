"""The loss of a node: clusters of Kafka, Cassandra and Elasticsearch keep what was acknowledged, and go on.

That of a member of Hazelcast is in `test_stack_servers.py`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cassandra import ConsistencyLevel, ReadTimeout
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import RoundRobinPolicy
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from isotherm.stack.clusters import KafkaCluster, Nodes
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack

CALL_TIMEOUT_S = 60.0
RECORDS = 200


@contextmanager
def running(folder: Path, nodes: Nodes, product: str) -> Iterator[Stack]:
    """A stack of which the nodes of one product run, all of them."""
    stack = Stack(folder, Ports.free(), nodes=nodes)
    names = [name for name in stack.servers if name.split("-")[0] == product]
    try:
        stack.up(names)
        yield stack
    finally:
        stack.down(names)


def create_topic(cluster: KafkaCluster) -> str:
    topic = f"stack-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(CALL_TIMEOUT_S)
    return topic


def read_all(cluster: KafkaCluster, topic: str, count: int) -> list[bytes | None]:
    group = {"group.id": f"reader-{uuid.uuid4()}", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, **group})
    try:
        consumer.subscribe([topic])
        return [message.value() for message in consumer.consume(count, CALL_TIMEOUT_S)]
    finally:
        consumer.close()


@pytest.mark.integration
@pytest.mark.faults
def test_kafka_goes_on_without_the_leader_of_a_partition(tmp_path: Path) -> None:
    with running(tmp_path, Nodes(kafka=3), "kafka") as stack:
        cluster = stack.kafka_cluster
        cluster.wait_whole()
        topic = create_topic(cluster)
        cluster.wait_whole()
        leader = cluster.leader_of(topic, 0)
        assert leader is not None
        failures: list[object] = []
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})

        def produce(numbers: range) -> None:
            for number in numbers:
                producer.produce(
                    topic, str(number), on_delivery=lambda error, _: failures.append(error) if error else None
                )
                producer.poll(0)

        produce(range(RECORDS))
        assert producer.flush(CALL_TIMEOUT_S) == 0
        leader.kill()
        produce(range(RECORDS, 2 * RECORDS))
        assert producer.flush(CALL_TIMEOUT_S) == 0

        assert failures == []
        assert cluster.leader_of(topic, 0) in cluster.others(leader)
        assert not cluster.is_whole()
        assert read_all(cluster, topic, 2 * RECORDS) == [b"%d" % number for number in range(2 * RECORDS)]
        leader.start()
        cluster.wait_whole()


def read_ids(session: Session) -> list[int]:
    """Read the table; until the nodes have noticed the loss, some ten seconds, they ask the dead one and time out."""
    deadline = time.monotonic() + CALL_TIMEOUT_S
    while True:
        try:
            return sorted(row.id for row in session.execute("SELECT id FROM numbers.numbers"))
        except ReadTimeout:
            assert time.monotonic() < deadline


@pytest.mark.integration
@pytest.mark.faults
@pytest.mark.long
def test_cassandra_at_local_quorum_goes_on_without_a_node(tmp_path: Path) -> None:
    replication = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 3}"
    profile = ExecutionProfile(
        load_balancing_policy=RoundRobinPolicy(),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        request_timeout=CALL_TIMEOUT_S,
    )
    with running(tmp_path, Nodes(cassandra=3), "cassandra") as stack:
        nodes = stack.cassandra_cluster
        nodes.wait_whole()
        client = Cluster(
            stack.cassandra.contact_points,
            port=stack.cassandra.port,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            connect_timeout=CALL_TIMEOUT_S,
        )
        try:
            session = client.connect()
            session.execute(f"CREATE KEYSPACE numbers WITH replication = {replication}")
            session.execute("CREATE TABLE numbers.numbers (id int PRIMARY KEY)")
            insert = session.prepare("INSERT INTO numbers.numbers (id) VALUES (?)")
            insert.is_idempotent = True
            for number in range(RECORDS):
                session.execute(insert, (number,))
            nodes.nodes[1].kill()
            for number in range(RECORDS, 2 * RECORDS):
                session.execute(insert, (number,))
            assert read_ids(session) == list(range(2 * RECORDS))
        finally:
            client.shutdown()
        nodes.nodes[1].start()
        nodes.wait_whole()


@pytest.mark.integration
@pytest.mark.faults
@pytest.mark.long
def test_elasticsearch_with_a_replica_goes_on_without_a_node(tmp_path: Path) -> None:
    with running(tmp_path, Nodes(elasticsearch=2), "elasticsearch") as stack:
        nodes = stack.elasticsearch_cluster
        with httpx.Client(base_url=stack.elasticsearch.url, timeout=CALL_TIMEOUT_S) as client:
            settings = {"settings": {"number_of_shards": 2, "number_of_replicas": 1}}
            client.put("/numbers", json=settings).raise_for_status()
            nodes.wait_whole()

            def store(numbers: range) -> None:
                for number in numbers:
                    client.put(f"/numbers/_create/{number}", json={"number": number}).raise_for_status()

            store(range(20))
            shards = client.get("/_cat/shards/numbers?format=json").raise_for_status().json()
            primaries = {one["node"] for one in shards if one["prirep"] == "p"}
            assert primaries == {"elasticsearch-1", "elasticsearch-2"}, "the node that is lost holds a primary"
            nodes.nodes[1].kill()
            store(range(20, 40))

            client.post("/numbers/_refresh").raise_for_status()
            assert client.get("/numbers/_count").raise_for_status().json()["count"] == 40
            assert not nodes.is_whole()
        nodes.nodes[1].start()
        nodes.wait_whole()
