"""A write that the store executes after its partition has a new owner replaces nothing newer.

The relay delays it as a frozen server does: the request is complete, and its client has given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from persisters_relay import Relay
from persisters_stores import Store
from persisters_world import Broker, Persisters, until

pytest_plugins = ("persisters_fixtures",)
pytestmark = [pytest.mark.integration, pytest.mark.faults]

DEVICE = "dev-0"


@pytest.fixture
def relay(store: Store) -> Iterator[Relay]:
    with closing(Relay(store.server.port)) as made:
        yield made


@pytest.mark.parametrize("store", ["elasticsearch", "hazelcast", "postgresql"], indirect=True)
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
def test_a_late_write_of_a_former_owner_replaces_nothing_newer(
    readings: Broker, store: Store, persister: Persisters, relay: Relay, is_known: bool
) -> None:
    """Of an id that is in the store, or not yet."""
    before = persister(readings, store, written=store.lines_by_device(readings.topic, relay.port))
    first = 5 if is_known else 0
    readings.produce(*((DEVICE, readings.reading(DEVICE, number)) for number in range(first)), ("x", None))
    before.start()
    before.until_read(first + 1)
    before.until("committed", lambda: sum(readings.committed(before.group)) == first + 1)
    relay.hold_next(store.write_of(first))
    readings.produce((DEVICE, readings.reading(DEVICE, first)))
    before.until("a write is held", relay.held.is_set)
    before.kill()

    after = persister(readings, store, written=store.lines_by_device(readings.topic), name=before.name)
    readings.produce(*((DEVICE, readings.reading(DEVICE, number)) for number in range(first + 1, 10)))
    after.start()
    after.until_read(11)
    assert store.latest() == {DEVICE: 9}
    relay.release()
    until("the late write is answered", relay.answered.is_set)
    assert store.latest() == {DEVICE: 9}
    assert after.counts()["written"] == 10
    assert after.stop() == 0
