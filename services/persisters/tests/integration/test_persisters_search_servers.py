"""The same connector on each server with Elasticsearch's API: only its address changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from sink_world import TIMESTAMP_MS, Writing

import isotherm.schemas
from isotherm.connector.config.files import from_mapping
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.api.stored_row import Finding
from isotherm.persisters.configuration import check
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.sinks.elasticsearch.client import connect
from isotherm.persisters.sinks.elasticsearch.indices.retention import ListedIndex
from isotherm.persisters.sinks.elasticsearch.indices.retention_job import RetentionJob

pytest_plugins = ("elasticsearch_fixtures",)
pytestmark = pytest.mark.integration

READING = isotherm.schemas.schema("SensorReading", 1)
AGGREGATE = isotherm.schemas.schema("TemperatureAggregate", 1)
SERVERS = ("elasticsearch", "elasticsearch9", "opensearch", pytest.param("opensearch2", marks=pytest.mark.long))
STREAMING = ("opensearch", pytest.param("opensearch2", marks=pytest.mark.long))
"""Servers whose distribution for tests has data streams; that of Elasticsearch has not."""


class Rest:
    """A server as anybody sees it who speaks HTTP."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.client = httpx.Client(base_url=server.url, timeout=60.0)

    def get(self, path: str, **query: str) -> Any:
        """The body of an answer."""
        return self.client.get(path, params=query).raise_for_status().json()

    def hits(self, index: str, **query: str) -> list[dict[str, Any]]:
        """The documents of an index, with what the server knows of them."""
        self.client.post(f"/{index}/_refresh").raise_for_status()
        found: list[dict[str, Any]] = self.get(f"/{index}/_search", size="100", **query)["hits"]["hits"]
        return found

    def documents(self, index: str) -> dict[str, Any]:
        """The documents of an index by their ids."""
        return {hit["_id"]: hit["_source"] for hit in self.hits(index)}

    def fields(self, index: str) -> dict[str, Any]:
        """The types of an index' fields."""
        (found,) = self.get(f"/{index}/_mapping").values()
        return {name: field["type"] for name, field in found["mappings"]["properties"].items()}

    def create(self, index: str, **body: Any) -> None:
        """Create an index."""
        self.client.put(f"/{index}", json=body).raise_for_status()


@pytest.fixture(params=SERVERS)
def rest(request: pytest.FixtureRequest) -> Iterator[Rest]:
    made = Rest(request.getfixturevalue(request.param))
    yield made
    made.client.close()


@pytest.fixture(params=STREAMING)
def streaming(request: pytest.FixtureRequest) -> Iterator[Rest]:
    made = Rest(request.getfixturevalue(request.param))
    yield made
    made.client.close()


def writing(rest: Rest, kcql: str, schema: Any = READING, **config: str) -> Writing:
    given = {key.replace("__", "."): value for key, value in config.items()}
    return Writing("elasticsearch", schema, "t", {"url": rest.server.url, "kcql": kcql, **given})


def reading(device: str = "d1", value: float = 20.5, sequence: int = 0) -> dict[str, Any]:
    return {
        "device_id": device,
        "metric": "temperature",
        "value": value,
        "unit": "Cel",
        "event_time": TIMESTAMP_MS,
        "ingest_time": TIMESTAMP_MS,
        "sequence": sequence,
        "attributes": {"room": "attic"},
    }


def aggregate(revision: int) -> dict[str, Any]:
    numbers = {"count": 1, "sum": 1.0, "mean": float(revision), "min": 1.0, "max": 1.0, "stddev": 0.0}
    window = {"window_start": TIMESTAMP_MS, "window_end": TIMESTAMP_MS + 10_000}
    return {"device_id": "d1", "metric": "temperature", **window, **numbers, "revision": revision}


def test_a_dated_index_with_its_mapping(rest: Rest, index: str) -> None:
    into = writing(rest, f"INSERT INTO {index} SELECT * FROM t WITHINDEXSUFFIX -{{YYYY.MM.DD}}")
    assert into.write(into.prepare(reading("d1")), into.prepare(reading("d2"))) == []
    dated = f"{index}-2026.01.01"
    assert {one["device_id"] for one in rest.documents(dated).values()} == {"d1", "d2"}
    fields = rest.fields(dated)
    of_map = "flat_object" if "opensearch" in rest.server.name else "flattened"
    assert (fields["device_id"], fields["event_time"], fields["attributes"]) == ("keyword", "date", of_map)
    found = rest.hits(dated, q="attributes.room:attic")
    assert len(found) == 2, "the keys of a map can be searched for"


