"""Configurations: the files of the documents, the native form, and the errors of each sink."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from isotherm.connector.config import files
from isotherm.connector.config.files import ConnectorConfig, parse
from isotherm.connector.config.validation import InvalidConfigError
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.__main__ import main
from isotherm.persisters.configuration import check, dead_letter_topic, error_policy, subscription
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.sinks.elasticsearch.client import nodes
from isotherm.persisters.sinks.hazelcast.sink import structure_of

HAZELCAST_OF_DOCUMENT_A = """
name=hazelcast-sink
connector.class=com.datamountaineer.streamreactor.connect.hazelcast.sink.HazelCastSinkConnector
max.tasks=1
topics = coap_sensor_topic
connect.hazelcast.sink.cluster.members=localhost
connect.hazelcast.sink.group.name=dev
connect.hazelcast.sink.group.password=dev-pass
connect.hazelcast.sink.kcql=INSERT INTO dev SELECT * FROM coap_sensor_topic WITHFORMAT JSON STOREAS QUEUE
"""

ELASTIC_OF_DOCUMENT_C = """
{
"name": "temperatures-to-elasticsearch",
"connector.class": "com.datamountaineer.streamreactor.connect.elastic.ElasticSinkConnector",
"tasks.max": "${env:MAX_TASKS}",
"topics": "temperatures.grouped",
"connect.elastic.url": "elasticsearch://${env:ELASTIC_SEARCH_HOST}:${env:ELASTIC_SEARCH_PORT}",
"connect.elastic.cluster.name": "${env:ELASTIC_SEARCH_CLUSTER}",
"connect.elastic.kcql": "INSERT INTO temperatures SELECT * FROM temperatures.grouped WITHINDEXSUFFIX -{YYYY.MM.DD}",
"connect.elastic.index.auto.create": "${env:ELASTIC_SEARCH_INDEX_AUTO_CREATE}"
}
"""

NATIVE_SCYLLA = """
name = "temperature-to-scylla"
class = "scylla"
topics = ["temperature"]
kcql = "INSERT INTO temperature SELECT * FROM temperature AUTOCREATE PK device_id, event_time TTL=86400"
"contact.points" = ["s1", "s2", "s3"]
"key.space" = "isotherm"
"error.policy" = "RETRY"
"dead.letters" = true
"""


def hazelcast(kcql: str, **more: str) -> ConnectorConfig:
    topics = {"topics": more.pop("topics", "t")}
    return files.from_mapping({"name": "n", "connector.class": "hazelcast", "kcql": kcql, **topics, **more})


def elastic_config(**more: str) -> ConnectorConfig:
    base = {"name": "n", "connector.class": "elastic", "topics": "t", "kcql": "INSERT INTO a SELECT * FROM t"}
    return files.from_mapping(base | {k.replace("__", "."): v for k, v in more.items()})


def problems(sink: str, given: ConnectorConfig) -> str:
    with pytest.raises(InvalidConfigError) as caught:
        check(installed_sinks()[sink], given)
    return "\n".join(caught.value.problems)


def test_a_separator_that_encodes_ids_is_refused() -> None:
    found = problems("hazelcast", hazelcast("INSERT INTO a SELECT * FROM t STOREAS IMAP", **{"pk.separator": "%"}))
    assert "connect.hazelcast.pk.separator: '%' is not allowed" in found


def test_document_a_runs_unchanged() -> None:
    found = check(installed_sinks()["hazelcast"], parse(HAZELCAST_OF_DOCUMENT_A))
    assert found.integer("tasks.max") == 1
    assert found.items("connect.hazelcast.cluster.members") == ["localhost"]
    assert found.text("connect.hazelcast.group.name") == "dev"
    assert structure_of(found.statements[0]) == "QUEUE"
    (notice,) = found.notices
    assert "no group password" in notice.message


def test_document_a_without_storeas_is_a_ring_buffer_and_says_so() -> None:
    text = (
        "INSERT INTO sensor_ringbuffer SELECT sensor_id, timestamp, temperature FROM coap_sensor_topic WITH FORMAT JSON"
    )
    found = check(installed_sinks()["hazelcast"], hazelcast(text, topics="coap_sensor_topic"))
    assert structure_of(found.statements[0]) == "RING_BUFFER"
    assert any("no STOREAS: stored in a RING_BUFFER" in notice.message for notice in found.notices)


def test_document_c_runs_unchanged_with_its_references_resolved_late() -> None:
    written = parse(ELASTIC_OF_DOCUMENT_C)
    assert check(installed_sinks()["elasticsearch"], written).text("tasks.max") == "${env:MAX_TASKS}"
    environ = {
        "MAX_TASKS": "3",
        "ELASTIC_SEARCH_HOST": "es.example",
        "ELASTIC_SEARCH_PORT": "9201",
        "ELASTIC_SEARCH_CLUSTER": "smart-home",
        "ELASTIC_SEARCH_INDEX_AUTO_CREATE": "true",
    }
    found = check(installed_sinks()["elasticsearch"], written.resolved(environ))
    assert found.integer("tasks.max") == 3
    assert nodes(found) == ["http://es.example:9201"]


@pytest.mark.parametrize(
    "kcql",
    [
        "UPSERT INTO indexA SELECT sensor.*, device.* FROM topicA PK device.id",
        "INSERT INTO indexA SELECT sensor.* FROM topicA; INSERT INTO indexB SELECT device.* FROM topicA",
        "INSERT INTO indexA SELECT * FROM topicA WITHINDEXSUFFIX={YYYY-MM-dd}",
    ],
)
def test_the_other_statements_of_document_c(kcql: str) -> None:
    given = files.from_mapping(
        {"name": "n", "connector.class": "elasticsearch", "topics": "topicA", "connect.elastic.kcql": kcql}
    )
    found = check(installed_sinks()["elasticsearch"], given)
    assert found.statements
    told = "\n".join(notice.message for notice in found.notices)
    assert "Elasticsearch index names are lower case only: indexA" in told
    assert "is written as indexa" in told


@pytest.mark.parametrize(
    ("kcql", "expected"),
    [
        ("INSERT INTO `a,b` SELECT * FROM t", "',' is not allowed in it"),
        ("INSERT INTO `a*` SELECT * FROM t", "'*' is not allowed in it"),
        ("INSERT INTO `-a` SELECT * FROM t", "begin with - _ + ."),
        ("INSERT INTO a SELECT * FROM t WITHINDEXSUFFIX=#{YYYY}", "'#' is not allowed in it"),
        ("INSERT INTO _value.a SELECT * FROM t WITHINDEXSUFFIX=:{YYYY}", "':' is not allowed in it"),
        (f"INSERT INTO {'a' * 246} SELECT * FROM t WITHINDEXSUFFIX={{YYYY.MM.DD}}", "256 bytes, at most 255"),
    ],
)
def test_names_that_no_index_can_have(kcql: str, expected: str) -> None:
    given = {"name": "n", "connector.class": "elastic", "topics": "t", "connect.elastic.kcql": kcql}
    assert expected in problems("elasticsearch", files.from_mapping(given))


def test_a_prefix_is_part_of_the_name_once_it_is_known() -> None:
    assert "'*' is not allowed" in problems("elasticsearch", elastic_config(tableprefix="x*"))
    assert check(installed_sinks()["elasticsearch"], elastic_config(tableprefix="${env:PREFIX}")).notices == ()
    (notice,) = check(installed_sinks()["elasticsearch"], elastic_config(tableprefix="Home-")).notices
    assert "Home-a is written as home-a" in notice.message


def test_the_native_form() -> None:
    found = check(installed_sinks()["scylla"], parse(NATIVE_SCYLLA, form="toml"))
    assert found.items("connect.cassandra.contact.points") == ["s1", "s2", "s3"]
    assert error_policy(installed_sinks()["scylla"], found) == ErrorPolicy(Policy.RETRY, dead_letters=True)
    assert dead_letter_topic(found) == "temperature-to-scylla.dead-letters"


def test_a_named_dead_letter_topic_enables_dead_letters() -> None:
    given = hazelcast("INSERT INTO a SELECT * FROM t", **{"errors.deadletterqueue.topic.name": "dead"})
    assert dead_letter_topic(check(installed_sinks()["hazelcast"], given)) == "dead"
    without = check(installed_sinks()["hazelcast"], hazelcast("INSERT INTO a SELECT * FROM t"))
    assert dead_letter_topic(without) is None


@pytest.mark.parametrize(
    ("kcql", "expected"),
    [
        ("INSERT INTO a SELECT * FROM t STOREAS QUEUES", "did you mean QUEUE?"),
        ("INSERT INTO a SELECT * FROM t STOREAS ICACHE", "has no JCache; use IMAP"),
        ("INSERT INTO a SELECT * FROM t STOREAS QUEUE(size=4)", "takes no parameters"),
        ("INSERT INTO a SELECT * FROM t WITHFORMAT PROTOBUF STOREAS QUEUE", "expected one of JSON, AVRO, TEXT"),
        ("INSERT INTO a SELECT * FROM t STOREAS QUEUE TTL=5", "TTL has no effect on a QUEUE"),
        ("INSERT INTO a SELECT * FROM t PK x STOREAS LIST", "PK has no effect on a LIST"),
        ("UPSERT INTO a SELECT * FROM t STOREAS LIST", "UPSERT has no meaning for a LIST"),
        ("INSERT INTO a SELECT * FROM t AUTOCREATE STOREAS IMAP", "Hazelcast creates every structure on first use"),
        ("INSERT INTO a SELECT * FROM t STOREAS SET PROPERTIES('behavior.on.null.values'='DELETE')", "only on an IMAP"),
    ],
)
def test_hazelcast_refuses(kcql: str, expected: str) -> None:
    assert expected in problems("hazelcast", hazelcast(kcql))


def test_a_ring_buffer_has_one_writing_task() -> None:
    found = problems("hazelcast", hazelcast("INSERT INTO a SELECT * FROM t STOREAS RING_BUFFER", **{"tasks.max": "2"}))
    assert "tasks.max: expected 1: only a single task can write each record once to a RING_BUFFER" in found


@pytest.mark.parametrize(
    ("kcql", "expected"),
    [
        ("UPSERT INTO a SELECT * FROM t", "UPSERT needs PK"),
        ("UPSERT INTO a SELECT * FROM t PK x WITHPIPELINE=p", "no pipeline for updates"),
        ("INSERT INTO a SELECT * FROM t WITHDOCTYPE=d", "no document types since version 7"),
        ("INSERT INTO a SELECT * FROM t TTL=4", "TTL has no effect"),
        (
            "INSERT INTO a SELECT * FROM t PROPERTIES('behavior.on.null.values'='MAYBE')",
            "expected IGNORE, DELETE or FAIL",
        ),
        (
            "INSERT INTO a SELECT * FROM t PK _key.k WITHINDEXSUFFIX=-{YYYY} "
            "PROPERTIES('behavior.on.null.values'='DELETE')",
            "a tombstone has no event time",
        ),
    ],
)
def test_elasticsearch_refuses(kcql: str, expected: str) -> None:
    given = {"name": "n", "connector.class": "elastic", "topics": "t", "connect.elastic.kcql": kcql}
    assert expected in problems("elasticsearch", files.from_mapping(given))


def test_a_partial_upsert_of_a_topic_with_revisions_is_refused_where_its_schema_is_known() -> None:
    given = {"name": "n", "connector.class": "elastic", "topics": "temperatures.aggregated"}
    partial = "UPSERT INTO a SELECT mean FROM temperatures.aggregated PK device_id"
    told = problems("elasticsearch", files.from_mapping(given | {"kcql": partial}))
    assert "a partial UPSERT would mix fields of several revisions" in told
    whole = "UPSERT INTO a SELECT * FROM temperatures.aggregated PK device_id"
    assert check(installed_sinks()["elasticsearch"], files.from_mapping(given | {"kcql": whole})).statements


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"api.key": "k", "use.http.username": "u"}, "api.key: not allowed together with"),
        ({"use.http.password": "p"}, "connect.elastic.use.http.username is missing"),
        ({"url": "https://h", "ssl.key": "k.pem"}, "connect.elastic.ssl.certificate is missing"),
        ({"url": "http://h", "ssl.certificate.authorities": "a.pem"}, "http://h:9200 is not reached with TLS"),
    ],
)
def test_credentials_and_tls_of_elasticsearch(given: dict[str, str], expected: str) -> None:
    base = {"name": "n", "connector.class": "elastic", "topics": "t", "kcql": "INSERT INTO a SELECT * FROM t"}
    assert expected in problems("elasticsearch", files.from_mapping(base | given))


def test_scylla_needs_a_keyspace() -> None:
    given = {"name": "n", "connector.class": "cassandra", "topics": "t", "kcql": "INSERT INTO a SELECT * FROM t"}
    assert "no keyspace: set connect.cassandra.key.space" in problems("scylla", files.from_mapping(given))
    given["kcql"] = "INSERT INTO ks.a SELECT * FROM t"
    assert check(installed_sinks()["scylla"], files.from_mapping(given)).statements


def test_topics_are_needed_once_and_must_be_read() -> None:
    statement = "INSERT INTO a SELECT * FROM t"
    assert "no KCQL statement reads 'u'" in problems("hazelcast", hazelcast(statement, topics="t,u"))
    assert "exactly one of topics and topics.regex" in problems("hazelcast", hazelcast(statement, topics=""))
    both = hazelcast(statement, **{"topics.regex": "t.*"})
    assert "exactly one of topics and topics.regex" in problems("hazelcast", both)
    by_pattern = check(installed_sinks()["hazelcast"], hazelcast(statement, topics="", **{"topics.regex": "t.*"}))
    assert subscription(by_pattern) == ["^(t.*)$"]
    other = hazelcast(statement, topics="", **{"topics.regex": "u.*"})
    assert "does not match 't'" in problems("hazelcast", other)
    broken = hazelcast(statement, topics="", **{"topics.regex": "(?u)t"})
    assert "is no regular expression, or uses what only Java's has" in problems("hazelcast", broken)


def test_an_unknown_converter() -> None:
    given = hazelcast("INSERT INTO a SELECT * FROM t", **{"value.converter": "com.acme.Converter"})
    assert "value.converter: 'com.acme.Converter' is not allowed" in problems("hazelcast", given)


def test_validate_prints_everything_and_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = tmp_path / "good.properties"
    good.write_text(HAZELCAST_OF_DOCUMENT_A, encoding="utf-8")
    assert main(["validate", "--sink", "hazelcast", str(good)]) == 0
    assert capsys.readouterr().out == "hazelcast-sink: valid\n"
    bad = tmp_path / "bad.properties"
    text = HAZELCAST_OF_DOCUMENT_A.replace("max.tasks=1", "max.tasks=none").replace("STOREAS QUEUE", "STOREAS PILE")
    bad.write_text(textwrap.dedent(text), encoding="utf-8")
    assert main(["validate", str(bad)]) == 2
    told = capsys.readouterr().err
    assert "error: tasks.max: 'none' is not allowed" in told
    assert "STOREAS PILE is not allowed" in told, "what the sink finds is told with what its keys' types find"
    assert "notice: connect.hazelcast.group.password" in told


def test_validate_takes_references_that_it_cannot_resolve_also_inside_a_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "elastic.json"
    file.write_text(ELASTIC_OF_DOCUMENT_C, encoding="utf-8")
    assert main(["validate", str(file)]) == 0
    assert main(["run", str(file)]) == 2
    assert "the environment has no variable ELASTIC_SEARCH_HOST" in capsys.readouterr().err
    file.write_text(ELASTIC_OF_DOCUMENT_C.replace("${env:ELASTIC_SEARCH_PORT}", "${ELASTIC_SEARCH_PORT}"), "utf-8")
    assert main(["validate", str(file)]) == 2
    assert "write ${env:ELASTIC_SEARCH_PORT} or ${file:PATH:KEY}" in capsys.readouterr().err


def test_every_problem_of_every_part_is_told_at_once() -> None:
    given = {
        "name": "n",
        "connector.class": "elastic",
        "topics": "t",
        "max.tasks": "0",
        "error.policy": "TROW",
        "value.converter": "xml",
        "url": "mongodb://h",
        "kcql": "UPSERT INTO a SELECT * FROM u",
        "connect.elastic.retention.dais": "7",
    }
    with pytest.raises(InvalidConfigError) as caught:
        check(installed_sinks()["elasticsearch"], files.from_mapping(given))
    told = "\n".join(caught.value.problems)
    for expected in (
        "tasks.max: '0'",
        "did you mean THROW?",
        "value.converter: 'xml'",
        "'mongodb://h' is not allowed",
        "UPSERT needs PK",
        "no KCQL statement reads 't'",
        "'u' is read by",
    ):
        assert expected in told
    assert any("did you mean connect.elastic.retention.days?" in str(notice) for notice in caught.value.notices)


def test_run_refuses_what_validate_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "foreign.properties"
    file.write_text("name=x\nconnector.class=org.acme.Sink\ntopics=t\n", encoding="utf-8")
    assert main(["run", str(file)]) == 2
    assert "'org.acme.Sink' is no sink that is installed" in capsys.readouterr().err
    assert main(["run", "--sink", "scylla", str(tmp_path / "absent")]) == 2
    assert "No such file" in capsys.readouterr().err
