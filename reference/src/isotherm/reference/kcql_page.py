"""The page of KCQL: the language by explained examples, and its clauses with the connectors that use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from isotherm import kcql
from isotherm.kcql.syntax.expectations import CLAUSES
from isotherm.reference import markdown
from isotherm.reference.connectors_page import definitions

_INTRODUCTION = """KCQL says which record goes where and what its row holds. The dialect of stream-reactor is accepted,
except its form `UPSERT PK f INTO`.

```text
{INSERT | UPSERT} INTO target SELECT fields FROM source [clauses, in any order, each at most once] [; next statement]
```

Try a statement without any server: `isotherm kcql explain 'STATEMENT'` says what it does, and
`isotherm kcql project 'STATEMENT' < records.jsonl` applies it to records."""

_EXAMPLES = (
    "INSERT INTO dev SELECT * FROM coap_sensor_topic WITHFORMAT JSON STOREAS QUEUE",
    "UPSERT INTO homes SELECT room, mean AS value FROM t PK device.id, window_start",
    "INSERT INTO a SELECT device.*, * FROM t IGNORE device.secret",
    "INSERT INTO a SELECT _key.id, _header.`mqtt.topic` AS topic, _.offset FROM t",
    "INSERT INTO $ SELECT * FROM `home/+/temperature`",
    "INSERT INTO _value.kind SELECT * FROM `*`",
    "INSERT INTO hot SELECT * FROM t WHERE mean > 30 AND (room LIKE 'attic%' OR room IN ('loft', 'it''s')) PK room",
    "INSERT INTO a SELECT * FROM t WHERE _key IS NOT NULL AND NOT event_time < TIMESTAMP '2026-01-31T12:00:00Z'",
    "INSERT INTO a SELECT ingredients.name AS n FROM t WITHSTRUCTURE",
    "INSERT INTO a SELECT * FROM t WITHTIMESTAMP ts TIMESTAMPUNIT=SECONDS WITHINDEXSUFFIX -{YYYY.MM.DD}",
    "INSERT INTO a SELECT * FROM t PROPERTIES('behavior.on.null.values'=IGNORE); INSERT INTO b SELECT x FROM t",
)

_RULES = """- Keywords have any case. `--` after a blank begins a comment.
- Quote a name with `` ` `` or `'` when it holds anything but letters, digits, `_ - @ :` (in targets, sources and values
  also `+ # $ /`). There are no escapes.
- The word of a clause is a plain name where no clause can stand. `FROM`, `SELECT` and `AS` always need quotes as names.
- A key of the row is the alias, else the last name of the path. A name that is taken becomes `name_1`.
  Aliases go first.
- A path through null gives null. A path through a scalar, or through an array without `WITHSTRUCTURE`, makes the
  record bad.
- A field that the writer schema lacks makes the record bad; the reason names the nearest field. In JSON without a
  schema the field is left out.
- A field of the value that is called like a part of a record is reached through `_value`: `_value._key`.
- A connector refuses a clause that it does not use, when it checks its configuration."""

_CONDITIONS = """`WHERE` keeps the records of which its condition is true. The others are counted as `filtered`, with
the reason `where`: in the counts of a sink, and in the metric `readings_filtered` of the MQTT
proxy, of CoAP and of the aggregator.

| condition | true when |
|---|---|
| `a = 5`, `a <> b`, `a != 'x'`, `<`, `<=`, `>`, `>=` | the comparison holds; a field stands on one side at least |
| `a IS NULL`, `a IS NOT NULL` | the field is null or missing; or has a value |
| `a IN (1, 2)`, `a NOT IN ('x', 'y')` | the value is one of the list, or none of it; the list is of one kind |
| `a LIKE 'x%_'`, `a NOT LIKE '50!%' ESCAPE '!'` | the whole text fits: `%` is any text, `_` any one character |
| `NOT c`, `c AND d`, `c OR d`, `(c)` | in this order of precedence |

- Names are those of the field list, with the parts of the record: `_key.id`, ``_header.`mqtt.qos` ``, `_.topic`. In
  a condition `'..'` is a text, in which `''` is one quote, and only `` `..` `` quotes a name.
