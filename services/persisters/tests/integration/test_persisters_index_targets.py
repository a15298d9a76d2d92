"""Which indices the Elasticsearch sink reaches, with which mappings: document C's statements, names from records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from elasticsearch import Elasticsearch
from sink_world import TIMESTAMP_MS, Writing, documents

from isotherm.persisters.api.plan import Plan, compile_plan
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.servicekit.avro import WriterSchema, parse

pytest_plugins = ("elasticsearch_fixtures",)
pytestmark = pytest.mark.integration

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
TAGS = {"type": "map", "values": "string"}
PLACED = {
    "type": "record",
    "name": "Placed",
    "fields": [{"name": "place", "type": "string"}, {"name": "poison", "type": "long"}],
}
TOPIC_A = {
    "type": "record",
    "name": "TopicA",
    "fields": [
        {
            "name": "sensor",
            "type": {
                "type": "record",
                "name": "Sensor",
                "fields": [{"name": "kind", "type": "string"}, {"name": "temperature", "type": "double"}],
            },
        },
        {
            "name": "device",
            "type": {
                "type": "record",
                "name": "Device",
                "fields": [{"name": "id", "type": "string"}, {"name": "room", "type": "string"}],
            },
        },
    ],
}
PRINTED_INDICES = ("indexa", "indexb", "indexa2026-01-01")


@pytest.fixture
def printed(client: Elasticsearch) -> Iterator[None]:
    """Names from the documents; they are deleted at the end, so that no other test finds them."""
    yield
    client.indices.delete(index=PRINTED_INDICES, ignore_unavailable=True)
    client.options(ignore_status=404).indices.delete_index_template(name="isotherm-index*")


def fields(client: Elasticsearch, index: str) -> dict[str, Any]:
    found: dict[str, Any] = client.indices.get_mapping(index=index)[index]["mappings"].get("properties", {})
    return found


def of_topic_a(url: str, kcql: str) -> Writing:
    return Writing("elasticsearch", TOPIC_A, "topicA", {"connect.elastic.url": url, "connect.elastic.kcql": kcql})


def both(temperature: float, room: str = "attic", device: str = "d1") -> dict[str, Any]:
    return {"sensor": {"kind": "indoor", "temperature": temperature}, "device": {"id": device, "room": room}}


@pytest.mark.usefixtures("printed")
def test_the_upsert_of_document_c(elasticsearch: Any, client: Elasticsearch) -> None:
    into = of_topic_a(elasticsearch.url, "UPSERT INTO indexA SELECT sensor.*, device.* FROM topicA PK device.id")
    assert into.write(into.prepare(both(20.5)), into.prepare(both(19.0, device="d2"))) == []
    assert into.write(into.prepare(both(21.5))) == []
    assert documents(client, "indexa") == {
        "d1": {"kind": "indoor", "temperature": 21.5, "id": "d1", "room": "attic"},
        "d2": {"kind": "indoor", "temperature": 19.0, "id": "d2", "room": "attic"},
    }
    assert fields(client, "indexa")["room"]["type"] == "keyword"


@pytest.mark.usefixtures("printed")
def test_the_two_inserts_of_document_c(elasticsearch: Any, client: Elasticsearch) -> None:
    """Each message is polled once and goes into two indices."""
    kcql = "INSERT INTO indexA SELECT sensor.* FROM topicA; INSERT INTO indexB SELECT device.* FROM topicA"
    into = of_topic_a(elasticsearch.url, kcql)
    assert into.write(into.prepare(both(20.5)), into.prepare(both(19.0, "cellar", "d2"))) == []
    assert sorted(one["temperature"] for one in documents(client, "indexa").values()) == [19.0, 20.5]
    assert documents(client, "indexb") == {
        "topicA-0-0": {"id": "d1", "room": "attic"},
        "topicA-0-1": {"id": "d2", "room": "cellar"},
    }


@pytest.mark.usefixtures("printed")
def test_the_dated_insert_of_document_c(elasticsearch: Any, client: Elasticsearch) -> None:
    kcql = "INSERT INTO indexA SELECT * FROM topicA WITHINDEXSUFFIX={YYYY-MM-dd}"
    into = of_topic_a(elasticsearch.url, kcql)
    assert into.write(into.prepare(both(20.5))) == []
    assert documents(client, "indexa2026-01-01") == {"topicA-0-0": both(20.5)}
    assert fields(client, "indexa2026-01-01")["sensor"]["properties"]["temperature"]["type"] == "double"


@pytest.mark.parametrize("suffix", ["", "WITHINDEXSUFFIX=-{YYYY.MM.DD}"])
@pytest.mark.parametrize("name", ["*", "{index}*", "{index},{index}-b", "_all", "-{index}", "a/b", "a b", "#", ".x"])
def test_a_record_that_names_no_index_is_refused_and_reaches_no_other(
    elasticsearch: Any, client: Elasticsearch, index: str, name: str, suffix: str
) -> None:
    for other in (index, f"{index}-b"):
        client.indices.create(index=other)
    templates = client.indices.get_index_template()["index_templates"]
    config = {"url": elasticsearch.url, "kcql": f"INSERT INTO _value.place SELECT * FROM t {suffix}"}
    into = Writing("elasticsearch", PLACED, "t", config)
    bad, good = {"place": name.format(index=index), "poison": 1}, {"place": f"{index}-GOOD", "poison": 2}
    (rejected,) = into.write(into.prepare(bad), into.prepare(good))
    assert (rejected.index, rejected.reason, rejected.transient) == (0, "target", False)
    assert "names no index" in str(rejected.error)
    written = f"{index}-good" + ("-2026.01.01" if suffix else "")
    assert documents(client, written) == {"t-0-1": good}
    assert fields(client, written)["poison"] == {"type": "long"}
    assert fields(client, index) == fields(client, f"{index}-b") == {}
    added = [one for one in client.indices.get_index_template()["index_templates"] if one not in templates]
    assert [one["index_template"]["index_patterns"] for one in added] == [[written]]


def test_a_dated_target_touches_no_index_that_only_looks_alike(
    elasticsearch: Any, client: Elasticsearch, index: str
) -> None:
    others = [f"{index}-hourly-2026.01.01", f"{index}-2025.12.31-kept", f"{index}-x"]
    for other in others:
        client.indices.create(index=other)
    client.indices.create(index=f"{index}-2026.01.01", mappings={"properties": {"place": {"type": "text"}}})
    kcql = f"INSERT INTO {index} SELECT * FROM t WITHINDEXSUFFIX -{{YYYY.MM.DD}}"
    into = Writing("elasticsearch", PLACED, "t", {"url": elasticsearch.url, "kcql": kcql})
    assert into.write(into.prepare({"place": "p", "poison": 1})) == []
    assert [fields(client, other) for other in others] == [{}, {}, {}]
    found = fields(client, f"{index}-2026.01.01")
    assert found == {"place": {"type": "text"}, "poison": {"type": "long"}}, "it learns what it does not have"


def test_without_auto_create_a_missing_index_is_the_records_fault_only_where_the_record_names_it(
    elasticsearch: Any, client: Elasticsearch, index: str
) -> None:
    def into(kcql: str) -> Writing:
        config = {"url": elasticsearch.url, "kcql": kcql, "index.auto.create": "false"}
        return Writing("elasticsearch", PLACED, "t", config)

    static = into(f"INSERT INTO {index}-static SELECT * FROM t")
    with pytest.raises(SinkConfigError, match=f"there is no index {index}-static"):
        static.write(static.prepare({"place": "p", "poison": 1}))

    client.indices.create(index=f"{index}-there")
    derived = into("INSERT INTO _value.place SELECT * FROM t")
    places = [f"{index}-absent", f"{index}-there", f"{index}-absent"]
    prepared = [derived.prepare({"place": place, "poison": 1}) for place in places]
    rejected = derived.write(*prepared)
    assert [(one.index, one.reason, one.transient) for one in rejected] == [(0, "target", False), (2, "target", False)]
    assert set(documents(client, f"{index}-there")) == {"t-0-1"}
    client.indices.create(index=f"{index}-absent")
    assert derived.write(*prepared) == [], "it is looked for again"

    dated = into(f"INSERT INTO {index} SELECT * FROM t WITHINDEXSUFFIX -{{YYYY.MM.DD}}")
    (missing,) = dated.write(dated.prepare({"place": "p", "poison": 1}))
    assert (missing.reason, str(missing.error)) == (
        "target",
        f"there is no index {index}-2026.01.01, and connect.elastic.index.auto.create is false",
    )


V1 = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
V2 = {
    "type": "record",
    "name": "R",
    "fields": [*V1["fields"], {"name": "seen", "type": MILLIS}, {"name": "tags", "type": TAGS}],
}
CHANGED = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "a", "type": "long"}, {"name": "fresh", "type": MILLIS}],
}
ROW_V1: dict[str, Any] = {"a": "q"}
ROW_V2: dict[str, Any] = {"a": "q", "seen": TIMESTAMP_MS, "tags": {"x": "1"}}
OF_V2 = {"a": "keyword", "seen": "date", "tags": "flattened"}


class Evolving:
    """One task that writes rows of several schemas into daily indices."""

    def __init__(self, url: str, index: str) -> None:
        kcql = f"INSERT INTO {index} SELECT * FROM t WITHINDEXSUFFIX -{{YYYY.MM.DD}}"
        self._index = index
        self._into = Writing("elasticsearch", V1, "t", {"url": url, "kcql": kcql})
        self._plans: dict[str, Plan] = {}
        self._offset = 0

    def write(self, day: str, *rows: tuple[Any, dict[str, Any]]) -> list[FailedRow]:
        """Write rows, each with its schema, into the index of `day`."""
        made = []
        for schema, values in rows:
            self._offset += 1
            id_, target = str(self._offset), f"{self._index}-{day}"
            made.append(Row(self._offset, target, id_, values, TIMESTAMP_MS, None, self._plan(schema)))
        return list(self._into.sink.write(Batch("t", 0, made)))

    def _plan(self, schema: Any) -> Plan:
        (statement,) = self._into.config.statements
        writer = WriterSchema(len(self._plans), schema, parse(schema))
        return self._plans.setdefault(str(schema), compile_plan(statement, writer, "-"))


def types(client: Elasticsearch, index: str) -> dict[str, str]:
    return {name: field.get("type", "object") for name, field in fields(client, index).items()}


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_rows_of_two_schema_versions_find_the_fields_of_both(
    elasticsearch: Any, client: Elasticsearch, index: str, order: tuple[int, int]
) -> None:
    """Both are in flight while producers are replaced, in either order, and a new day begins meanwhile."""
    versions = [(V1, ROW_V1), (V2, ROW_V2)]
    task = Evolving(elasticsearch.url, index)
    assert task.write("2026.01.01", *(versions[number] for number in order)) == []
    assert task.write("2026.01.02", (V1, ROW_V1), (V2, ROW_V2)) == []
    for day in ("2026.01.01", "2026.01.02"):
        assert types(client, f"{index}-{day}") == OF_V2
    client.indices.delete(index=f"{index}-2026.01.02")
    assert task.write("2026.01.02", (V2, ROW_V2)) == []
    assert types(client, f"{index}-2026.01.02") == OF_V2, "by the template, which is of both versions"


def test_another_tasks_older_template_takes_no_field_from_a_new_index(
    elasticsearch: Any, client: Elasticsearch, index: str
) -> None:
    newer, older = Evolving(elasticsearch.url, index), Evolving(elasticsearch.url, index)
    assert newer.write("2026.01.01", (V2, ROW_V2)) == []
    assert older.write("2026.01.01", (V1, ROW_V1)) == []
    assert newer.write("2026.01.02", (V2, ROW_V2)) == []
    assert types(client, f"{index}-2026.01.02") == OF_V2


def test_a_changed_type_stays_the_first_one_and_hides_no_other_field(
    elasticsearch: Any, client: Elasticsearch, index: str
) -> None:
    task = Evolving(elasticsearch.url, index)
    assert task.write("2026.01.01", (V2, ROW_V2)) == []
    assert task.write("2026.01.01", (CHANGED, {"a": 7, "fresh": TIMESTAMP_MS})) == []
    assert types(client, f"{index}-2026.01.01") == {**OF_V2, "fresh": "date"}
