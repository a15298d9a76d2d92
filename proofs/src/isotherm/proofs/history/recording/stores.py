"""Records what stores hold: documents of Elasticsearch, rows of Cassandra, maps and queues of Hazelcast."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy
from cassandra.query import dict_factory
from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan
from hazelcast.client import HazelcastClient

from isotherm.proofs.history.recording.history_file import HistoryFile, owner, plain

_REQUEST_TIMEOUT_S = 60
_PROTOCOL_VERSION = 4
"""The newest CQL version that Scylla also speaks."""


class RowWriter:
    """Writes the rows of one store."""

    def __init__(
        self,
        history: HistoryFile,
        store: str,
        identity: Iterable[str],
        keys: Mapping[tuple[Any, ...], str] | None = None,
    ) -> None:
        """`identity` names the fields of the identity, `keys` has the records' keys where the order matters."""
        self._history = history
        self._store = store
        self._identity = tuple(identity)
        self._keys = keys

    def write(self, rows: Iterable[Any]) -> None:
        """Write every row, in this order, and the end."""
        number = -1
        for number, row in enumerate(rows):
            value = plain(row)
            identity = [value.get(name) for name in self._identity]
            device = owner(identity, value)
            ordered = self._keys is not None
            key = self._keys.get(tuple(map(str, identity)), device) if self._keys is not None else device
            position = number if ordered else None
            fields = {"store": self._store, "key": key, "device": device, "id": identity, "value": value}
            self._history.write("row", **fields, position=position)
        self._history.write("store-end", store=self._store, rows=number + 1)


def record_index(url: str, index: str, rows: RowWriter) -> None:
    """Write the documents of all indices of a pattern."""
    client = Elasticsearch(url, request_timeout=_REQUEST_TIMEOUT_S)
    try:
        client.indices.refresh(index=index, ignore_unavailable=True, allow_no_indices=True)
        rows.write(hit["_source"] for hit in scan(client, index=index, size=2_000, ignore_unavailable=True))
    finally:
        client.close()


def record_tables(host: str, port: int, keyspace: str, tables: Mapping[str, RowWriter]) -> None:
    """Write the rows of tables; a table that does not exist has none."""
    profile = ExecutionProfile(
        load_balancing_policy=RoundRobinPolicy(), row_factory=dict_factory, request_timeout=_REQUEST_TIMEOUT_S
    )
    cluster = Cluster(
        [host], port=port, protocol_version=_PROTOCOL_VERSION, execution_profiles={EXEC_PROFILE_DEFAULT: profile}
    )
    try:
        session = cluster.connect()
        cluster.refresh_schema_metadata()
        known = cluster.metadata.keyspaces.get(keyspace)
        for table, rows in tables.items():
            exists = known is not None and table in known.tables
            rows.write(session.execute(f'SELECT * FROM "{keyspace}"."{table}"') if exists else ())  # noqa: S608 - the run's own names
    finally:
        cluster.shutdown()


def record_structures(
    address: str, cluster_name: str, maps: Mapping[str, RowWriter], queues: Mapping[str, RowWriter]
) -> None:
    """Write the values of maps and the items of queues, which stay there."""
    client = HazelcastClient(
        cluster_name=cluster_name, cluster_members=[address], cluster_connect_timeout=_REQUEST_TIMEOUT_S
    )
    try:
        for name, rows in maps.items():
            values: list[Any] = client.get_map(name).blocking().values()
            rows.write(json.loads(value.to_string()) for value in values)
        for name, rows in queues.items():
            items: list[Any] = client.get_queue(name).blocking().iterator()
            rows.write(json.loads(item.to_string()) for item in items)
    finally:
        client.shutdown()
