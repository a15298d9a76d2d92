"""Servers that fail, freeze or lose answers: no record is lost or doubled, and the outage is reported."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from persisters_relay import Relay
from persisters_stores import STORES, HazelcastStore, MapStore, Store
from persisters_world import BASE_MS, Broker, Persisters, Seen

pytest_plugins = ("persisters_fixtures",)
pytestmark = pytest.mark.integration

PATIENT = ("error.policy=RETRY", "max.retries=-1", "retry.interval=500")
LOST_ANSWERS = [(name, write) for name, (kind, _) in STORES.items() for write in kind.lost_answers]


OUTAGE_S = 20
AT_ONCE, LONG = 0, pytest.param(OUTAGE_S, marks=[pytest.mark.long, pytest.mark.faults])
FIRST_WINDOW_MEANWHILE = 1_000


def aggregates_meanwhile(broker: Broker, seconds: int) -> list[Seen]:
    """Produce for so long."""
    pause = threading.Event()
    written = broker.aggregates(10, range(5, 10), revision=BASE_MS)
    for second in range(seconds):
        window = FIRST_WINDOW_MEANWHILE + second
        written += broker.aggregates(10, range(window, window + 1), revision=BASE_MS)
        pause.wait(1.0)
    return written


@pytest.fixture
def relay(store: Store) -> Iterator[Relay]:
    with closing(Relay(store.server.port)) as made:
        yield made


@pytest.mark.parametrize("outage_s", [AT_ONCE, LONG])
def test_a_server_that_is_away_is_waited_for(
    broker: Broker, store: Store, outage_s: int, persister: Persisters, request: pytest.FixtureRequest
) -> None:
    if isinstance(store, HazelcastStore):
        # All is in memory: what must survive needs a second member, with the first one's backups.
        request.getfixturevalue("hazelcast_second")
    task = persister(broker, store, *PATIENT)
    written = broker.aggregates(10, range(5), revision=BASE_MS)
    task.start()
    task.until_read(len(written))
    store.server.kill()
    written += aggregates_meanwhile(broker, outage_s)
    if not isinstance(store, HazelcastStore):
        task.until("not ready", lambda: "sink" in task.problems())
    store.server.start()
    store.server.wait_ready()
    written += broker.aggregates(10, range(10, 12), revision=BASE_MS)
    task.until_read(len(written))
    task.until("ready", lambda: not task.problems())
    task.until("all there", lambda: not store.problems(written))
    assert task.stop() == 0


@pytest.mark.parametrize("outage_s", [AT_ONCE, LONG])
def test_a_frozen_server_is_waited_for(broker: Broker, store: Store, outage_s: int, persister: Persisters) -> None:
    """A server that continues may still execute requests from before its freeze, besides the repeated ones."""
    task = persister(broker, store, *PATIENT, *store.impatient)
    written = broker.aggregates(10, range(5), revision=BASE_MS)
    task.start()
    task.until_read(len(written))
    store.server.pause()
    try:
        written += aggregates_meanwhile(broker, outage_s)
        task.until("not ready", lambda: "sink" in task.problems())
    finally:
        store.server.resume()
    written += broker.aggregates(10, range(10, 12), revision=BASE_MS)
    task.until_read(len(written))
    assert store.problems(written) == []
    task.until("ready", lambda: not task.problems())
    assert task.stop() == 0


@pytest.mark.parametrize(("store", "write"), LOST_ANSWERS, indirect=["store"])
def test_a_lost_answer_loses_and_doubles_nothing(
    broker: Broker, store: Store, write: str, persister: Persisters, relay: Relay
) -> None:
    task = persister(broker, store, *PATIENT, written=store.lines(broker.topic, relay.port))
    written = broker.aggregates(10, range(2), revision=BASE_MS)
    task.start()
    task.until_read(len(written))
    relay.lose_next_answer(store.lost_answers[write])
    written += broker.aggregates(10, range(2, 6), revision=BASE_MS)
    task.until_read(len(written))
    assert relay.lost.is_set()
    assert store.problems(written) == []
    assert task.stop() == 0


@pytest.mark.parametrize("store", ["elasticsearch"], indirect=True)
def test_retry_gives_up_on_a_server_that_stays_away_and_passes_nothing_over(
    broker: Broker, store: Store, persister: Persisters, relay: Relay
) -> None:
    lines = store.lines(broker.topic, relay.port)
    task = persister(broker, store, "error.policy=RETRY", "max.retries=2", "retry.interval=100", written=lines)
    written = broker.aggregates(10, range(2), revision=BASE_MS)
    task.start()
    task.until_read(len(written))
    relay.close()
    written += broker.aggregates(10, range(2, 4), revision=BASE_MS)
    assert task.exit_code() == 1
    assert "stopped by the error policy" in task.log()
    again = persister(broker, store, name=task.name)
    again.start()
    again.until_read(len(written))
    assert store.problems(written) == []
    assert again.stop() == 0


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.parametrize("frozen", [False, True])
def test_kafka_that_is_away_for_long_is_waited_for(
    broker: Broker, map_store: MapStore, persister: Persisters, kafka: Any, frozen: bool
) -> None:
    """With written records that are not committed yet when it goes."""
    task = persister(broker, map_store)
    written = broker.aggregates(10, range(5), revision=BASE_MS)
    task.start(commit_interval_ms=5_000)
    task.until_read(len(written))
    written += broker.aggregates(10, range(5, 10), revision=BASE_MS)
    task.until_read(len(written))
    away, back = (kafka.pause, kafka.resume) if frozen else (kafka.kill, kafka.start)
    away()
    threading.Event().wait(OUTAGE_S)
    back()
    kafka.wait_ready()
    written += broker.aggregates(10, range(10, 12), revision=BASE_MS)
    task.until_read(len(written))
    task.until("ready", lambda: not task.problems())
    task.until("committed", lambda: sum(broker.committed(task.group)) == len(written))
    assert map_store.problems(written) == []
    assert task.stop() == 0


def test_a_registry_that_is_away_holds_back_only_what_needs_it(
    broker: Broker, map_store: MapStore, persister: Persisters, registry: Any
) -> None:
    registry.kill()
    written = broker.aggregates(10, range(5), revision=BASE_MS)
    # By default the waits would grow with the registry's start, and the last one could take as long again.
    task = persister(broker, map_store, "retry.interval=500")
    task.start()
    task.until("not ready", lambda: "registry" in task.problems())
    assert map_store.problems(written) != []
    registry.start()
    registry.wait_ready()
    task.until_read(len(written))
    assert map_store.problems(written) == []
    task.until("ready", lambda: not task.problems())
    registry.kill()
    written += broker.aggregates(10, range(5, 10), revision=BASE_MS)
    task.until_read(len(written))
    assert map_store.problems(written) == []
    assert task.stop() == 0
    registry.start()
    registry.wait_ready()
