"""Each sink's own client writing prepared rows in its best bulk form: what a persister is compared with.

`compare.py` runs it in a process of its own. It reads a topic, makes the rows with the persister's own projection,
reports that it is ready, and then writes them once for each line `{"form": .., "target": ..}` on its standard input.
Rows are prepared in the form that the client's interface takes: bytes for Elasticsearch's best form and dicts for its
plain one, tuples for Cassandra, JSON values for Hazelcast (the sink passes the bytes that the client makes of them),
Arrow tables for Parquet.
None of the preparation is measured.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import psycopg
import psycopg.adapt
import pyarrow.parquet as pq
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import BatchStatement, BatchType
from elasticsearch import ApiError, Elasticsearch, OrjsonSerializer
from hazelcast.client import HazelcastClient
from hazelcast.core import HazelcastJsonValue
from hazelcast.proxy.ringbuffer import OVERFLOW_POLICY_OVERWRITE
from psycopg._copy_base import format_row_text

import workload
from isotherm import kcql
from isotherm.persisters.api.row import Row
from isotherm.persisters.records.decoding import AvroDecoder, key_decoder
from isotherm.persisters.records.documents import to_json
from isotherm.persisters.records.projection import Projector
from isotherm.persisters.sinks.arrow.tables import Columns, Placed
from isotherm.persisters.sinks.cassandra.binding import write_time_us
from isotherm.persisters.sinks.postgresql import sql
from isotherm.persisters.sinks.postgresql.values import converter
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.servers.postgresql import Postgresql

IN_FLIGHT = workload.PARTITIONS
CASSANDRA_IN_FLIGHT = 256
_TOO_MANY_REQUESTS = 429
_BACKOFF_S = 0.1
CASSANDRA_BATCH = 30
KEYSPACE = "bench"

Batches = list[list[Row]]
Write = Callable[[str], None]
"""Writes all rows to the target named."""


def prepared_batches(
    kafka_settings: KafkaSettings, registry: RegistrySettings, chosen: workload.Workload, size: int
) -> Batches:
    """Return the topic's rows in batches of one partition, the partitions in turn."""
    schemas = SchemaRegistry(registry)
    statement = kcql.parse(f"INSERT INTO t SELECT * FROM {chosen.topic}")
    project = Projector(statement, AvroDecoder(schemas), key_decoder("auto", schemas))
    by_partition = []
    for records in workload.read_all(kafka_settings, chosen):
        rows = [row for record in records for row in project(record).rows]
        by_partition.append([rows[at : at + size] for at in range(0, len(rows), size)])
    return [batch for turn in itertools.zip_longest(*by_partition) for batch in turn if batch]


def elasticsearch_forms(batches: Batches, address: str) -> Mapping[str, Write]:
    """The bulk API with as many requests in flight as a task has: with lines of JSON, and with dicts."""
    client = Elasticsearch(
        address,
        request_timeout=60,
        max_retries=0,
        connections_per_node=IN_FLIGHT,
        serializer=OrjsonSerializer(),
    )
    operations = [[part for row in batch for part in (_action(row), dict(row.values or {}))] for batch in batches]
    bodies = [
        [line for row in batch for line in (orjson.dumps(_action(row)), to_json(row.values))] for batch in batches
    ]

    def form(prepared: Sequence[Any], operations_of: Callable[[Any], Any]) -> Write:
        def write(target: str, batch: Any) -> None:
            operations = operations_of(batch)
            while True:
                try:
                    answer = client.bulk(index=target, operations=operations, filter_path="errors,items.*.error")
                    break
                except ApiError as refused:
                    if refused.status_code != _TOO_MANY_REQUESTS:
                        raise
                    time.sleep(_BACKOFF_S)  # a slow machine's heap is full of garbage, as the persister finds it, too
            if answer["errors"]:
                raise RuntimeError(f"Elasticsearch refused rows: {str(answer)[:500]}")

        def write_all(target: str) -> None:
            with ThreadPoolExecutor(IN_FLIGHT) as pool:
                for _ in pool.map(lambda batch: write(target, batch), prepared):
                    pass

        return write_all

    return {
        "bulk": form(bodies, lambda lines: b"\n".join(lines) + b"\n"),
        "bulk of dicts": form(operations, lambda batch: batch),
    }


