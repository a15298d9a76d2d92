"""A statement as JSON, in words, and written back."""

import json
from typing import Any

import pytest

from isotherm.kcql import explain_json, explain_words, parse
from isotherm.kcql.syntax.render import render

PRINTED = """
INSERT INTO coap_sensor_topic SELECT * FROM sensors
INSERT INTO dev SELECT * FROM coap_sensor_topic WITHFORMAT JSON STOREAS QUEUE
INSERT INTO sensor_ringbuffer SELECT sensor_id, timestamp, temperature FROM coap_sensor_topic WITH FORMAT JSON
INSERT INTO temperatures SELECT * FROM temperatures.grouped WITHINDEXSUFFIX -{YYYY.MM.DD}
UPSERT INTO indexA SELECT sensor.*, device.* FROM topicA PK device.id
INSERT INTO indexA SELECT sensor.* FROM topicA; INSERT INTO indexB SELECT device.* FROM topicA
INSERT INTO indexA SELECT sensor.* FROM topicA WITHINDEXSUFFIX={YYYY-MM-dd}
INSERT INTO thermostat.data SELECT id AS device_id, t AS value FROM devices/+/temperature
""".strip().splitlines()

EVERY_KEY: dict[str, Any] = {
    "mode": None,
    "target": None,
    "target_from": None,
    "source": "b",
    "fields": [{"path": ["a"], "alias": None, "part": "value"}],
    "where": None,
    "ignore": [],
    "primary_key": [],
    "format": None,
    "store_as": None,
    "index_suffix": None,
    "ttl": None,
    "batch": None,
    "limit": None,
    "autocreate": False,
    "autoevolve": False,
    "with_structure": False,
    "unwrap": False,
    "timestamp": None,
    "timestamp_unit": "MILLISECONDS",
    "with_key": [],
    "key_delimiter": ".",
    "tags": [],
    "partition_by": [],
    "no_partition": False,
    "converter": None,
    "doc_type": None,
    "pipeline": None,
    "regex": None,
    "type": None,
    "dynamic_target": None,
    "incremental_mode": None,
    "subscription": None,
    "jms_selector": None,
    "properties": {},
}

A = {"path": ["a"], "part": "value"}
FULL = """
INSERT INTO temperatures SELECT device.id AS device_id, *, _.topic, now() FROM temperatures.grouped
WHERE mean > 20.5 AND _key IS NOT NULL
IGNORE a.b AUTOCREATE WITHSTRUCTURE PK device.id, _key WITHTARGET=x.y AUTOEVOLVE BATCH=7
PARTITIONBY _header.h WITHTIMESTAMP ts TIMESTAMPUNIT=SECONDS WITHFORMAT JSON WITHUNWRAP STOREAS QUEUE(Size=5)
WITHTAG(f, c=v, g AS h) INCREMENTALMODE=token WITHTYPE topic WITHDOCTYPE=d WITHINDEXSUFFIX -{YYYY.MM.DD} TTL=8
WITHCONVERTER=`c` WITHJMSSELECTOR='a > 1' WITHKEY(k, _.offset) KEYDELIMITER='|' WITHPIPELINE=p
WITHSUBSCRIPTION=s WITHREGEX=`re` LIMIT 9 PROPERTIES(behavior.on.null.values=IGNORE)
"""


def test_every_key_is_always_present_and_has_its_default() -> None:
    (statement,) = parse("SELECT a FROM b")
    assert explain_json(statement) == EVERY_KEY
    assert list(explain_json(statement)) == list(EVERY_KEY)


