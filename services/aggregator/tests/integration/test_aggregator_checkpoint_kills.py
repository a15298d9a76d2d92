"""Kills while Spark writes its checkpoint: every file that has its final name is whole, and nothing is lost or twice.

The moments are chosen by what happens to the files of the checkpoint, so most kills come between the creation of a file
and its rename, or between two files that belong together.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aggregator_file_events import FileEvents
from aggregator_given import SETTINGS, Given, assert_all_is_right, has_no_lag
from aggregator_world import Process, Topics, wait_for

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(3_600)]

KILLS = 24
MOST_EVENTS = 150
"""A batch of both queries makes about 40 events."""
TIMEOUT_S = 600.0
LOGS = ("windows/offsets", "windows/commits", "rejects/offsets", "rejects/commits")
FOLDERS = (*LOGS, "windows/state/0/0", "windows/state/0/1")
"""Where Spark writes for every batch."""


@pytest.fixture
def topics(kafka: Kafka, registry: Registry) -> Topics:
    return Topics.declared(kafka, registry, "aggregator-checkpoint-kills")


def logged(checkpoint: Path) -> Iterator[Path]:
    """Return the files of the logs that have their final names."""
    for log in LOGS:
        yield from (path for path in (checkpoint / log).iterdir() if path.name.isdigit())


def assert_files_are_whole(checkpoint: Path) -> None:
    """Spark writes a version into the first line of a log's file, and JSON into the others."""
    for path in logged(checkpoint):
        version, *lines = path.read_text(encoding="utf-8").splitlines()
        assert version == "v1", path
        assert lines, path
        for line in lines:
            assert line == "-" or isinstance(json.loads(line), dict), path


def kill(process: Process) -> None:
    """Kill Spark first: it is the one that writes."""
    os.kill(process.jvm_pids()[-1], signal.SIGKILL)
    process.kill()


def test_kills_at_writes_of_the_checkpoint_lose_and_repeat_nothing(
    topics: Topics, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    given = Given(topics, readings=60_000, span_ms=240_000, late_share=0.1)
    part = len(given.records) // (KILLS + 1)
    checkpoint, chance, events = tmp_path / "checkpoint", random.Random(18), list[int]()
    folders = [checkpoint / name for name in FOLDERS]

    def start() -> Process:
        # Many small batches: each is a set of files.
        return Process(topics, checkpoint, free_port(), max_offsets_per_trigger=200, trigger_ms=50, **SETTINGS)

    given.put(given.records[:part])
    with start() as process:
        wait_for(lambda: all(folder.exists() for folder in folders), "the folders of the checkpoint", process)
        kill(process)
    for number in range(1, KILLS):
        given.put(given.records[number * part : (number + 1) * part])
        with FileEvents(folders) as files, start() as process:
            wait_for(lambda: bool(process.jvm_pids()), "Spark, which writes the files", process)
            events.append(files.wait_for(chance.randint(1, MOST_EVENTS), TIMEOUT_S))
            kill(process)
        assert_files_are_whole(checkpoint)
    assert all(events), "some kills came while nothing was written"
    given.put(given.records[KILLS * part :])
    given.complete()

    expected = given.windows()
    with start() as last:
        wait_for(lambda: {key for key, _ in given.published()} >= expected.keys(), "every window", last)
        wait_for(lambda: has_no_lag(last, topics), "the stateless query", last)
        assert last.metrics()["isotherm_aggregator_rows_dropped_by_watermark_total"] == 0
        assert last.terminate() == 0
    assert_all_is_right(given)