def _action(row: Row) -> dict[str, Any]:
    version = {} if row.revision is None else {"version": row.revision, "version_type": "external"}
    return {"index": {"_id": row.id, **version}}


def cassandra_forms(batches: Batches, address: str) -> Mapping[str, Write]:
    """`execute_concurrent_with_args`, callbacks, and unlogged batches of one partition with callbacks."""
    host, _, port = address.partition(":")
    profile = ExecutionProfile(consistency_level=ConsistencyLevel.LOCAL_QUORUM, request_timeout=60)
    session = Cluster([host], port=int(port), execution_profiles={EXEC_PROFILE_DEFAULT: profile}).connect()
    columns = list(batches[0][0].values or {})
    tuples = [[(*(row.values or {}).values(), write_time_us(row)) for row in batch] for batch in batches]
    flat = [row for batch in tuples for row in batch]
    groups = [group for batch in tuples for group in _by_first(batch)]

    def prepared(target: str) -> Any:
        marks = ", ".join("?" * len(columns))
        names = ", ".join(columns)
        return session.prepare(f"INSERT INTO {KEYSPACE}.{target} ({names}) VALUES ({marks}) USING TIMESTAMP ?")

    def concurrent(target: str) -> None:
        execute_concurrent_with_args(session, prepared(target), flat, concurrency=CASSANDRA_IN_FLIGHT)

    def callbacks(target: str) -> None:
        insert = prepared(target)
        _in_flight(lambda row: session.execute_async(insert, row), flat)

    def unlogged(target: str) -> None:
        insert = prepared(target)

        def write(group: Sequence[Any]) -> Any:
            batch = BatchStatement(BatchType.UNLOGGED)
            for row in group:
                batch.add(insert, row)
            return session.execute_async(batch)

        _in_flight(write, groups)

    return {"execute_concurrent": concurrent, "callbacks": callbacks, "unlogged batches": unlogged}


