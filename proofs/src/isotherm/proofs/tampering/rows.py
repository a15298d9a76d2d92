"""Somebody with access to the stores: deletes and changes rows of windows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan
from hazelcast.core import HazelcastJsonValue

from isotherm.demo.addresses import Addresses
from isotherm.demo.evidence import cassandra_cluster, has_table, hazelcast_client, plain
from isotherm.proofs.tampering.tampered import Tampered, WindowKey

_CHANGED = 99.25
Tamper = Callable[[bool], None]
"""Deletes a row, or changes it where the argument is False."""


class Store(Protocol):
    """A store with rows of windows."""

    hop: str
    """The connector that writes it."""

    def rows(self) -> dict[WindowKey, Tamper]:
        """Return what it has."""

    def close(self) -> None:
        """Close the client."""


def tamper(store: Store, key: WindowKey, row: Tamper, *, deletes: bool) -> Tampered:
    """Delete or change a row."""
    row(deletes)
    what, kind = ("its row is deleted", "missing") if deletes else ("its row is changed", "different")
    return Tampered(store.hop, key.identity, what, frozenset((kind,)), int(time.time() * 1_000))


class ElasticsearchRows:
    """Documents of the daily indices."""

    hop = "temperatures-to-elasticsearch"

    def __init__(self, addresses: Addresses) -> None:
        self._client, self._index = Elasticsearch(addresses.elasticsearch_url), addresses.aggregates_index

    def rows(self) -> dict[WindowKey, Tamper]:
        """Return the documents."""
        self._client.indices.refresh(index=self._index, ignore_unavailable=True, allow_no_indices=True)
        return {
            WindowKey(of["device_id"], of["metric"], of["window_start"]): self._tamper_of(hit["_index"], hit["_id"])
            for hit in scan(self._client, index=self._index, size=2_000, ignore_unavailable=True)
            for of in (hit["_source"],)
        }

    def _tamper_of(self, index: str, document: str) -> Tamper:
        def change(deletes: bool) -> None:
            if deletes:
                self._client.delete(index=index, id=document)
            else:
                self._client.update(index=index, id=document, doc={"mean": _CHANGED})

        return change

    def close(self) -> None:
        """Close the client."""
        self._client.close()


class CassandraRows:
    """Rows of the table."""

    hop = "readings-to-cassandra"

    def __init__(self, addresses: Addresses) -> None:
        self._cluster = cassandra_cluster(addresses)
        self._session = self._cluster.connect()
        self._names = addresses.keyspace, addresses.aggregates_table
        self._table = '"{}"."{}"'.format(*self._names)

    def rows(self) -> dict[WindowKey, Tamper]:
        """Return the rows; none before the table is there."""
        if not has_table(self._cluster, *self._names):
            return {}
        found = self._session.execute(f"SELECT device_id, metric, window_start, window_end FROM {self._table}")  # noqa: S608 - our own names
        return {WindowKey(row["device_id"], row["metric"], _start_ms(row)): self._tamper_of(row) for row in found}

    def _tamper_of(self, row: dict[str, Any]) -> Tamper:
        where = "device_id=%s AND metric=%s AND window_start=%s AND window_end=%s"
        key = tuple(row[name] for name in ("device_id", "metric", "window_start", "window_end"))

        def change(deletes: bool) -> None:
            if deletes:
                self._session.execute(f"DELETE FROM {self._table} WHERE {where}", key)  # noqa: S608 - our own names
            else:
                self._session.execute(f"UPDATE {self._table} SET mean=%s WHERE {where}", (_CHANGED, *key))  # noqa: S608 - our own names

        return change

    def close(self) -> None:
        """Close the client."""
        self._cluster.shutdown()


class HazelcastRows:
    """Entries of the map."""

    hop = "coap-to-hazelcast"

    def __init__(self, addresses: Addresses) -> None:
        self._client = hazelcast_client(addresses)
        self._map: Any = self._client.get_map(addresses.aggregates_map).blocking()

    def rows(self) -> dict[WindowKey, Tamper]:
        """Return the entries."""
        found = {}
        for entry, value in self._map.entry_set():
            row = json.loads(value.to_string())
            key = WindowKey(row["device_id"], row["metric"], row["window_start"])
            found[key] = self._tamper_of(entry, row)
        return found

    def _tamper_of(self, entry: object, row: dict[str, Any]) -> Tamper:
        def change(deletes: bool) -> None:
            if deletes:
                self._map.delete(entry)
            else:
                self._map.set(entry, HazelcastJsonValue({**row, "mean": _CHANGED}))

        return change

    def close(self) -> None:
        """Close the client."""
        self._client.shutdown()


def stores_of(addresses: Addresses) -> Collection[Store]:
    """Connect with the stores of a system."""
    return (ElasticsearchRows(addresses), CassandraRows(addresses), HazelcastRows(addresses))


def _start_ms(row: dict[str, Any]) -> int:
    start_ms = plain(row["window_start"])
    assert isinstance(start_ms, int)
    return start_ms
