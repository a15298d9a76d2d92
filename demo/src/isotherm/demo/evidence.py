"""The evidence of the report: identities read from ledgers, topics and stores, from outside of the services."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy
from cassandra.query import dict_factory
from confluent_kafka import Message
from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan
from hazelcast.client import HazelcastClient

from isotherm.cli import records
from isotherm.cli.reconciliation.report import Identity
from isotherm.connector.config import dead_letter_topics
from isotherm.demo.addresses import Addresses
from isotherm.demo.reconciliation import Published
from isotherm.servicekit.avro import Decoded, Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.simulators.ledger import events

_ERROR_HEADERS = ("__connect.errors.topic", "__connect.errors.partition", "__connect.errors.offset")
_REQUEST_TIMEOUT_S = 60


@dataclass
class Topic:
    """A topic's records by identity; `counts` is the `count` of the highest revision, where records have revisions."""

    identity_fields: tuple[str, ...]
    records: Counter[Identity] = field(default_factory=Counter)
    revisions: dict[Identity, int] = field(default_factory=dict)
    counts: dict[Identity, int] = field(default_factory=dict)
    from_coap: Counter[Identity] = field(default_factory=Counter)
    """Device and event time of the records that arrived over CoAP."""


def cassandra_cluster(addresses: Addresses) -> Cluster:
    """Return a client of Cassandra whose rows are dicts."""
    profile = ExecutionProfile(
        load_balancing_policy=RoundRobinPolicy(), row_factory=dict_factory, request_timeout=_REQUEST_TIMEOUT_S
    )
    return Cluster(
        [addresses.cassandra_host],
        port=addresses.cassandra_port,
        # The newest version that Scylla also speaks; without it the driver tries all versions.
        protocol_version=4,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )


def has_table(cluster: Cluster, keyspace: str, table: str) -> bool:
    """Return whether there is such a table by now."""
    cluster.refresh_schema_metadata()
    found = cluster.metadata.keyspaces.get(keyspace)
    return found is not None and table in found.tables


def hazelcast_client(addresses: Addresses) -> HazelcastClient:
    """Return a client of Hazelcast."""
    return HazelcastClient(
        cluster_name=addresses.hazelcast_cluster,
        cluster_members=[addresses.hazelcast_address],
        cluster_connect_timeout=_REQUEST_TIMEOUT_S,
    )


class Reader:
    """Reads the evidence of one system; keeps its connections for further reads."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._registry = SchemaRegistry(addresses.registry)
        self._decoder = Decoder(self._registry)
        self._elasticsearch = Elasticsearch(addresses.elasticsearch_url, request_timeout=_REQUEST_TIMEOUT_S)
        self._cluster = cassandra_cluster(addresses)
        self._cassandra = self._cluster.connect()
        self._hazelcast = hazelcast_client(addresses)

    def close(self) -> None:
        """Close every connection."""
        self._registry.close()
        self._hazelcast.shutdown()
        self._cluster.shutdown()
        self._elasticsearch.close()

    def topic(self, name: str) -> Topic:
        """Every committed record of a topic, by the identity that the writer's schema declares."""
        found = Topic(identity_fields=self._identity_fields(name))
        with closing(records.read(self._addresses.kafka, name)) as messages:
            for message in messages:
                value = message.value()
                if value is not None:
                    add_record(found, self._decoder(value), _headers(message))
        return found

    def _identity_fields(self, topic: str) -> tuple[str, ...]:
        text = self._registry.client.get_latest_version(f"{topic}-value").schema.schema_str
        return tuple(json.loads(text or "{}")["isotherm.identity"])

    def payloads(self, name: str) -> Counter[Identity]:
        """Sensor and time of the payload of each raw CoAP message of a topic."""
        found: Counter[Identity] = Counter()
        with closing(records.read(self._addresses.kafka, name)) as messages:
            for message in messages:
                record = cast(Mapping[str, Any], self._decoder(message.value() or b"").record)
                if record["payload"]:
                    found[sensor_identity(json.loads(record["payload"]))] += 1
        return found

    def latest(self, name: str) -> Counter[Identity]:
        """Device, metric and event time of the newest readings in a topic of DeviceState records."""
        states: dict[bytes | None, Mapping[str, Any]] = {}
        with closing(records.read(self._addresses.kafka, name)) as messages:
            for message in messages:
                value = message.value()
                if value is None:
                    states.pop(message.key(), None)
                else:
                    states[message.key()] = cast(Mapping[str, Any], self._decoder(value).record)
        return Counter(identity for state in states.values() for identity in latest_of(state))

    def alerts(self, name: str) -> dict[Identity, Counter[bytes]]:
        """The records of a topic of alerts, as bytes, by alert and state."""
        found: dict[Identity, Counter[bytes]] = {}
        with closing(records.read(self._addresses.kafka, name)) as messages:
            for message in messages:
                value = message.value() or b""
                alert = cast(Mapping[str, Any], self._decoder(value).record)
                found.setdefault(identity_of(alert, ("alert_id", "state")), Counter())[value] += 1
        return found

    def dead_letters(self) -> dict[str, list[Hashable]]:
        """The origin (topic, partition, offset) of each dead-letter record, by dead-letter topic."""
        known = clients.admin(self._addresses.kafka, "isotherm-report").list_topics(timeout=_REQUEST_TIMEOUT_S).topics
        found: dict[str, list[Hashable]] = {}
        for name in sorted(topic for topic in known if topic.endswith(dead_letter_topics.SUFFIX)):
            with closing(records.read(self._addresses.kafka, name)) as messages:
                found[name] = [
                    origin_of(message.topic(), message.partition(), message.offset(), _headers(message))
                    for message in messages
                ]
        return found

    def documents(self, index: str, identity_fields: Iterable[str]) -> Counter[Identity]:
        """Identities of the documents in all indices of a pattern."""
        names = tuple(identity_fields)
        self._elasticsearch.indices.refresh(index=index, ignore_unavailable=True, allow_no_indices=True)
        hits = scan(
            self._elasticsearch,
            index=index,
            query={"_source": list(names)},
            size=2_000,
            ignore_unavailable=True,
            allow_no_indices=True,
        )
        return Counter(identity_of(hit["_source"], names) for hit in hits)

    def rows(self, table: str, identity_fields: Iterable[str]) -> Counter[Identity]:
        """Identities of the rows of a table; none when there is no such table yet."""
        names = tuple(identity_fields)
        if not has_table(self._cluster, self._addresses.keyspace, table):
            return Counter()
        columns = ", ".join(f'"{name}"' for name in names)
        found = self._cassandra.execute(f'SELECT {columns} FROM "{self._addresses.keyspace}"."{table}"')  # noqa: S608 - our own names
        return Counter(identity_of(row, names) for row in found)

    def map_entries(self, name: str, identity_fields: Iterable[str]) -> Counter[Identity]:
        """Identities of the values of a Hazelcast map."""
        names = tuple(identity_fields)
        values: list[Any] = self._hazelcast.get_map(name).blocking().values()
        return Counter(identity_of(_document(value), names) for value in values)

    def queue_items(self, name: str, identity_fields: Iterable[str]) -> Counter[Identity]:
        """Identities of the items of a Hazelcast queue; the items stay in the queue."""
        names = tuple(identity_fields)
        items: list[Any] = self._hazelcast.get_queue(name).blocking().iterator()
        return Counter(identity_of(_document(item), names) for item in items)


