"""One suite for every sink on real servers: what is written, what is kept, and what a crash must not change."""

from __future__ import annotations

from collections import Counter

import pytest
from persisters_stores import MapStore, Store
from persisters_world import BASE_MS, Broker, Persisters

pytest_plugins = ("persisters_fixtures",)
pytestmark = pytest.mark.integration

DEAD_LETTERS = "errors.deadletterqueue.enable=true"


def test_arrives_once_and_a_replay_changes_nothing(broker: Broker, store: Store, persister: Persisters) -> None:
    """Also: a lower revision behind a higher one changes nothing, and SIGTERM ends the task well."""
    written = broker.aggregates(10, range(8), revision=BASE_MS + 2)
    written += broker.aggregates(10, range(4), revision=BASE_MS + 1)
    written += broker.aggregates(10, range(2), revision=BASE_MS + 3)
    task = persister(broker, store)
    task.start()
    task.until_read(len(written))
    assert store.problems(written) == []
    assert task.stop() == 0

    broker.rewind(task.group)
    task.start()
    task.until_read(len(written))
    assert store.problems(written) == []
    assert task.stop() == 0


def test_a_kill_between_write_and_commit_loses_and_doubles_nothing(
    broker: Broker, store: Store, persister: Persisters
) -> None:
    written = broker.aggregates(10, range(10), revision=BASE_MS + 1)
    task = persister(broker, store)
    task.start(commit_interval_ms=600_000)
    task.until_read(len(written))
    task.kill()

    written += broker.aggregates(10, range(10, 12), revision=BASE_MS + 1)
    task.start()
    task.until_read(len(written))
    assert store.problems(written) == []
    assert task.counts()["written"] == len(written), "the uncommitted counts went with the uncommitted offsets"
    assert task.stop() == 0


def test_the_last_record_of_a_key_stays_also_after_a_kill(
    readings: Broker, store: Store, persister: Persisters
) -> None:
    """The readings have no revision and one event time: only their order in the topic says which one is last.

    They are more than a thousand in each partition: so many have write times of their own in Cassandra.
    """
    task = persister(readings, store, written=store.lines_by_device(readings.topic))
    devices, sequences = [f"dev-{number}" for number in range(10)], range(431)
    readings.produce(*((device, readings.reading(device, number)) for number in sequences for device in devices))
    task.start(commit_interval_ms=600_000)
    task.until("some written", lambda: task.counts()["written"] > 0)
    task.kill()
    task.start()
    task.until_read(len(devices) * len(sequences))
    assert store.latest() == dict.fromkeys(devices, sequences[-1])
    assert task.stop() == 0


def test_poison_becomes_dead_letters_with_its_bytes_and_the_rest_flows(
    broker: Broker, store: Store, persister: Persisters
) -> None:
    whole = broker.aggregate("dev-0", 0, BASE_MS)
    poison = [b"\x07bad magic", b"\x00\x7f\xff\xff\xffunknown id", whole[:-4], b"", b"x" * 900_000]
    written = broker.aggregates(3, range(5), revision=BASE_MS)
    broker.produce(*(("dev-0", value) for value in poison))
    written += broker.aggregates(3, range(5, 10), revision=BASE_MS)
    task = persister(broker, store, "error.policy=NOOP", DEAD_LETTERS)
    task.start()
    task.until_read(len(written) + len(poison))
    assert store.problems(written) == []
    counts = task.counts()
    assert (counts["written"], counts["dead_lettered"]) == (len(written), len(poison))
    dead = broker.dead_letters(f"{task.name}.dead-letters", len(poison))
    assert Counter(value for value, _ in dead) == Counter(poison)
    for _, headers in dead:
        assert headers["h"] == b"kept"
        assert headers["__connect.errors.topic"] == broker.topic.encode()
        assert headers["__connect.errors.stage"] == b"VALUE_CONVERTER"
        assert headers["__connect.errors.exception.message"]
    assert task.stop() == 0


@pytest.mark.parametrize("store", ["elasticsearch", "scylla", "postgresql"], indirect=True)
def test_what_the_server_refuses_becomes_dead_letters_and_the_rest_of_its_batch_arrives(
    broker: Broker, store: Store, persister: Persisters
) -> None:
    """A value that the target's type refuses, and one of a megabyte where the server accepts no such key."""
    store.refuse_counts_above_32767()
    refused = [broker.aggregate("dev-0", 98, BASE_MS, count=100_000), broker.aggregate("d" * 900_000, 0, BASE_MS)]
    written = broker.aggregates(3, range(5), revision=BASE_MS)
    broker.produce(*(("dev-0", value) for value in refused))
    written += broker.aggregates(3, range(5, 10), revision=BASE_MS)
    task = persister(broker, store, "error.policy=RETRY", "max.retries=2", DEAD_LETTERS)
    task.start()
    task.until_read(len(written) + len(refused))
    assert store.problems(written) == []
    dead = broker.dead_letters(f"{task.name}.dead-letters", len(refused))
    assert Counter(value for value, _ in dead) == Counter(refused)
    assert {headers["__connect.errors.stage"] for _, headers in dead} == {b"TASK_PUT"}
    assert task.stop() == 0


@pytest.mark.parametrize("store", ["elasticsearch", "scylla", "postgresql"], indirect=True)
def test_throw_commits_what_comes_before_the_record_that_the_server_refuses(
    broker: Broker, store: Store, persister: Persisters
) -> None:
    """A fresh start stops there again; NOOP without dead letters then passes it over and counts it."""
    store.refuse_counts_above_32767()
    written = broker.aggregates(1, range(20), revision=BASE_MS)
    broker.produce(("dev-0", broker.aggregate("dev-0", 98, BASE_MS, count=100_000)))
    strict = persister(broker, store)
    strict.start()
    assert strict.exit_code() == 1
    assert "at offset 20: TASK_PUT" in strict.log()
    assert store.problems(written) == []
    assert set(broker.committed(strict.group)) == {20}
    written += broker.aggregates(1, range(20, 25), revision=BASE_MS)
    lenient = persister(broker, store, "error.policy=NOOP")
    lenient.start()
    lenient.until_read(len(written) + 1)
    assert store.problems(written) == []
    assert lenient.counts()["skipped"] == 1
    assert lenient.stop() == 0


def test_throw_stops_at_the_bad_record_and_a_restart_stops_there_again(
    broker: Broker, map_store: MapStore, persister: Persisters
) -> None:
    written = broker.aggregates(1, range(20), revision=BASE_MS)
    broker.produce(("dev-0", b"poison"), ("dev-0", broker.aggregate("dev-0", 99, BASE_MS)))
    task = persister(broker, map_store, DEAD_LETTERS)
    for _ in range(2):
        task.start()
        assert task.exit_code() == 1
        assert map_store.problems(written) == []
    told = task.log()
    assert "stopped by the error policy" in told
    assert f"{broker.topic}-" in told
    assert "at offset 20: VALUE_CONVERTER" in told


def test_retry_stops_at_a_record_that_no_attempt_can_write(
    broker: Broker, map_store: MapStore, persister: Persisters
) -> None:
    """Without dead letters, and at once, because another attempt would change nothing."""
    written = broker.aggregates(1, range(20), revision=BASE_MS)
    broker.produce(("dev-0", b"poison"))
    task = persister(broker, map_store, "error.policy=RETRY")
    task.start()
    assert task.exit_code() == 1
    assert "at offset 20: VALUE_CONVERTER" in task.log()
    assert map_store.problems(written) == []
