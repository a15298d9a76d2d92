"""After a replay the sink is as after a single run; a task of which every record fails stops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from persisters_stores import MapStore
from persisters_world import BASE_MS, Broker, Persister, Persisters

pytest_plugins = ("persisters_fixtures",)
pytestmark = pytest.mark.integration


def command(broker: Broker, folder: Path, task: Persister, *words: str) -> subprocess.CompletedProcess[str]:
    """`persisters WORD FILE ...` on the task's connector."""
    kafka = f"kafka.bootstrap_servers={broker.kafka.bootstrap_servers}"
    file = str(folder / f"{task.name}.properties")
    line = [sys.executable, "-m", "isotherm.persisters", words[0], file, *words[1:], "--set", kafka]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_a_lost_sink_is_filled_again_and_a_new_one_begins_where_it_is_told(
    broker: Broker, map_store: MapStore, persister: Persisters, tmp_path: Path
) -> None:
    written = broker.aggregates(10, range(4), revision=BASE_MS)
    task = persister(broker, map_store)
    task.start()
    task.until_read(len(written))
    refused = command(broker, tmp_path, task, "replay", "--to", "earliest")
    assert refused.returncode == 1, refused
    assert "has running tasks" in refused.stderr
    assert task.stop() == 0, task.log()

    map_store.client.get_map(map_store.name("IMAP")).clear().result()
    before = command(broker, tmp_path, task, "offsets").stdout
    for _ in range(2):
        done = command(broker, tmp_path, task, "replay", "--to", "earliest")
        assert done.returncode == 0, done
        assert [line.split(" ")[-2] for line in done.stdout.splitlines()] == ["0", "0"]
    after = command(broker, tmp_path, task, "offsets").stdout
    assert after.count("committed=0 ") == 2
    assert [line.split("written=")[1] for line in after.splitlines()] == [
        line.split("written=")[1] for line in before.splitlines()
    ], "what was settled before stays counted"
    task.start()
    task.until_read(2 * len(written))
    assert map_store.problems(written) == []
    assert task.stop() == 0, task.log()

    later = persister(broker, map_store)
    assert command(broker, tmp_path, later, "replay", "--to", "latest").returncode == 0
    map_store.client.get_map(map_store.name("IMAP")).clear().result()
    only = broker.aggregates(1, range(4, 5), revision=BASE_MS)
    later.start()
    later.until_read(len(only))
    assert map_store.problems(only) == []
    assert later.counts()["read"] == len(only)
    assert later.stop() == 0, later.log()


def test_a_topic_of_nothing_but_bad_records_stops_the_task(
    broker: Broker, map_store: MapStore, persister: Persisters
) -> None:
    written = broker.aggregates(1, range(3), revision=BASE_MS)
    broker.produce(*(("dev-0", b"poison %d" % number) for number in range(40)))
    limits = ("errors.limit.consecutive=20", "batch.size=10")
    task = persister(broker, map_store, "error.policy=NOOP", "errors.deadletterqueue.enable=true", *limits)
    task.start()
    assert task.exit_code() == 1, task.log()
    assert "errors.limit.consecutive=20" in task.log()
    assert map_store.problems(written) == []
    assert len(broker.dead_letters(f"{task.name}.dead-letters", 20)) == 20
