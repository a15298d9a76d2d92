"""Structures without identities hold each record once, wherever the writer is killed; full structures."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import persisters_crash
import pytest
from persisters_crash import AFTER, BEFORE, CALLS
from persisters_stores import UNORDERED, HazelcastStore, Held, items
from persisters_world import BASE_MS, Broker, Persister, Persisters, Seen, seen

from isotherm.stack.servers.hazelcast import BOUNDED_QUEUE_ITEMS

pytest_plugins = ("persisters_fixtures",)
pytestmark = pytest.mark.integration

ROOM = BOUNDED_QUEUE_ITEMS


class QueueStore(HazelcastStore):
    """A bounded queue."""

    kinds = ("QUEUE",)

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self.target = f"bounded_{self.target}"

    def size(self) -> int:
        """How many items wait in it."""
        return int(self.client.get_queue(self.name("QUEUE")).size().result())

    def take(self, most: int) -> list[Seen]:
        """Take items out, as a consumer of the queue does."""
        queue: Any = self.client.get_queue(self.name("QUEUE"))
        taken = [queue.poll().result() for _ in range(most)]
        return [seen(json.loads(item.to_string())) for item in taken if item is not None]


@pytest.fixture
def queue(hazelcast: Any) -> Iterator[QueueStore]:
    with closing(QueueStore(hazelcast)) as made:
        yield made


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("kind", CALLS)
def test_a_crash_right_before_and_after_the_write_is_made_good(
    kind: str, when: str, structures: HazelcastStore
) -> None:
    """Before `add_all` there is an intent; after it nothing records yet that it is done."""
    client, name = structures.client, structures.name(kind)

    def numbers() -> list[int]:
        found = [int(item.to_string()) for item in items(client, kind, name)]
        return sorted(found) if kind in UNORDERED else found

    persisters_crash.write(client, kind, name, 3)
    arguments = [structures.server.address, structures.server.cluster_name, kind, name, "10", when, "1", "1000"]
    died = subprocess.run([sys.executable, persisters_crash.__file__, *arguments], check=False)
    assert died.returncode == -signal.SIGKILL
    assert numbers() == list(range(10 if when == AFTER else 3))
    persisters_crash.write(client, kind, name, 15)
    assert numbers() == list(range(15))


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("kind", ["RING_BUFFER", "RELIABLE_TOPIC"])
def test_a_crash_between_the_appends_of_several_partitions_is_made_good(
    kind: str, when: str, structures: HazelcastStore
) -> None:
    """Some appends that share an intent were executed, some were not."""
    client, name = structures.client, structures.name(kind)
    arguments = [structures.server.address, structures.server.cluster_name, kind, name, "10", when, "4", "1000"]
    died = subprocess.run([sys.executable, persisters_crash.__file__, *arguments], check=False)
    assert died.returncode == -signal.SIGKILL
    persisters_crash.write(client, kind, name, 15, 4)
    found = [divmod(int(item.to_string()), 1_000) for item in items(client, kind, name)]
    assert sorted(found) == [(partition, offset) for partition in range(4) for offset in range(15)]
    for partition in range(4):
        of_partition = [offset for each, offset in found if each == partition]
        assert of_partition == sorted(of_partition), "each partition's items are in its order"


@pytest.mark.parametrize("kind", ["RING_BUFFER", "RELIABLE_TOPIC"])
def test_a_crash_between_appends_of_equal_items_is_made_good(kind: str, structures: HazelcastStore) -> None:
    """Items that one partition appended do not count for another one."""
    client, name = structures.client, structures.name(kind)
    arguments = [structures.server.address, structures.server.cluster_name, kind, name, "10", BEFORE, "4", "0"]
    died = subprocess.run([sys.executable, persisters_crash.__file__, *arguments], check=False)
    assert died.returncode == -signal.SIGKILL
    assert 0 < len(items(client, kind, name)) < 4 * 10
    persisters_crash.write(client, kind, name, 15, 4, apart=0)
    found = Counter(int(item.to_string()) for item in items(client, kind, name))
    assert found == dict.fromkeys(range(15), 4)


def drain(queue: QueueStore, task: Persister, taken: list[Seen], written: list[Seen]) -> None:
    """Take the remaining items; with those taken before, they are the written ones, each once and in order."""
    while len(taken) < len(written):
        task.until("more", lambda: queue.size() > 0)
        taken += queue.take(ROOM)
    task.until_read(len(written))
    assert Held("QUEUE", taken).problem(written) is None
    assert queue.size() == 0


def test_a_full_queue_slows_the_reader_and_takes_the_rest_when_it_has_room(
    broker: Broker, queue: QueueStore, persister: Persisters
) -> None:
    written = broker.aggregates(10, range(14), revision=BASE_MS)
    task = persister(broker, queue, "retry.interval=200")
    task.start()
    task.until("full", lambda: queue.size() == ROOM and "sink" in task.problems())
    taken = queue.take(ROOM // 2)
    task.until("full again", lambda: queue.size() == ROOM)
    drain(queue, task, taken, written)
    task.until("ready", lambda: not task.problems())
    assert task.stop() == 0


def test_a_full_queue_refuses_only_what_it_does_not_hold(
    broker: Broker, queue: QueueStore, persister: Persisters
) -> None:
    """Also when its records are written again, after a kill before the commit."""
    written = broker.aggregates(10, range(14), revision=BASE_MS)
    policy = ("connect.hazelcast.queue.full=POLICY", "error.policy=NOOP", "errors.deadletterqueue.enable=true")
    task = persister(broker, queue, *policy)
    task.start(commit_interval_ms=600_000)
    task.until_read(len(written))
    task.kill()
    task.start()
    task.until_read(len(written))
    counts = task.counts()
    assert (counts["written"], counts["dead_lettered"]) == (ROOM, len(written) - ROOM)
    held = queue.take(2 * ROOM)
    dead = broker.dead_letters(f"{task.name}.dead-letters", len(written) - ROOM)
    refused = {broker.aggregate(*one) for one in written if one not in held}
    assert {value for value, _ in dead} == refused
    assert len(held) == ROOM
    assert task.stop() == 0


def test_paused_partitions_that_move_to_another_process_and_back_go_on(
    broker: Broker, queue: QueueStore, persister: Persisters
) -> None:
    """While they are paused, their lag is reported."""
    written = broker.aggregates(10, range(40), revision=BASE_MS)
    lines = ("retry.interval=200", "connect.hazelcast.batch.size=10")
    first = persister(broker, queue, *lines)
    first.start(waiting_records=20)
    first.until("paused", lambda: first.gauge("paused_partitions") == 2)
    written += broker.aggregates(10, range(40, 45), revision=BASE_MS)
    first.until("told", lambda: first.gauge("lag_records") == len(written) - first.counts()["read"])
    second = persister(broker, queue, *lines, name=first.name)
    second.start(waiting_records=20)
    second.until("paused", lambda: second.gauge("paused_partitions") == 1)
    assert second.stop() == 0
    first.until("paused again", lambda: first.gauge("paused_partitions") == 2)
    drain(queue, first, [], written)
    assert first.stop() == 0
