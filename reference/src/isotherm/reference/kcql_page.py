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
    yield from ("## Rules", "", _RULES, "", "## Clauses", "")
    rows = [(markdown.code(clause), MEANINGS[clause], ", ".join(_users(clause))) for clause in sorted(CLAUSES)]
    yield from markdown.table(("clause", "meaning", "used by"), rows)


def _users(clause: str) -> Iterator[str]:
    for definition in definitions():
        if clause in definition.kcql_clauses:
            yield definition.klass.rpartition(".")[2]