- Constants are numbers (`5`, `-2.5`, `1e3`), texts, `TRUE`, `FALSE` and times (`TIMESTAMP '2026-01-31T12:00:00Z'`,
  in UTC without a zone).
- The logic has three values, as in SQL: a comparison with null is unknown, `NOT` of unknown is unknown, and `WHERE`
  keeps no record of which its condition is unknown. Not a number (NaN) is treated like null.
- Texts are compared by code points, case counts. Dates, times of day and UUIDs are compared as texts in their usual
  form. A `TIMESTAMP` is compared with a time, with a number of epoch milliseconds, or with a text in ISO 8601.
- A value of another kind than its constant (`'warm' > 5`), and a path through an array or a scalar, make the record
  bad. So does a field that the writer schema lacks; in JSON without a schema that field is null. Headers are texts.
- The parts of `AND` and `OR` are looked at from left to right, until the outcome is known.
- A record without a value (a tombstone) has no fields: only conditions on its key, its headers or `_value IS NULL`
  keep it.
- In a route of the MQTT proxy or a CoAP connector the condition is about the fields of the payload; a payload with
  several readings is asked for each. What is left out is not looked at further, and the publish or request is
  acknowledged. For complete CoAP messages the condition is about the fields of the message.
- There are no casts and no functions."""

MEANINGS: Mapping[str, str] = {
    "AUTOCREATE": "creates the target when it is missing",
    "AUTOEVOLVE": "adds columns for new fields to the target",
    "BATCH": "most rows of one write",
    "IGNORE": "leaves these fields out",
    "INCREMENTALMODE": "how a source finds new rows",
    "KEYDELIMITER": "the text between the parts of a key of `WITHKEY`; the default is `.`",
    "LIMIT": "most rows of one answer",
    "NOPARTITION": "writes without partitions",
    "PARTITIONBY": "the fields that choose the target's partition",
    "PK": "the fields whose values are the id of the row",
    "PROPERTIES": "settings of this statement alone",
    "STOREAS": "the kind of structure that the target is, with its parameters",
    "TIMESTAMPUNIT": "the unit of the field of `WITHTIMESTAMP`; milliseconds by default",
    "TTL": "how long the store keeps a row; the unit is the store's",
    "WHERE": "the condition that a record must meet, see [conditions](#conditions)",
    "WITHCONVERTER": "the converter of a source's payloads",
    "WITHDOCTYPE": "the document type of an old Elasticsearch",
    "WITHFORMAT": "the format in which the row is written; `RAW` in a route of the MQTT proxy: the payload as it came",
    "WITHINDEXSUFFIX": "a suffix of the target; patterns such as `{YYYY.MM.DD}` are filled from the event time in UTC",
    "WITHJMSSELECTOR": "a selector of JMS",
    "WITHKEY": "the fields that make the key of the record",
    "WITHPIPELINE": "an ingest pipeline",
    "WITHREGEX": "a regular expression on the source's names",
    "WITHSTRUCTURE": "keeps nesting and arrays instead of a flat row",
    "WITHSUBSCRIPTION": "the name of a subscription",
    "WITHTAG": "tags of a time series",
    "WITHTARGET": "the field that names the target",
    "WITHTIMESTAMP": "the field that is the event time; `sys_time()` is Kafka's timestamp",
    "WITHTYPE": "the type of the source or target",
    "WITHUNWRAP": "writes the value of a field instead of the row",
}
"""What each clause means where a connector uses it."""


def text() -> str:
    """The page."""
    return markdown.page("KCQL", _INTRODUCTION, _lines())


def _lines() -> Iterator[str]:
    yield from ("## By examples", "")
    for example in _EXAMPLES:
        yield from ("```sql", example, "```", "", "```text")
        for statement in kcql.parse(example):
            yield kcql.explain_words(statement)
        yield from ("```", "")
    yield from ("## Rules", "", _RULES, "", "## Conditions", "", _CONDITIONS, "", "## Clauses", "")
    rows = [(markdown.code(clause), MEANINGS[clause], ", ".join(_users(clause))) for clause in sorted(CLAUSES)]
    yield from markdown.table(("clause", "meaning", "used by"), rows)


def _users(clause: str) -> Iterator[str]:
    for definition in definitions():
        if clause in definition.kcql_clauses:
            yield definition.klass.rpartition(".")[2]