def test_every_clause_as_json() -> None:
    (statement,) = parse(FULL)
    explained = explain_json(statement)
    assert json.loads(json.dumps(explained)) == explained
    assert explained == {
        "mode": "INSERT",
        "target": "temperatures",
        "target_from": None,
        "source": "temperatures.grouped",
        "fields": [
            {"path": ["device", "id"], "alias": "device_id", "part": "value"},
            {"path": ["*"], "alias": None, "part": "value"},
            {"path": [], "alias": None, "part": "topic"},
            {"path": ["now"], "alias": None, "part": "function"},
        ],
        "where": {
            "and": [
                {
                    "operator": ">",
                    "left": {"path": ["mean"], "part": "value"},
                    "right": {"value": 20.5, "type": "number"},
                },
                {"operator": "IS NOT NULL", "left": {"path": [], "part": "key"}},
            ]
        },
        "ignore": [["a", "b"]],
        "primary_key": [{"path": ["device", "id"], "part": "value"}, {"path": [], "part": "key"}],
        "format": "JSON",
        "store_as": {"type": "QUEUE", "parameters": {"Size": "5"}},
        "index_suffix": "-{YYYY.MM.DD}",
        "ttl": 8,
        "batch": 7,
        "limit": 9,
        "autocreate": True,
        "autoevolve": True,
        "with_structure": True,
        "unwrap": True,
        "timestamp": {"path": ["ts"], "part": "value"},
        "timestamp_unit": "SECONDS",
        "with_key": [{"path": ["k"], "part": "value"}, {"path": [], "part": "offset"}],
        "key_delimiter": "|",
        "tags": [
            {"path": ["f"], "alias": None, "constant": None},
            {"path": ["c"], "alias": None, "constant": "v"},
            {"path": ["g"], "alias": "h", "constant": None},
        ],
        "partition_by": [{"path": ["h"], "part": "header"}],
        "no_partition": False,
        "converter": "c",
        "doc_type": "d",
        "pipeline": "p",
        "regex": "re",
        "type": "TOPIC",
        "dynamic_target": ["x", "y"],
        "incremental_mode": "TOKEN",
        "subscription": "s",
        "jms_selector": "a > 1",
        "properties": {"behavior.on.null.values": "IGNORE"},
    }


@pytest.mark.parametrize(
    ("target", "text", "origin"),
    [
        ("_key", "_key", {"part": "key", "path": []}),
        ("`_value.a.b`", "_value.a.b", {"part": "value", "path": ["a", "b"]}),
        ("_header.h", "_header.h", {"part": "header", "path": ["h"]}),
        ("$", "$", {"part": "topic", "path": []}),
        ("'a b'", "a b", None),
    ],
)
def test_where_the_target_comes_from(target: str, text: str, origin: object) -> None:
    (statement,) = parse(f"INSERT INTO {target} SELECT * FROM s WITHTIMESTAMP sys_time()")
    explained = explain_json(statement)
    assert (explained["target"], explained["target_from"]) == (text, origin)
    assert explained["timestamp"] == "sys_time()"


@pytest.mark.parametrize("text", PRINTED)
def test_the_documents_statements_are_explained(text: str) -> None:
    for statement in parse(text):
        assert statement.source in explain_words(statement)
        assert str(statement.target) in explain_words(statement)
        assert explain_json(statement)["source"] == statement.source
    assert parse(render(parse(text))) == parse(text)