def test_merges_deletions_revisions_and_bad_rows(rest: Rest, index: str) -> None:
    delete = "PROPERTIES('behavior.on.null.values'='DELETE')"
    into = writing(rest, f"UPSERT INTO {index} SELECT device_id, value FROM t PK _key {delete}")
    other = writing(rest, f"UPSERT INTO {index} SELECT unit FROM t PK _key")
    assert into.write(into.prepare(reading("d1"), "k1"), into.prepare(reading("d2"), "k2")) == []
    assert other.write(other.prepare(reading("d1"), "k1")) == []
    assert rest.documents(index)["k1"] == {"device_id": "d1", "value": 20.5, "unit": "Cel"}
    for _ in range(2):
        assert into.write(into.prepare(None, "k1")) == []
        assert set(rest.documents(index)) == {"k2"}

    versioned = writing(rest, f"INSERT INTO {index}-v SELECT * FROM t", AGGREGATE)
    for revision, expected in ((5, 5), (3, 5), (6, 6)):
        assert versioned.write(versioned.prepare(aggregate(revision))) == []
        assert [one["revision"] for one in rest.documents(f"{index}-v").values()] == [expected]

    rest.create(f"{index}-n", mappings={"properties": {"device_id": {"type": "integer"}}})
    narrow = writing(rest, f"INSERT INTO {index}-n SELECT device_id FROM t PK device_id")
    (refused,) = narrow.write(narrow.prepare(reading("17")), narrow.prepare(reading("no-number")))
    assert (refused.index, refused.reason, refused.transient) == (1, "mapping", False)


def test_blocked_indices_are_waited_for(rest: Rest, index: str) -> None:
    into = writing(rest, f"INSERT INTO {index} SELECT * FROM t")
    assert into.write(into.prepare(reading())) == []
    settings = {"index.blocks.write": True}
    rest.client.put(f"/{index}/_settings", json=settings).raise_for_status()
    (refused,) = into.write(into.prepare(reading(sequence=1)))
    assert (refused.reason, refused.transient) == ("blocked", True)


def test_retention_lists_closes_and_deletes(rest: Rest, index: str) -> None:
    old = f"{index}-2020.01.01"
    rest.create(old)
    given = {"name": "r", "connector.class": "opensearch", "topics": "t", "url": rest.server.url, "retention.days": "7"}
    kcql = f"INSERT INTO {index} SELECT * FROM t WITHINDEXSUFFIX -{{YYYY.MM.DD}}"
    config = check(installed_sinks()["elasticsearch"], from_mapping(given | {"kcql": kcql}))
    server = connect(config, 1)
    job = RetentionJob(config, server, CollectorRegistry())
    for _ in range(3):
        job.sweep()
    assert [ListedIndex(one["index"], True) for one in server.list_indices(f"{index}*")] == []
    server.close()


def test_the_shard_is_that_of_a_field(rest: Rest, index: str) -> None:
    rest.create(index, settings={"number_of_shards": 5})
    kcql = f"INSERT INTO {index} SELECT * FROM t PROPERTIES('routing'='device_id')"
    into = writing(rest, kcql, compression="gzip")
    rows = [into.prepare(reading(f"d{number % 4}", sequence=number)) for number in range(20)]
    assert into.write(*rows) == into.write(*rows) == []
    hits = rest.hits(index)
    assert len(hits) == 20
    assert all(hit["_routing"] == hit["_source"]["device_id"] for hit in hits)

    properties = "PROPERTIES('routing'='key', 'behavior.on.null.values'='DELETE')"
    upserts = writing(rest, f"UPSERT INTO {index} SELECT value FROM t PK _key {properties}")
    for value in (1.0, 2.0):
        assert upserts.write(upserts.prepare(reading(value=value), "k1")) == []
    (found,) = rest.hits(index, q="_id:k1")
    assert (found["_routing"], found["_source"]) == ("k1", {"value": 2.0})
    assert upserts.write(upserts.prepare(None, "k1")) == []
    assert rest.hits(index, q="_id:k1") == []


