"""The evidence for the balance: identities read from ledgers, topics and stores, from the outside."""

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
from isotherm.demo.addresses import Places
from isotherm.demo.balance import Identity, Published
from isotherm.servicekit import kafka as clients
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.simulators.ledger import events

DEAD_LETTERS = ".dead-letters"
_ERROR_HEADERS = ("__connect.errors.topic", "__connect.errors.partition", "__connect.errors.offset")
_REQUEST_TIMEOUT_S = 60


@dataclass
class Topic:
    """What a topic holds, by identity; `counts` is the highest revision's `count` where the record has one."""

    identity_fields: tuple[str, ...]
    records: Counter[Identity] = field(default_factory=Counter)
    revisions: dict[Identity, int] = field(default_factory=dict)
    counts: dict[Identity, int] = field(default_factory=dict)
    from_coap: Counter[Identity] = field(default_factory=Counter)
    """Device and event time of the records that came in over CoAP."""


class Reader:
    """Reads one system; keep it for several readings, it keeps its connections."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._registry = SchemaRegistry(places.registry)
        self._decoder = Decoder(self._registry)
        self._elasticsearch = Elasticsearch(places.elasticsearch_url, request_timeout=_REQUEST_TIMEOUT_S)
        profile = ExecutionProfile(
            load_balancing_policy=RoundRobinPolicy(), row_factory=dict_factory, request_timeout=_REQUEST_TIMEOUT_S
        )
        self._cluster = Cluster(
            [places.cassandra_host],
            port=places.cassandra_port,
            # The newest version that Scylla speaks too; without it the driver tries them one by one.
            protocol_version=4,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        )
        self._cassandra = self._cluster.connect()
        self._hazelcast = HazelcastClient(
            cluster_name=places.hazelcast_cluster,
            cluster_members=[places.hazelcast_address],
            cluster_connect_timeout=_REQUEST_TIMEOUT_S,
        )

    def close(self) -> None:
        """Close every connection."""
        self._registry.close()
        self._hazelcast.shutdown()
        self._cluster.shutdown()
        self._elasticsearch.close()

    def topic(self, name: str) -> Topic:
        """Every committed record of a topic, by the identity that its writer's schema declares."""
        found = Topic(identity_fields=self._identity_fields(name))
        with closing(records.read(self._places.kafka, name)) as messages:
            for message in messages:
                value = message.value()
                if value is not None:
                    self._add(found, message, value)
        return found

    def _identity_fields(self, topic: str) -> tuple[str, ...]:
        text = self._registry.client.get_latest_version(f"{topic}-value").schema.schema_str
        return tuple(json.loads(text or "{}")["isotherm.identity"])

    def _add(self, found: Topic, message: Message, value: bytes) -> None:
        decoded = self._decoder(value)
        record = cast(Mapping[str, Any], decoded.record)
        identity = identity_of(record, found.identity_fields)
        found.records[identity] += 1
        revision_field = decoded.writer.json.get("isotherm.revision")
        if revision_field is not None and record[revision_field] >= found.revisions.get(identity, -1):
            found.revisions[identity] = record[revision_field]
            found.counts[identity] = record["count"]
        if "device_id" in record and any(header == "coap.uri" for header, _ in _headers(message)):
            found.from_coap[(record["device_id"], plain(record["event_time"]))] += 1

    def payloads(self, name: str) -> Counter[Identity]:
        """Sensor and time inside the payload of each raw CoAP message of a topic, in the documents' form."""
        found: Counter[Identity] = Counter()
        with closing(records.read(self._places.kafka, name)) as messages:
            for message in messages:
                record = cast(Mapping[str, Any], self._decoder(message.value() or b"").record)
                if record["payload"]:
                    found[sensor_identity(json.loads(record["payload"]))] += 1
        return found

    def latest(self, name: str) -> Counter[Identity]:
        """Device, metric and event time of the newest readings that a topic of DeviceState records knows by now."""
        states: dict[bytes | None, Mapping[str, Any]] = {}
        with closing(records.read(self._places.kafka, name)) as messages:
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
        with closing(records.read(self._places.kafka, name)) as messages:
            for message in messages:
                value = message.value() or b""
                alert = cast(Mapping[str, Any], self._decoder(value).record)
                found.setdefault(identity_of(alert, ("alert_id", "state")), Counter())[value] += 1
        return found

    def dead_letters(self) -> dict[str, list[Hashable]]:
        """Where each dead letter came from (topic, partition, offset), by dead-letter topic."""
        known = clients.admin(self._places.kafka, "isotherm-balance").list_topics(timeout=_REQUEST_TIMEOUT_S).topics
        found: dict[str, list[Hashable]] = {}
        for name in sorted(topic for topic in known if topic.endswith(DEAD_LETTERS)):
            with closing(records.read(self._places.kafka, name)) as messages:
                found[name] = [_origin(message) for message in messages]
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
        self._cluster.refresh_schema_metadata()
        keyspace = self._cluster.metadata.keyspaces.get(self._places.keyspace)
        if keyspace is None or table not in keyspace.tables:
            return Counter()
        columns = ", ".join(f'"{name}"' for name in names)
        found = self._cassandra.execute(f'SELECT {columns} FROM "{self._places.keyspace}"."{table}"')  # noqa: S608 - our own names
        return Counter(identity_of(row, names) for row in found)

    def map_entries(self, name: str, identity_fields: Iterable[str]) -> Counter[Identity]:
        """Identities of the values of a Hazelcast map."""
        names = tuple(identity_fields)
        values: list[Any] = self._hazelcast.get_map(name).blocking().values()
        return Counter(identity_of(_document(value), names) for value in values)

    def queue_items(self, name: str, identity_fields: Iterable[str]) -> Counter[Identity]:
        """Identities of the items of a Hazelcast queue, which stay in it."""
        names = tuple(identity_fields)
        items: list[Any] = self._hazelcast.get_queue(name).blocking().iterator()
        return Counter(identity_of(_document(item), names) for item in items)


def latest_of(state: Mapping[str, Any]) -> Iterator[Identity]:
    """Device, metric and event time of each reading in a DeviceState record."""
    for metric, reading in state["latest"].items():
        yield (state["device_id"], metric, plain(reading["event_time"]))


def mqtt_ledger(paths: Iterable[Path]) -> Published:
    """What the fleets published and what was acknowledged to them."""
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
    """Sensor and time of the documents' CoAP payload."""
    return (payload["sensorId"], payload["timestamp"])


def identity_of(record: Mapping[str, Any], fields: Iterable[str]) -> Identity:
    """The values of the fields, comparable whichever way a store gave them back."""
    return tuple(plain(record[name]) for name in fields)


def plain(value: object) -> Hashable:
    """A value in the one form in which all places agree: times as epoch milliseconds."""
    if isinstance(value, datetime):
        # CQL's timestamps come without a zone; they are UTC.
        zoned = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return round(zoned.timestamp() * 1000)
    assert isinstance(value, Hashable), f"{value!r} cannot be a part of an identity"
    return value


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def _origin(message: Message) -> Hashable:
    headers = dict(_headers(message))
    if all(name in headers for name in _ERROR_HEADERS):
        return tuple((headers[name] or b"").decode() for name in _ERROR_HEADERS)
    return (message.topic(), message.partition(), message.offset())


def _document(value: Any) -> Mapping[str, Any]:
    # HazelcastJsonValue; its text is the document.
    return cast(Mapping[str, Any], json.loads(value.to_string()))
