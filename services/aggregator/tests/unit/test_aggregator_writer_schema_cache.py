from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isotherm.aggregator.checkpoint.folder import CheckpointFolder
from isotherm.aggregator.checkpoint.objects import LocalObjects
from isotherm.aggregator.checkpoint.writer_schema_cache import MAX_UNKNOWN_IDS, WriterSchemaCache
from isotherm.aggregator.frames.readings import READER
from isotherm.schemas import schema, versions
from isotherm.servicekit import avro
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaRegistry, UnknownSchemaError

KNOWN, LATER, JUNK = 1, 77, 10_000
OFFSETS = {("t", 0): 40, ("t", 1): 7}


class Registry:
    """What the cache asks of a registry."""

    def __init__(self) -> None:
        self.schemas = {KNOWN: schema(READER["name"], 1)}
        self.asked: list[int] = []
        self.is_away = False

    def schema(self, schema_id: int) -> Any:
        self.asked.append(schema_id)
        if self.is_away:
            raise RegistryUnavailableError("away")
        if schema_id not in self.schemas:
            raise UnknownSchemaError(schema_id)
        return SimpleNamespace(json=self.schemas[schema_id])

    def schema_id(self, _subject: str, _schema: Any) -> int:
        return KNOWN

    def schema_ids(self, _subject: str) -> list[int]:
        return list(self.schemas)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def open_cache(tmp_path: Path, registry: Registry) -> Callable[[], WriterSchemaCache]:
    """Opens the cache of one checkpoint, as each start of the service does."""
    folder = CheckpointFolder(LocalObjects(tmp_path), "aggregator", 1)

    def opened() -> WriterSchemaCache:
        cache = WriterSchemaCache(cast(SchemaRegistry, registry), folder)
        cache.open(["t"])
        return cache

    return opened


def test_an_unknown_id_is_asked_for_again_and_known_from_then_on(
    registry: Registry, open_cache: Callable[[], WriterSchemaCache]
) -> None:
    cache = open_cache()
    cache.learn([LATER])
    assert cache.ids.unknown == {LATER}
    assert cache.retry_unknown() == {}
    registry.schemas[LATER] = schema(READER["name"], max(versions(READER["name"])))
    found = cache.retry_unknown()
    assert found == {LATER: json.dumps(registry.schemas[LATER])}
    cache.adopt(found, OFFSETS)
    again = open_cache().ids
    assert again == cache.ids
    assert (again.known_since, again.unknown) == ({LATER: OFFSETS}, frozenset())
    assert not cache.has_unknown_ids


def test_a_hundred_junk_ids_do_not_keep_a_new_schema_out(
    registry: Registry, open_cache: Callable[[], WriterSchemaCache]
) -> None:
    cache = open_cache()
    cache.learn(range(JUNK, JUNK + MAX_UNKNOWN_IDS))
    assert cache.ids.closed
    registry.schemas[LATER] = schema(READER["name"], 1)
    cache = open_cache()
    found = cache.retry_unknown()
    assert found.keys() == {LATER}
    cache.adopt(found, OFFSETS)
    assert LATER in open_cache().ids.known


def test_every_unknown_id_has_its_turn_and_not_all_at_once(
    registry: Registry, open_cache: Callable[[], WriterSchemaCache]
) -> None:
    cache = open_cache()
    junk = range(JUNK, JUNK + 25)
    cache.learn(junk)
    registry.asked.clear()
    looks = []
    for _ in range(3):
        cache.retry_unknown()
        looks.append(len(registry.asked))
    assert looks == [10, 20, 30]
    assert set(registry.asked) == set(junk)


def test_a_registry_that_is_away_says_nothing_about_an_id(
    registry: Registry, open_cache: Callable[[], WriterSchemaCache]
) -> None:
    cache = open_cache()
    registry.is_away = True
    with pytest.raises(RegistryUnavailableError):
        cache.learn([LATER])
    assert LATER not in cache.ids


def test_the_ingest_time_is_read_without_asking_anybody(
    registry: Registry, open_cache: Callable[[], WriterSchemaCache]
) -> None:
    cache = open_cache()
    registry.is_away = True
    registry.asked.clear()
    times = {"event_time": 1_000, "ingest_time": 2_000, "sequence": 0, "attributes": {}}
    reading = {"device_id": "d", "metric": "m", "value": 1.0, "unit": "Cel", **times}
    value = avro.encoder(schema(READER["name"], 1), KNOWN)(reading)
    assert cache.ingest_time_ms(value) == 2_000
    unreadable = [None, b"?", value[:-8], b"\x00" + LATER.to_bytes(4, "big") + value[5:]]
    assert [cache.ingest_time_ms(each) for each in unreadable] == [None] * 4
    assert registry.asked == []
