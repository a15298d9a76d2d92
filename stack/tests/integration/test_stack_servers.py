"""Elasticsearch, Cassandra and Hazelcast: ready, killed, and started again with all acknowledged data."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import WhiteListRoundRobinPolicy
from hazelcast.client import HazelcastClient
from hazelcast.proxy.map import BlockingMap

from isotherm.stack import processes
from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers.cassandra import Cassandra
from isotherm.stack.servers.elasticsearch import Elasticsearch
from isotherm.stack.servers.hazelcast import Hazelcast
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

CALL_TIMEOUT_S = 60.0


def test_elasticsearch_keeps_acknowledged_documents_through_kill(elasticsearch: Elasticsearch) -> None:
    document = f"{elasticsearch.url}/stack-{uuid.uuid4()}/_doc/1"
    httpx.put(document, json={"value": 21.5}, timeout=CALL_TIMEOUT_S).raise_for_status()
    old_pid = elasticsearch.pid

    elasticsearch.kill()
    elasticsearch.start()
    elasticsearch.wait_ready()

    assert elasticsearch.pid != old_pid
    stored = httpx.get(document, timeout=CALL_TIMEOUT_S).raise_for_status().json()
    assert stored["_source"] == {"value": 21.5}


@contextmanager
def cassandra_session(cassandra: Cassandra) -> Iterator[Session]:
    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy(cassandra.contact_points), request_timeout=CALL_TIMEOUT_S
    )
    cluster = Cluster(
        cassandra.contact_points,
        port=cassandra.port,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        connect_timeout=CALL_TIMEOUT_S,
    )
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


def test_cassandra_keeps_acknowledged_rows_through_kill(cassandra: Cassandra) -> None:
    keyspace = f"stack_{uuid.uuid4().hex}"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    with cassandra_session(cassandra) as session:
        session.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
        session.set_keyspace(keyspace)
        session.execute("CREATE TABLE numbers (id int PRIMARY KEY)")
        for number in range(20):
            session.execute("INSERT INTO numbers (id) VALUES (%s)", (number,))
        cassandra.kill()

    cassandra.start()
    cassandra.wait_ready()

    with cassandra_session(cassandra) as session:
        session.set_keyspace(keyspace)
        rows = session.execute("SELECT id FROM numbers")
        assert sorted(row.id for row in rows) == list(range(20))


@contextmanager
def hazelcast_client(*members: Hazelcast) -> Iterator[HazelcastClient]:
    client = HazelcastClient(
        cluster_members=[member.address for member in members],
        cluster_name=members[0].cluster_name,
        cluster_connect_timeout=CALL_TIMEOUT_S,
    )
    try:
        yield client
    finally:
        client.shutdown()


def test_a_second_hazelcast_member_keeps_what_the_killed_one_held(
    hazelcast: Hazelcast, hazelcast_second: Hazelcast
) -> None:
    name = f"stack-{uuid.uuid4()}"
    with hazelcast_client(hazelcast, hazelcast_second) as client:
        stored: BlockingMap[int, str] = client.get_map(name).blocking()
        for number in range(100):
            stored.put(number, f"value {number}")
        hazelcast.kill()
        assert [stored.get(number) for number in range(100)] == [f"value {number}" for number in range(100)]
        left = [member.address for member in client.cluster_service.get_members()]
        assert [(address.host, address.port) for address in left] == [(LOOPBACK, hazelcast_second.port)]

    hazelcast.start()
    hazelcast.wait_ready()
    with hazelcast_client(hazelcast) as client:
        assert len(client.cluster_service.get_members()) == 2
        assert client.get_map(name).blocking().size() == 100


def test_nothing_listens_beyond_the_loopback(
    kafka: Kafka, registry: Registry, elasticsearch: Elasticsearch, cassandra: Cassandra, hazelcast: Hazelcast
) -> None:
    for server in (kafka, registry, elasticsearch, cassandra, hazelcast):
        leader = processes.read_pid_file(server.pid_file)
        assert leader is not None
        listeners = [
            each.laddr
            for member in processes.group_members(leader)
            for each in psutil.Process(member.pid).net_connections("inet")
            if each.status == psutil.CONN_LISTEN
        ]
        assert set(server.ports) <= {port for _, port in listeners}
        assert {address.removeprefix("::ffff:") for address, _ in listeners} == {LOOPBACK}, server.name
