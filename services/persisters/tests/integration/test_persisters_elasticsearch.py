"""What only Elasticsearch does: pipelines, templates, external versions, tombstones, retention, TLS."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch
from persisters_relay import Relay
from prometheus_client import CollectorRegistry
from sink_world import TIMESTAMP_MS, Writing, behind_tls, documents

import isotherm.schemas
from isotherm.connector.config.files import from_mapping
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.api.stored_row import Finding
from isotherm.persisters.configuration import check
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.sinks.elasticsearch.client import connect
from isotherm.persisters.sinks.elasticsearch.indices.retention import ExpiredIndices
from isotherm.persisters.sinks.elasticsearch.indices.retention_job import RetentionJob, running

pytest_plugins = ("elasticsearch_fixtures",)
pytestmark = pytest.mark.integration

READING = isotherm.schemas.schema("SensorReading", 1)
AGGREGATE = isotherm.schemas.schema("TemperatureAggregate", 1)
PATIENCE_S = 180.0


def reading(device: str = "d1", value: float = 20.5, **attributes: str) -> dict[str, Any]:
    return {
        "device_id": device,
        "metric": "temperature",
        "value": value,
        "unit": "Cel",
        "event_time": TIMESTAMP_MS,
        "ingest_time": TIMESTAMP_MS,
        "sequence": 0,
        "attributes": attributes,
    }


def aggregate(revision: int, mean: float) -> dict[str, Any]:
    numbers = {"count": 1, "sum": mean, "mean": mean, "min": mean, "max": mean, "stddev": 0.0}
    window = {"window_start": TIMESTAMP_MS, "window_end": TIMESTAMP_MS + 10_000}
    return {"device_id": "d1", "metric": "temperature", **window, **numbers, "revision": revision}


def writing(url: str, kcql: str, schema: Any = READING, **config: str) -> Writing:
    return Writing("elasticsearch", schema, "t", {"url": url, "kcql": kcql, **config})


def test_statements_targets_pipeline_template_and_bad_items(
    elasticsearch: Any, client: Elasticsearch, index: str
) -> None:
    """Several statements of one record; the index from a header; a bad item alone is refused."""
    pipeline = f"p-{index}"
    client.ingest.put_pipeline(id=pipeline, processors=[])
    kcql = (
        f"INSERT INTO {index} SELECT * FROM t AUTOCREATE WITHPIPELINE={pipeline} WITHINDEXSUFFIX -{{YYYY.MM.DD}}; "
        f"INSERT INTO _header.place SELECT device_id, value FROM t PK device_id"
    )
    into = writing(elasticsearch.url, kcql)
    # Nobody knows what a pipeline makes of a document.
    into.may_find = (Finding.UNREADABLE,)
    place = f"{index}-by-header"
    assert into.write(into.prepare(reading("d1"), place=place), into.prepare(reading("d2"), place=place)) == []
    dated = f"{index}-2026.01.01"
    assert {one["device_id"] for one in documents(client, dated).values()} == {"d1", "d2"}
    assert documents(client, place) == {name: {"device_id": name, "value": 20.5} for name in ("d1", "d2")}
    properties = client.indices.get_mapping(index=dated)[dated]["mappings"]["properties"]
    assert properties["device_id"]["type"] == "keyword"
    assert properties["event_time"]["type"] == "date"
    assert properties["attributes"]["type"] == "flattened"

    unknown = writing(elasticsearch.url, f"INSERT INTO {index} SELECT * FROM t WITHPIPELINE={pipeline}-unknown")
    (refused,) = unknown.write(unknown.prepare(reading("d1")))
    assert f"pipeline with id [{pipeline}-unknown] does not exist" in str(refused.error)

    other = f"{index}-strict"
    client.indices.create(index=other, mappings={"properties": {"device_id": {"type": "integer"}}})
    into = writing(elasticsearch.url, f"INSERT INTO {other} SELECT device_id, value FROM t PK device_id")
    (rejected,) = into.write(into.prepare(reading("17")), into.prepare(reading("no-number")))
    assert (rejected.index, rejected.reason, rejected.transient) == (1, "mapping", False)
    assert set(documents(client, other)) == {"17"}


def test_a_processor_that_fails_for_a_document_refuses_this_one_alone_and_for_good(
    elasticsearch: Any, client: Elasticsearch, index: str
) -> None:
    """Elasticsearch answers 500, as it does when its disk fails.

    The only processor in the distribution of the tests; without security it fails for every document.
    """
    pipeline = f"p-{index}"
    client.ingest.put_pipeline(id=pipeline, processors=[{"set_security_user": {"field": "user"}}])
    kcql = (
        f"INSERT INTO {index} SELECT device_id FROM t PK device_id WITHPIPELINE={pipeline}; "
        f"INSERT INTO {index} SELECT device_id FROM t PK _key"
    )
    into = writing(elasticsearch.url, kcql)
    (refused,) = into.write(into.prepare(reading("d1"), "plain"))
    assert (refused.index, refused.reason, refused.transient) == (0, "rejected", False)
    assert str(refused.error).startswith("500 illegal_state_exception: ")
    assert set(documents(client, index)) == {"plain"}


def test_upserts_tombstones_and_external_versions(elasticsearch: Any, client: Elasticsearch, index: str) -> None:
    delete = "PROPERTIES('behavior.on.null.values'='DELETE')"
    into = writing(elasticsearch.url, f"UPSERT INTO {index} SELECT device_id, value FROM t PK _key {delete}")
    other = writing(elasticsearch.url, f"UPSERT INTO {index} SELECT unit FROM t PK _key")
    assert into.write(into.prepare(reading("d1"), "k1"), into.prepare(reading("d2"), "k2")) == []
    assert other.write(other.prepare(reading("d1"), "k1")) == []
    assert documents(client, index)["k1"] == {"device_id": "d1", "value": 20.5, "unit": "Cel"}
    for _ in range(2):
        assert into.write(into.prepare(None, "k1")) == []
        assert set(documents(client, index)) == {"k2"}
    assert other.prepare(None, "k2").filtered == "tombstone"
    failing = writing(
        elasticsearch.url, f"INSERT INTO {index} SELECT * FROM t PROPERTIES('behavior.on.null.values'='FAIL')"
    )
    refusal = failing.prepare(None, "k2").failed
    assert refusal is not None
    assert refusal.reason == "tombstone"

    versioned = f"{index}-versions"
    into = writing(elasticsearch.url, f"INSERT INTO {versioned} SELECT * FROM t", AGGREGATE)
    for revision, expected in ((5, 5), (3, 5), (5, 5), (6, 6)):
        assert into.write(into.prepare(aggregate(revision, float(revision)))) == []
        assert [one["mean"] for one in documents(client, versioned).values()] == [float(expected)]
    partial = writing(elasticsearch.url, f"UPSERT INTO {versioned} SELECT mean FROM t PK device_id", AGGREGATE)
    with pytest.raises(SinkConfigError, match="would mix fields"):
        partial.write(partial.prepare(aggregate(7, 1.0)))


def now_ms() -> float:
    return datetime(2026, 1, 10, 2, tzinfo=UTC).timestamp() * 1000


def retention(url: str, index: str, **more: str) -> Any:
    kcql = f"INSERT INTO {index} SELECT * FROM t WITHINDEXSUFFIX -{{YYYY.MM.DD}}"
    given = {"name": f"r-{index}", "connector.class": "elastic", "topics": "t", "url": url, "kcql": kcql}
    given |= {"retention.days": "7", **{key.replace("__", "."): value for key, value in more.items()}}
    return check(installed_sinks()["elasticsearch"], from_mapping(given))


def existing(client: Elasticsearch, index: str) -> set[str]:
    rows: Any = client.cat.indices(index=f"{index}*", h="index", format="json", expand_wildcards="all").body
    return {row["index"] for row in rows}


def test_retention_tells_closes_and_deletes_exactly_the_old_indices(
    elasticsearch: Any, client: Elasticsearch, index: str
) -> None:
    old = [f"{index}-2026.01.01", f"{index}-2026.01.02"]
    others = [f"{index}-2026.01.03", f"{index}-2026.01.10", f"{index}-x-2026.01.01", f"{index}-2025.12.31-kept", index]
    for name in [*old, *others]:
        client.indices.create(index=name, settings={"number_of_replicas": 0})

    config = retention(elasticsearch.url, index, retention__dry__run="true")
    server = connect(config, 1)
    only_telling = RetentionJob(config, server, CollectorRegistry(), now_ms)
    for _ in range(3):
        assert only_telling.sweep() == ExpiredIndices(old, [])

    metrics = CollectorRegistry()
    working = RetentionJob(retention(elasticsearch.url, index), server, metrics, now_ms)
    assert working.sweep() == ExpiredIndices(old, [])
    assert existing(client, index) == {*old, *others}, "the first pass only tells"
    assert working.sweep() == ExpiredIndices(old, [])
    assert existing(client, index) == {*old, *others}, "closed, and still there"
    assert working.sweep() == ExpiredIndices([], old)
    assert existing(client, index) == set(others)
    assert working.sweep() == ExpiredIndices([], [])
    done = {"connector": f"r-{index}"}
    for action in ("closed", "deleted"):
        name = "isotherm_persisters_retention_actions_total"
        assert metrics.get_sample_value(name, done | {"action": action}) == 2


def test_a_clock_that_is_ahead_retires_nothing(elasticsearch: Any, client: Elasticsearch, index: str) -> None:
    today = f"{index}-{datetime.now(UTC):%Y.%m.%d}"
    client.indices.create(index=today, settings={"number_of_replicas": 0})
    metrics, ten_years_ms = CollectorRegistry(), 3_650 * 86_400_000
    config = retention(elasticsearch.url, index)
    ahead = RetentionJob(config, connect(config, 1), metrics, lambda: time.time() * 1000 + ten_years_ms)
    for _ in range(3):
        assert ahead.sweep() == ExpiredIndices([], [])
    assert existing(client, index) == {today}


def test_retention_goes_on_when_a_task_is_resumed(elasticsearch: Any, client: Elasticsearch, index: str) -> None:
    config, metrics = retention(elasticsearch.url, index), CollectorRegistry()
    for _ in range(2):
        with running(config, metrics):
            pass
    assert metrics.get_sample_value("isotherm_persisters_retention_expired_indices", {"connector": config.name}) == 0


def test_retention_outlives_a_server_that_is_away(
    elasticsearch: Any, client: Elasticsearch, index: str, free_port: Callable[[], int]
) -> None:
    name = f"{index}-2020.01.01"
    client.indices.create(index=name, settings={"number_of_replicas": 0})
    port = free_port()
    metrics = CollectorRegistry()
    config = retention(f"http://127.0.0.1:{port}", index, retention__interval__ms="100")
    pause, failures = threading.Event(), 0.0
    counted = {"connector": f"r-{index}", "action": "failed"}
    with running(config, metrics):
        for _ in range(int(PATIENCE_S * 10)):
            failures = metrics.get_sample_value("isotherm_persisters_retention_actions_total", counted) or 0.0
            if failures:
                break
            pause.wait(0.1)
        assert failures
        assert existing(client, index) == {name}
        way = Relay(elasticsearch.port, port=port)
        for _ in range(int(PATIENCE_S * 10)):
            if not existing(client, index):
                break
            pause.wait(0.1)
        assert existing(client, index) == set()
    way.close()


def test_tls_checks_the_server_and_a_client_that_trusts_nobody_is_told(
    elasticsearch: Any, index: str, tmp_path: Path
) -> None:
    way, trust = behind_tls(elasticsearch.port, tmp_path)
    kcql, url = f"INSERT INTO {index} SELECT * FROM t", f"https://127.0.0.1:{way.port}"
    trusting = writing(url, kcql, READING, **trust)
    assert trusting.write(trusting.prepare(reading())) == []
    stranger = writing(url, kcql)
    with pytest.raises(SinkConfigError, match=r"unable to get local issuer|self-signed|verify failed"):
        stranger.sink.open()
    for one in (trusting, stranger):
        one.sink.close()
    absent = check(
        installed_sinks()["elasticsearch"],
        from_mapping(
            {"name": "n", "connector.class": "elastic", "topics": "t", "url": url, "kcql": kcql}
            | {"ssl.certificate.authorities": str(tmp_path / "absent.pem")}
        ),
    )
    with pytest.raises(SinkConfigError, match=r"ssl\.certificate\.authorities: there is no file"):
        connect(absent, 1)
    way.close()
