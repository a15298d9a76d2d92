"""The kinds of target that are compared, each with its records, the forms of its client, and its goal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import targets
from isotherm.stack.stack import Stack


@dataclass(frozen=True)
class Case:
    """One kind of target."""

    name: str
    server: str
    sink: str
    record: str
    records: int
    batch: int
    forms: Sequence[str]
    goal: float
    target: Callable[[str], targets.Target]
    kcql: str
    """With `{target}` and `{topic}`."""
    lines: Callable[[Stack], Sequence[str]]
    with_telegraf: bool = False
    every_form: bool = False
    """Whether all forms are measured: the first round, on a cold server, cannot tell close ones apart."""


def _elasticsearch(stack: Stack) -> Sequence[str]:
    return [f"connect.elastic.url={stack.elasticsearch.url}"]


def _cassandra(stack: Stack) -> Sequence[str]:
    server = stack.cassandra
    return [f"contact.points={server.contact_points[0]}", f"port={server.port}", "key.space=bench"]


def _hazelcast(stack: Stack) -> Sequence[str]:
    return [f"cluster.members={stack.hazelcast.address}", f"group.name={stack.hazelcast.cluster_name}"]


def _parquet(_stack: Stack) -> Sequence[str]:
    return [f"url={targets.ARCHIVE.as_uri()}", f"batch.size={_PARQUET_BATCH}", "linger.ms=500"]


def _postgresql(stack: Stack) -> Sequence[str]:
    server = stack.postgresql
    return [
        "host=127.0.0.1",
        f"port={server.port}",
        f"database={server.database}",
        f"username={server.user}",
        f"password={server.password}",
        f"batch.size={_POSTGRESQL_BATCH}",
    ]


_POSTGRESQL_BATCH = 5_000
_PARQUET_BATCH = 50_000
_CASSANDRA_FORMS = ("execute_concurrent", "callbacks", "unlogged batches")
CASES = (
    Case(
        "elasticsearch",
        "elasticsearch",
        "elasticsearch",
        "TemperatureAggregate",
        150_000,
        2_000,
        ("bulk", "bulk of dicts"),
        0.8,
        targets.Index,
        "INSERT INTO {target} SELECT * FROM {topic} WITHINDEXSUFFIX -{{YYYY.MM.DD}}",
        _elasticsearch,
        with_telegraf=True,
        every_form=True,
    ),
    Case(
        "cassandra",
        "cassandra",
        "scylla",
        "TemperatureAggregate",
        30_000,
        1_000,
        _CASSANDRA_FORMS,
        0.8,
        targets.Table,
        "INSERT INTO {target} SELECT * FROM {topic}",
        _cassandra,
    ),
    Case(
        "hazelcast-map",
        "hazelcast",
        "hazelcast",
        "SensorReading",
        60_000,
        1_000,
        ("put_all",),
        0.4,
        targets.HazelcastMap,
        "INSERT INTO {target} SELECT * FROM {topic} WITHFORMAT JSON STOREAS IMAP",
        _hazelcast,
    ),
    Case(
        "hazelcast-map-revisions",
        "hazelcast",
        "hazelcast",
        "TemperatureAggregate",
        60_000,
        1_000,
        ("put_all",),
        0.4,
        targets.HazelcastMap,
        "INSERT INTO {target} SELECT * FROM {topic} WITHFORMAT JSON STOREAS IMAP",
        _hazelcast,
    ),
    Case(
        "hazelcast-ring-buffer",
        "hazelcast",
        "hazelcast",
        "SensorReading",
        200_000,
        1_000,
        ("add_all",),
        0.4,
        targets.RingBuffer,
        "INSERT INTO {target} SELECT * FROM {topic} WITHFORMAT JSON STOREAS RING_BUFFER",
        _hazelcast,
    ),
    Case(
        "postgresql",
        "postgresql",
        "postgresql",
        "SensorReading",
        100_000,
        _POSTGRESQL_BATCH,
        ("copy", "copy of bytes"),
        0.85,
        targets.PostgresqlTable,
        "INSERT INTO {target} SELECT * FROM {topic}",
        _postgresql,
        every_form=True,
    ),
    # Files need no server; the one that is measured is Kafka, which the persister reads from. It stays to the end. The
    # last batches of a topic wait for half a second, which is much of the time that fewer records take.
    Case(
        "parquet",
        "kafka",
        "parquet",
        "SensorReading",
        1_200_000,
        _PARQUET_BATCH,
        ("write_table",),
        0.8,
        targets.ParquetFiles,
        "INSERT INTO {target} SELECT * FROM {topic}",
        _parquet,
    ),
)