def latest_of(state: Mapping[str, Any]) -> Iterator[Identity]:
    """Device, metric and event time of each reading in a DeviceState record."""
    for metric, reading in state["latest"].items():
        yield (state["device_id"], metric, plain(reading["event_time"]))


def mqtt_ledger(paths: Iterable[Path]) -> Published:
    """The readings that simulated devices published, and those that were acknowledged."""
    qos_by_identity: dict[Identity, int] = {}
    acknowledged: set[Identity] = set()
    for event in _ledger_events(paths):
        if event["event"] in ("published", "acknowledged"):
            identity = (event["device_id"], event["metric"], event["event_time_ms"], event["sequence"])
            if event["event"] == "published":
                qos_by_identity[identity] = event["qos"]
            else:
                acknowledged.add(identity)
    return Published(qos_by_identity, acknowledged)


def coap_ledger(paths: Iterable[Path]) -> set[Identity]:
    """Sensor and time of every notification that was sent to an observer."""
    return {
        (event["device_id"], event["event_time_ms"]) for event in _ledger_events(paths) if event["event"] == "notified"
    }


def _ledger_events(paths: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    for path in paths:
        if path.exists():
            yield from events(path)


def sensor_identity(payload: Mapping[str, Any]) -> Identity:
    """Sensor and time of a CoAP payload."""
    return (payload["sensorId"], payload["timestamp"])


def add_record(found: Topic, decoded: Decoded, headers: Iterable[tuple[str, Any]]) -> None:
    """Add one decoded record of a topic, with the headers that it came with."""
    record = cast(Mapping[str, Any], decoded.record)
    identity = identity_of(record, found.identity_fields)
    found.records[identity] += 1
    revision_field = decoded.writer.json.get("isotherm.revision")
    if revision_field is not None and record[revision_field] >= found.revisions.get(identity, -1):
        found.revisions[identity] = record[revision_field]
        found.counts[identity] = record["count"]
    if "device_id" in record and any(header == "coap.uri" for header, _ in headers):
        found.from_coap[(record["device_id"], plain(record["event_time"]))] += 1


def identity_of(record: Mapping[str, Any], fields: Iterable[str]) -> Identity:
    """The values of the fields, in a form in which the values of different stores can be compared."""
    return tuple(plain(record[name]) for name in fields)


def plain(value: object) -> Hashable:
    """A value in the common form of all stores: times as epoch milliseconds."""
    if isinstance(value, datetime):
        # CQL's timestamps come without a zone; they are UTC.
        zoned = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return round(zoned.timestamp() * 1000)
    assert isinstance(value, Hashable), f"{value!r} cannot be a part of an identity"
    return value


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def origin_of(
    topic: str | None, partition: int | None, offset: int | None, headers: Iterable[tuple[str, bytes | None]]
) -> Hashable:
    """Topic, partition and offset of the record that failed, from the headers of its dead-letter record.

    The first three arguments are the dead-letter record's own, which count for a message that never was in a topic.
    """
    named = dict(headers)
    if all(name in named for name in _ERROR_HEADERS):
        return tuple((named[name] or b"").decode() for name in _ERROR_HEADERS)
    return (topic, partition, offset)


def _document(value: Any) -> Mapping[str, Any]:
    # The value is a HazelcastJsonValue, whose text is the document.
    return cast(Mapping[str, Any], json.loads(value.to_string()))