def test_a_row_without_its_routing_value_is_the_only_bad_one(rest: Rest, index: str) -> None:
    into = writing(rest, f"INSERT INTO {index} SELECT * FROM t PROPERTIES('routing'='unit')")
    (refused,) = into.write(into.prepare({**reading(), "unit": ""}), into.prepare(reading(sequence=1)))
    assert (refused.index, refused.reason, refused.transient) == (0, "routing", False)


def test_a_data_stream_keeps_the_first_document_of_an_id(streaming: Rest, index: str) -> None:
    into = writing(streaming, f"INSERT INTO {index} SELECT * FROM t STOREAS DATA_STREAM")
    first, again = into.prepare(reading()), into.prepare(reading(value=99.0))
    assert into.write(first, into.prepare(reading(sequence=1))) == []
    into.may_find = (Finding.DIFFERENT,)
    assert into.write(again, into.prepare(reading(sequence=2))) == [], "known documents count as written"
    hits = streaming.hits(index)
    assert {hit["_source"]["sequence"]: hit["_source"]["value"] for hit in hits} == {0: 20.5, 1: 20.5, 2: 20.5}
    assert {hit["_source"]["@timestamp"] for hit in hits} == {TIMESTAMP_MS}
    (stream,) = streaming.get(f"/_data_stream/{index}")["data_streams"]
    assert stream["timestamp_field"] == {"name": "@timestamp"}
    assert streaming.fields(stream["indices"][0]["index_name"])["device_id"] == "keyword"
    # After a rollover the documents go into the next index, with the same mapping.
    streaming.client.post(f"/{index}/_rollover").raise_for_status()
    later = writing(streaming, f"INSERT INTO {index} SELECT * FROM t STOREAS DATA_STREAM")
    assert later.write(later.prepare(reading(sequence=3))) == []
    (stream,) = streaming.get(f"/_data_stream/{index}")["data_streams"]
    assert streaming.fields(stream["indices"][-1]["index_name"])["device_id"] == "keyword"


def test_an_index_is_taken_for_no_data_stream(streaming: Rest, index: str) -> None:
    streaming.create(index)
    into = writing(streaming, f"INSERT INTO {index} SELECT * FROM t STOREAS DATA_STREAM", index__auto__create="false")
    with pytest.raises(SinkConfigError, match=f"{index} is there and is no data stream"):
        into.write(into.prepare(reading()))


def test_a_data_stream_of_a_topic_with_revisions_is_refused(streaming: Rest, index: str) -> None:
    into = writing(streaming, f"INSERT INTO {index} SELECT * FROM t STOREAS DATA_STREAM", AGGREGATE)
    with pytest.raises(SinkConfigError, match="a newer revision would never be seen"):
        into.write(into.prepare(aggregate(1)))


@pytest.mark.parametrize("server", ["elasticsearch", "elasticsearch9"])
def test_a_server_without_data_streams_or_policies_is_told_at_once(
    request: pytest.FixtureRequest, server: str, index: str
) -> None:
    """The distributions of Elasticsearch for tests lack both modules."""
    rest = Rest(request.getfixturevalue(server))
    into = writing(rest, f"INSERT INTO {index} SELECT * FROM t STOREAS DATA_STREAM")
    with pytest.raises(SinkConfigError, match=f"data stream {index}: "):
        into.write(into.prepare(reading()))
    with_policy = writing(rest, f"INSERT INTO {index} SELECT * FROM t", lifecycle__policy="weekly")
    with pytest.raises(SinkConfigError, match=r"connect\.elastic\.lifecycle\.policy: 'weekly': the server has no"):
        with_policy.sink.open()
    rest.client.close()


@pytest.mark.parametrize("server", STREAMING)
def test_opensearch_names_indices_in_its_policies(request: pytest.FixtureRequest, server: str, index: str) -> None:
    rest = Rest(request.getfixturevalue(server))
    with_policy = writing(rest, f"INSERT INTO {index} SELECT * FROM t", lifecycle__policy="weekly")
    with pytest.raises(SinkConfigError, match=r"'weekly': OpenSearch has no such setting.*`ism_template`"):
        with_policy.sink.open()
    rest.client.close()