def _by_first(rows: Sequence[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    groups: dict[Any, list[tuple[Any, ...]]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row)
    for group in groups.values():
        for at in range(0, len(group), CASSANDRA_BATCH):
            yield group[at : at + CASSANDRA_BATCH]


def _in_flight(send: Callable[[Any], Any], items: Sequence[Any]) -> None:
    slots = threading.BoundedSemaphore(CASSANDRA_IN_FLIGHT)
    errors: list[BaseException] = []

    def failed(error: BaseException) -> None:
        errors.append(error)
        slots.release()

    for item in items:
        slots.acquire()
        send(item).add_callbacks(lambda _answer: slots.release(), failed)
    for _ in range(CASSANDRA_IN_FLIGHT):
        slots.acquire()
    if errors:
        raise RuntimeError(f"{len(errors)} writes failed") from errors[0]


def hazelcast_forms(batches: Batches, address: str) -> Mapping[str, Write]:
    """`put_all` into a map and `add_all` into a ring buffer, as many in flight as a task has."""
    client = HazelcastClient(cluster_name="dev", cluster_members=[address])
    values = [[(row.id, HazelcastJsonValue(to_json(row.values).decode())) for row in batch] for batch in batches]
    entries = [dict(batch) for batch in values]
    items = [[value for _, value in batch] for batch in values]

    def put_all(target: str) -> None:
        proxy: Any = client.get_map(target)
        _pipelined(proxy.put_all, entries)

    def add_all(target: str) -> None:
        ring: Any = client.get_ringbuffer(target)
        _pipelined(lambda batch: ring.add_all(batch, OVERFLOW_POLICY_OVERWRITE), items)

    return {"put_all": put_all, "add_all": add_all}


def _pipelined(send: Callable[[Any], Any], batches: Sequence[Any]) -> None:
    pending: list[Any] = []
    for batch in batches:
        if len(pending) == IN_FLIGHT:
            pending.pop(0).result()
        pending.append(send(batch))
    for future in pending:
        future.result()


def postgresql_forms(batches: Batches, address: str) -> Mapping[str, Write]:
    """`COPY` into the table, a transaction for each batch: of tuples, and of the bytes that these become."""
    names = list(batches[0][0].values or {})
    types = {name: sql.sql_type(avro) for name, avro in batches[0][0].plan.fields.items()}
    convert = [converter(types[name]) for name in names]
    tuples = [
        [tuple(one(value) for one, value in zip(convert, (row.values or {}).values(), strict=True)) for row in batch]
        for batch in batches
    ]
    url = f"postgresql://{Postgresql.user}:{Postgresql.password}@{address}/{Postgresql.database}"
    connections = [psycopg.connect(url) for _ in range(IN_FLIGHT)]
    transformer = psycopg.adapt.Transformer(connections[0])
    bodies = [_copied(batch, transformer) for batch in tuples]

    def form(prepared: Sequence[Any], write: Callable[[psycopg.Copy, Any], None]) -> Write:
        def write_some(target: str, number: int) -> None:
            statement = f"COPY {sql.quoted(target)} ({sql.names(names)}) FROM STDIN".encode()
            for batch in prepared[number::IN_FLIGHT]:
                connection = connections[number]
                with connection.transaction(), connection.cursor() as cursor, cursor.copy(statement) as copy:
                    write(copy, batch)

        def write_all(target: str) -> None:
            with ThreadPoolExecutor(IN_FLIGHT) as pool:
                for _ in pool.map(lambda number: write_some(target, number), range(IN_FLIGHT)):
                    pass

        return write_all

    def write_rows(copy: psycopg.Copy, batch: Sequence[tuple[Any, ...]]) -> None:
        for row in batch:
            copy.write_row(row)

    return {"copy": form(tuples, write_rows), "copy of bytes": form(bodies, lambda copy, body: copy.write(body))}


def _copied(batch: Sequence[tuple[Any, ...]], transformer: Any) -> bytes:
    """Return the bytes that psycopg itself makes of rows."""
    made = bytearray()
    for row in batch:
        format_row_text(row, transformer, made)
    return bytes(made)


def parquet_forms(batches: Batches, _address: str) -> Mapping[str, Write]:
    """`write_table` of tables that are ready, with the columns that the sink writes; synchronised, as a store is."""
    columns = Columns()
    tables = [columns.table([Placed(0, row, "topic", 0) for row in batch], []) for batch in batches]

    def write(target: str, number: int) -> None:
        path = Path(target) / f"{number}.parquet"
        pq.write_table(tables[number], path, compression="zstd")
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def write_all(target: str) -> None:
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            for _ in pool.map(lambda number: write(target, number), range(len(tables))):
                pass

    return {"write_table": write_all}


FORMS = {
    "elasticsearch": elasticsearch_forms,
    "cassandra": cassandra_forms,
    "hazelcast": hazelcast_forms,
    "postgresql": postgresql_forms,
    "kafka": parquet_forms,
}


def main() -> None:
    """Arguments: server, its address, topic, record, records, rows in a batch, Kafka's address, the registry's."""
    server, address, topic, record, records, size, bootstrap, registry = sys.argv[1:]
    chosen = workload.Workload(topic, record, int(records))
    batches = prepared_batches(
        KafkaSettings(bootstrap_servers=bootstrap), RegistrySettings(url=registry), chosen, int(size)
    )
    forms = FORMS[server](batches, address)
    rows = sum(map(len, batches))
    del batches
    gc.collect()
    gc.freeze()
    print(json.dumps({"forms": list(forms), "rows": rows}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        started, spent = time.perf_counter(), time.process_time()
        forms[order["form"]](order["target"])
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - spent
        print(json.dumps({"rows": rows, "seconds": seconds, "cpu_s": cpu_s}), flush=True)


if __name__ == "__main__":
    main()