def test_every_clause_in_words() -> None:
    (statement,) = parse(FULL)
    words = explain_words(statement)
    for said in (
        'Every record of "temperatures.grouped" that meets the condition is inserted into the target',
        "the target that its field x.y names",
        '"-2026.01.31" for 2026-01-31 14:05:09 UTC',
        "device.id as device_id",
        "*: all other fields of the value",
        "_.topic as topic",
        "now() as now: the connector's function",
        "condition: mean > 20.5 AND _key IS NOT NULL",
        "left out: a.b",
        "primary key: the values of device.id, _key",
        "event time: ts, in seconds",
        "stored as: QUEUE (Size=5)",
        "time to live: 8",
        "Kafka key: k, _.offset, joined by '|'",
        "tags: f, c=v, g AS h",
        "partitioned by: _header.h",
        "selector: a > 1",
        "properties: behavior.on.null.values='IGNORE'",
    ):
        assert said in words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT a FROM `*`", "Reads every record of any topic of the connector."),
        ("UPSERT INTO $ SELECT * FROM s", "is upserted into the target named as its MQTT topic, with _ for /."),
        ("INSERT INTO _key SELECT * FROM s", "is inserted into the target that its whole key names."),
        ("INSERT INTO _key.p SELECT * FROM s", 'the target that "p" of its key names.'),
        ("INSERT INTO _header.h SELECT * FROM s", 'the target that its header "h" names.'),
        ("INSERT INTO t SELECT * FROM s WITHINDEXSUFFIX=-v1", '"t" with the suffix "-v1".'),
        ("INSERT INTO t SELECT * FROM s WITHTIMESTAMP sys_time()", "event time: Kafka's timestamp"),
        ("INSERT INTO t SELECT * FROM s NOPARTITION", "partitioned by: nothing"),
        ("INSERT INTO t SELECT a.* FROM s", "a.*: all fields of a"),
    ],
)
def test_words(text: str, said: str) -> None:
    (statement,) = parse(text)
    assert said in explain_words(statement)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("insert into `t` select * from 's' limit=5 pk a", "INSERT INTO t SELECT * FROM s PK a LIMIT 5"),
        ("SELECT `a b`, 'c`d', _value._key, `_value.x` FROM `*`", "SELECT `a b`, 'c`d', _value._key, x FROM `*`"),
        ("SELECT a FROM b WITH FORMAT json", "SELECT a FROM b WITHFORMAT JSON"),
        ("SELECT `now()`, _value.`now()` FROM b", "SELECT now(), _value.`now()` FROM b"),
        ("INSERT INTO `_key.a`.b SELECT a FROM b", "INSERT INTO `_key.a`.b SELECT a FROM b"),
        ("INSERT INTO 'a`b'.`c'd` SELECT a FROM b", "INSERT INTO 'a`b'.`c'd` SELECT a FROM b"),
        ("SELECT a FROM b PK `autocreate`, c", "SELECT a FROM b PK `autocreate`, c"),
        ("SELECT a FROM b WITHINDEXSUFFIX -{MM}", "SELECT a FROM b WITHINDEXSUFFIX=`-{MM}`"),
    ],
)
def test_written_back(text: str, canonical: str) -> None:
    assert render(parse(text)) == canonical
    assert parse(canonical) == parse(text)


@pytest.mark.parametrize(
    ("condition", "canonical", "as_json"),
    [
        ("a!=5", "a <> 5", {"operator": "<>", "left": A, "right": {"value": 5, "type": "number"}}),
        ("1.5e2 < a", "1.5E+2 < a", {"operator": "<", "left": {"value": 150.0, "type": "number"}, "right": A}),
        ("((a is null))", "a IS NULL", {"operator": "IS NULL", "left": A}),
        (
            "a in('x','it''s')",
            "a IN ('x', 'it''s')",
            {
                "operator": "IN",
                "left": A,
                "right": [{"value": "x", "type": "text"}, {"value": "it's", "type": "text"}],
            },
        ),
        (
            "a not like '!%' escape '!'",
            "a NOT LIKE '!%' ESCAPE '!'",
            {"operator": "NOT LIKE", "left": A, "right": {"value": "!%", "type": "text"}, "escape": "!"},
        ),
        (
            "not a = true or a not in (timestamp'2026-01-31 01:00+01:00')",
            "NOT a = TRUE OR a NOT IN (TIMESTAMP '2026-01-31T00:00:00Z')",
            {
                "or": [
                    {"not": {"operator": "=", "left": A, "right": {"value": True, "type": "boolean"}}},
                    {"operator": "NOT IN", "left": A, "right": [{"value": "2026-01-31T00:00:00Z", "type": "time"}]},
                ]
            },
        ),
        ("(a = 1 or a = 2) and (a = 3 and a = 4)", "(a = 1 OR a = 2) AND a = 3 AND a = 4", None),
        ("not (a = 1 and a = 2)", "NOT (a = 1 AND a = 2)", None),
        ("`null` = `5`.`5` and `-1`.x > timestamp", "`null` = `5`.`5` AND -1.x > timestamp", None),
        ("_header.`a b` = `_key.x`", "_header.`a b` = _key.x", None),
    ],
)
def test_conditions(condition: str, canonical: str, as_json: Any) -> None:
    (statement,) = parse(f"SELECT a FROM s WHERE {condition} PK a")
    assert render(statement) == f"SELECT a FROM s WHERE {canonical} PK a"
    assert parse(render(statement)) == (statement,)
    if as_json is not None:
        assert explain_json(statement)["where"] == as_json
