"""The devices table of the driver, with data frames that Spark did not make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from isotherm.aggregator.kafka.broker import Broker
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import devices_table
from isotherm.aggregator.spark.devices_table import DevicesTable
from isotherm.aggregator.spark.noted_batches import NotedBatches
from isotherm.servicekit.avro import SchemaRegistry

NO_SPARK = cast(SparkSession, None)


class Table:
    """A data frame of devices that is read when its rows are counted, which may fail once."""

    def __init__(self, rows: list[tuple[str | None, ...]], failure: Exception | None = None) -> None:
        self._rows, self._failure = rows, failure

    def count(self) -> int:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return len(self._rows)

    def collect(self) -> list[tuple[str | None, ...]]:
        return self._rows

    def unpersist(self) -> None:
        """Nothing is cached."""


class Batches:
    """The devices of each batch, as the journal keeps them of the newest one."""

    def __init__(self) -> None:
        self._noted: dict[int, dict[str, int]] = {}

    def devices(self, batch_id: int) -> dict[str, int] | None:
        return self._noted.get(batch_id)

    def note_devices(self, batch_id: int, end_offsets: Mapping[str, int]) -> None:
        self._noted[batch_id] = dict(end_offsets)


class Topic:
    """The end offsets of the topic with devices."""

    end = 1

    def end_offsets(self, _topics: list[str], *, committed: bool) -> Mapping[tuple[str, int], int]:
        assert committed
        return {("devices", 0): self.end}


def test_devices_that_could_not_be_read_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic()
    moved: list[tuple[str | None, ...]] = [("d1", "north")]
    tables: list[Any] = [Table([("d1", "south")]), Table(moved, ConnectionError("Kafka is gone")), Table(moved)]
    for name in ("read_devices", "update_devices"):
        monkeypatch.setattr(devices_table, name, lambda *_arguments: tables.pop(0))
    settings = AggregatorSettings(checkpoint_dir=str(tmp_path), jars_dir=tmp_path)
    devices = DevicesTable(settings, {}, cast(Broker, topic), cast(SchemaRegistry, None), cast(NotedBatches, Batches()))
    assert devices.attributes_as_of(NO_SPARK, 1) == {"d1": ("south",)}
    topic.end = 2
    with pytest.raises(ConnectionError):
        devices.attributes_as_of(NO_SPARK, 2)
    assert devices.attributes_as_of(NO_SPARK, 2) == {"d1": ("north",)}


def test_only_what_has_changed_is_read_until_the_whole_topic_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, read = Topic(), []

    def whole(*arguments: Any) -> Table:
        read.append(("whole", arguments[4]))
        return Table([])

    def update(*arguments: Any) -> Table:
        read.append(("update", *arguments[4]))
        return Table([])

    monkeypatch.setattr(devices_table, "read_devices", whole)
    monkeypatch.setattr(devices_table, "update_devices", update)
    monkeypatch.setattr(devices_table, "MAX_UPDATES", 2)
    settings = AggregatorSettings(checkpoint_dir=str(tmp_path), jars_dir=tmp_path)
    devices = DevicesTable(settings, {}, cast(Broker, topic), cast(SchemaRegistry, None), cast(NotedBatches, Batches()))
    for end in (4, 4, 7, 9, 12):
        topic.end = end
        devices.as_of(NO_SPARK, end)
    # A batch that is run again with the devices that it had at first, which are older than the table's.
    devices.as_of(NO_SPARK, 4)
    assert read == [
        ("whole", {"0": 4}),
        ("update", {"0": 4}, {"0": 7}),
        ("update", {"0": 7}, {"0": 9}),
        ("whole", {"0": 12}),
        ("whole", {"0": 4}),
    ]
