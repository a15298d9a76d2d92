"""A topic that is deleted and created again starts its offsets again: its records count as new."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hazelcast.core import HazelcastJsonValue
from persisters_stores import HazelcastStore, items
from persisters_world import BASE_MS, Broker, Persisters, until

from isotherm.cli.apply import apply
from isotherm.cli.plan import DeclaredTopic
from isotherm.persisters.api.row import Row
from isotherm.persisters.sinks.hazelcast.append_writer import AppendWriter
from isotherm.persisters.sinks.hazelcast.structures import (
    APPENDED,
    Entry,
    Source,
    TransactionalWriter,
)
from isotherm.servicekit.kafka import clients

pytest_plugins = ("persisters_fixtures",)
pytestmark = pytest.mark.integration

KINDS = ("QUEUE", "LIST", "SET", "MULTI_MAP", "RING_BUFFER", "RELIABLE_TOPIC")


def write(store: HazelcastStore, kind: str, topic_id: str, numbers: range) -> None:
    """Write records with the offsets from 0 on, by a writer without state."""
    source = Source("c", "t", 0, topic_id)
    entries = [
        Entry(
            Row(offset, store.name(kind), "key", {}, 0, None, cast(Any, None)),  # no writer looks at the plan
            HazelcastJsonValue(str(number)),
        )
        for offset, number in enumerate(numbers)
    ]
    if kind in APPENDED:
        AppendWriter(store.client).write(kind, store.name(kind), source, entries)
    else:
        TransactionalWriter(store.client, 500, 20.0).write(kind, store.name(kind), source, entries)


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_are_those_of_one_topic(kind: str, structures: HazelcastStore) -> None:
    """Also markers of a version without topic ids: they are taken over once."""
    for topic_id, numbers, expected in (
        ("", range(5), 5),
        ("one", range(8), 8),
        ("one", range(8), 8),
        ("two", range(100, 103), 11),
        ("two", range(100, 104), 12),
        ("three", range(200, 202), 14),
    ):
        write(structures, kind, topic_id, numbers)
        assert len(items(structures.client, kind, structures.name(kind))) == expected, topic_id


def recreate(broker: Broker) -> None:
    """Delete the topic and create it again."""
    admin = clients.admin(broker.kafka, "test")
    for future in admin.delete_topics([broker.topic]).values():
        future.result()
    until("deleted", lambda: broker.topic not in admin.list_topics(timeout=30).topics)
    apply(broker.kafka, broker.registry, topics=[DeclaredTopic(broker.topic, 2, {})], subjects=[])


def test_a_topic_that_is_made_anew_is_written_from_its_beginning(
    broker: Broker, structures: HazelcastStore, persister: Persisters
) -> None:
    """In every structure, with fewer records than the previous topic had."""
    structures.kinds = KINDS
    written = broker.aggregates(5, range(8), revision=BASE_MS)
    task = persister(broker, structures)
    task.start()
    task.until_read(len(written))
    assert task.stop() == 0
    recreate(broker)
    written += broker.aggregates(5, range(100, 103), revision=BASE_MS)
    task.start()
    task.until("stored", lambda: structures.problems(written) == [])
    assert task.stop() == 0
