"""The demo's three stores, asked for windows as a reader of each would ask."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from cassandra import InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy
from cassandra.query import PreparedStatement
from elasticsearch import ApiError, Elasticsearch
from hazelcast.client import HazelcastClient

from isotherm.demo.addresses import Addresses
from window_delay import METRIC, Store

_TIMEOUT_S = 60
_UNAVAILABLE = 503


class ElasticsearchWindows:
    """Searches, so that a window counts from the refresh on that makes it visible (every second by default)."""

    name = "Elasticsearch"

    def __init__(self, addresses: Addresses) -> None:
        self._index = addresses.aggregates_index
        self._client = Elasticsearch(addresses.elasticsearch_url, request_timeout=_TIMEOUT_S)

    def present(self, begin_ms: int, end_ms: int, devices: Collection[str]) -> set[str]:
        """Search the windows of these devices by their ids."""
        device_of = {window_key(device, begin_ms, end_ms): device for device in devices}
        try:
            answer = self._search(list(device_of))
        except ApiError as error:
            # While the day's index is being made there is nothing to be found.
            if error.status_code != _UNAVAILABLE:
                raise
            return set()
        return {device_of[hit["_id"]] for hit in answer["hits"]["hits"]}

    def _search(self, ids: Sequence[str]) -> Any:
        return self._client.search(
            index=self._index,
            query={"ids": {"values": list(ids)}},
            source=False,
            size=len(ids),
            ignore_unavailable=True,
            allow_no_indices=True,
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class CassandraWindows:
    """Reads the rows by their primary key."""

    name = "Cassandra"

    def __init__(self, addresses: Addresses) -> None:
        profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy(), request_timeout=_TIMEOUT_S)
        self._cluster = Cluster(
            [addresses.cassandra_host],
            port=addresses.cassandra_port,
            protocol_version=4,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            connect_timeout=_TIMEOUT_S,
            control_connection_timeout=_TIMEOUT_S,
        )
        self._session = self._cluster.connect()
        self._query = (
            f'SELECT device_id FROM "{addresses.keyspace}"."{addresses.aggregates_table}" '
            "WHERE device_id IN ? AND metric = ? AND window_start = ? AND window_end = ?"
        )
        self._prepared: PreparedStatement | None = None

    def present(self, begin_ms: int, end_ms: int, devices: Collection[str]) -> set[str]:
        """Read the windows of these devices; none while there is no table yet."""
        if self._prepared is None:
            try:
                self._prepared = self._session.prepare(self._query)
            except InvalidRequest:
                return set()
        rows = self._session.execute(self._prepared, (list(devices), METRIC, begin_ms, end_ms))
        return {row.device_id for row in rows}

    def close(self) -> None:
        """Close the connection."""
        self._cluster.shutdown()


class HazelcastWindows:
    """Gets the entries by their keys."""

    name = "Hazelcast"

    def __init__(self, addresses: Addresses) -> None:
        self._client = HazelcastClient(
            cluster_name=addresses.hazelcast_cluster,
            cluster_members=[addresses.hazelcast_address],
            cluster_connect_timeout=_TIMEOUT_S,
        )
        self._map: Any = self._client.get_map(addresses.aggregates_map).blocking()

    def present(self, begin_ms: int, end_ms: int, devices: Collection[str]) -> set[str]:
        """Get the windows of these devices."""
        device_of = {window_key(device, begin_ms, end_ms): device for device in devices}
        return {device_of[key] for key in self._map.get_all(list(device_of))}

    def close(self) -> None:
        """Close the connection."""
        self._client.shutdown()


def window_key(device: str, begin_ms: int, end_ms: int) -> str:
    """The id that a persister gives a window: device, metric, begin and end in epoch ms."""
    return f"{device}-{METRIC}-{begin_ms}-{end_ms}"


class WindowStores:
    """All three, while something is measured. Use as a context manager."""

    def __init__(self, addresses: Addresses) -> None:
        self._all = (ElasticsearchWindows(addresses), CassandraWindows(addresses), HazelcastWindows(addresses))

    def __enter__(self) -> Sequence[Store]:
        return self._all

    def __exit__(self, *_error: object) -> None:
        for store in self._all:
            store.close()
