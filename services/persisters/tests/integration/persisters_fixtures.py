"""Fixtures of the persisters' conformance suite, a pytest plugin of its test files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from persisters_stores import STORES, HazelcastStore, MapStore, Store
from persisters_world import Broker, Persister, Persisters


@pytest.fixture
def broker(kafka: Any, registry: Any) -> Broker:
    """A topic of aggregates of this test's own."""
    return Broker(kafka.bootstrap_servers, registry.url)


@pytest.fixture
def readings(kafka: Any, registry: Any) -> Broker:
    """A topic of readings of this test's own."""
    return Broker(kafka.bootstrap_servers, registry.url, "SensorReading")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Each sink in turn."""
    kind, server = STORES[request.param]
    made: Store = kind(request.getfixturevalue(server))  # type: ignore[call-arg]  # every kind takes its server
    yield made
    made.close()


@pytest.fixture
def map_store(hazelcast: Any) -> Iterator[MapStore]:
    """A map, for what is the same for every sink."""
    made = MapStore(hazelcast)
    yield made
    made.close()


@pytest.fixture
def structures(hazelcast: Any) -> Iterator[HazelcastStore]:
    """All structures of Hazelcast."""
    made = HazelcastStore(hazelcast)
    yield made
    made.close()


def tasks_max(lines: Sequence[str]) -> int:
    return next((int(line.removeprefix("tasks.max=")) for line in lines if line.startswith("tasks.max=")), 1)


@pytest.fixture
def persister(tmp_path: Path, free_port_row: Callable[[int], int]) -> Iterator[Persisters]:
    """Creates persisters from a topic into a store; each task serves its status on a port of its own.

    `written` replaces the store's own lines; `name` makes another process of the same connector.
    """
    made: list[Persister] = []

    def make(
        broker: Broker, store: Store, *more: str, written: Sequence[str] | None = None, name: str | None = None
    ) -> Persister:
        lines = store.lines(broker.topic) if written is None else written
        port = free_port_row(tasks_max(more))
        made.append(Persister(broker, store.sink, tmp_path, port, [*lines, *more], name))
        return made[-1]

    yield make
    for one in made:
        one.kill()
