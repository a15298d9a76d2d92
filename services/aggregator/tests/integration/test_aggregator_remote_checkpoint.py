"""Checkpoints on S3 and HDFS, with both state stores: kills lose and repeat nothing, and one aggregator writes.

The jars for S3 and HDFS are fetched by this test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from aggregator_given import SETTINGS, Given, assert_all_is_right, has_no_lag, has_read
from aggregator_storage import ROCKSDB, STORAGES, Storage, all_jars
from aggregator_world import Process, Topics, wait_for

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(2_400)]

KILLS = 3
TIMEOUT_S = 600.0
"""A start asks an object store dozens of times, and moto's server is slow beside other tests."""


@pytest.fixture
def topics(kafka: Kafka, registry: Registry, request: pytest.FixtureRequest) -> Topics:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return Topics.declared(kafka, registry, f"aggregator-{name}")


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Storage]:
    with STORAGES[request.param](tmp_path / "storage", free_port) as kept:
        yield kept


@pytest.mark.parametrize(
    ("storage", "store"),
    [pytest.param("s3", ROCKSDB, id="s3-rocksdb"), pytest.param("hdfs", {}, id="hdfs-heap")],
    indirect=["storage"],
)
def test_kills_lose_and_repeat_nothing(
    storage: Storage, store: dict[str, str], topics: Topics, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    given = Given(topics, readings=8_000, span_ms=120_000, late_share=0.1)
    part = len(given.records) // (KILLS + 1)
    jars = {"spark.jars": ",".join(str(jar) for jar in all_jars(storage))}
    settings = {
        **SETTINGS,
        "checkpoint_dir": f"{storage.location}/kills",
        "spark.properties": json.dumps({**storage.properties, **store, **jars}),
    }

    def start() -> Process:
        return Process(topics, tmp_path / "run", free_port(), max_offsets_per_trigger=1_500, **settings)

    for number in range(KILLS):
        given.put(given.records[number * part : (number + 1) * part])
        with start() as process:
            wait_for(partial(has_read, process), "the first batch", process, TIMEOUT_S)
            process.kill()
    given.put(given.records[KILLS * part :])
    given.complete()

    expected = given.windows()
    with start() as last:
        wait_for(lambda: {key for key, _ in given.published()} >= expected.keys(), "every window", last, TIMEOUT_S)
        wait_for(lambda: has_no_lag(last, topics), "the stateless query", last, TIMEOUT_S)
        assert last.metrics()["isotherm_aggregator_rows_dropped_by_watermark_total"] == 0
        assert last.terminate() == 0
    assert_all_is_right(given)
