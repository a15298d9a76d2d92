"""Properties for any text: no crash, no lost word, and the same meaning after rendering."""

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from isotherm.kcql import (
    KcqlError,
    ProjectionError,
    Record,
    Statement,
    compile_projection,
    parse,
)
from isotherm.kcql.syntax.render import render

WORDS = ["a", "b", "id", "device", "ttl", "pk", "limit", "Temp-1", "--x", "@f", "_x", "ö", "autocreate", "with"]
BARE = st.sampled_from(WORDS)
QUOTED = st.sampled_from(["`a b`", "'a.b'", "`from`", "'it`s'", "`;--`", "'now()x'", "`_key`", "'*'", "`AS`"])
SEGMENT = BARE | QUOTED
PATH = st.lists(SEGMENT, min_size=1, max_size=3, unique=True).map(".".join)
PLACE = st.one_of(
    PATH,
    PATH.map("_key.{}".format),
    PATH.map("_value.{}".format),
    PATH.map("_header.{}".format),
    PATH.map("_.key.{}".format),
    st.sampled_from(["_key", "_.topic", "_.partition", "_.offset", "_.timestamp", "`_key.a`", "'_header.x-y'"]),
)
FIELD = st.one_of(
    PLACE,
    st.sampled_from(["*", "now()", "`now()`", "_value", "_key.*", "_header.*", "_value.*"]),
    PATH.map("{}.*".format),
    st.tuples(PLACE, SEGMENT).map(" AS ".join),
)
TOPIC = st.one_of(SEGMENT, st.sampled_from(["/a/+/b", "a/#", "$share/g/a/+", "`*`", "ks.table", "a:b", "`a.b`.c"]))
TARGET = st.one_of(TOPIC, PLACE.filter(lambda place: not place.startswith("_.")), st.sampled_from(["$", "`$`"]))
TEXT = st.sampled_from(["x", "a.b", "`a b`", "'it`s'", "ttl", "5", "'='", "`autocreate`"])
NUMBER = st.integers(1, 2**63 - 1).map(str)
PAIR = st.tuples(st.sampled_from(["k", "a.b", "'c d'", "ttl"]), TEXT)
PAIRS = st.lists(PAIR, max_size=3, unique_by=lambda pair: pair[0]).map(
    lambda pairs: ", ".join("=".join(p) for p in pairs)
)


def listed(element: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(element, min_size=1, max_size=3, unique=True).map(", ".join)


CONDITION = st.recursive(
    st.one_of(
        st.tuples(
            PLACE, st.sampled_from(["= 'x'", "<> 5", ">= -2.5", "< b", "IS NULL", "is not null", "in ('a', 'b')"])
        ),
        st.tuples(
            PLACE,
            st.sampled_from(["is not null", "in ('a')", "NOT IN (1, 2)", "like 'a%'", "NOT LIKE '!%' ESCAPE '!'"]),
        ),
    ).map(" ".join),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "or"]), inner).map("({0[0]} {0[1]} {0[2]})".format),
        inner.map("NOT ({})".format),
    ),
    max_leaves=4,
)
CLAUSES = st.fixed_dictionaries(
    {},
    optional={
        "WHERE": CONDITION.map("WHERE {}".format),
        "IGNORE": listed(PATH).map("IGNORE {}".format),
        "PK": listed(PLACE).map("PK {}".format),
        "WITHTARGET": PATH.map("WITHTARGET={}".format),
        "PARTITIONBY": listed(PLACE).map("PARTITIONBY {}".format),
        "WITHKEY": listed(PLACE).map("WITHKEY({})".format),
        "WITHTAG": listed(PATH | st.tuples(PATH, TEXT).map(" = ".join)).map("WITHTAG ({})".format),
        "WITHTIMESTAMP": (PLACE | st.just("sys_time()")).map("WITHTIMESTAMP {}".format),
        "TIMESTAMPUNIT": st.sampled_from(["SECONDS", "days"]).map("TIMESTAMPUNIT={}".format),
        "WITHFORMAT": st.sampled_from(["WITHFORMAT JSON", "WITH FORMAT avro", "withformat=text"]),
        "STOREAS": st.sampled_from(["STOREAS QUEUE", "storeas RingBuffer(a=b, c='d e')", "STOREAS ttl"]),
        "BATCH": NUMBER.map("BATCH={}".format),
        "TTL": NUMBER.map("TTL = {}".format),
        "LIMIT": NUMBER.map("LIMIT {}".format),
        "SUFFIX": st.sampled_from(["WITHINDEXSUFFIX -{YYYY.MM.DD}", "WITHINDEXSUFFIX='x {HH}'", "WITHINDEXSUFFIX=v1"]),
        "PROPERTIES": PAIRS.map("PROPERTIES({})".format),
        "TEXTS": st.tuples(TEXT, TEXT, TEXT).map("WITHDOCTYPE={0[0]} WITHREGEX={0[1]} WITHCONVERTER={0[2]}".format),
        "FLAGS": st.sampled_from(["AUTOCREATE", "autoevolve WITHUNWRAP", "WITHSTRUCTURE"]),
    },
)  # fmt: skip


# Made once: Hypothesis validates every strategy object anew.
MODE = st.sampled_from(["INSERT", "UPSERT", "insert", None])
FIELDS = st.lists(FIELD, min_size=1, max_size=4, unique=True).map(", ".join)
CLAUSES_IN_ANY_ORDER = CLAUSES.map(lambda given: list(given.values())).flatmap(st.permutations)
BLANK = st.sampled_from([" ", "\n", " -- c;'\n", "\t"])
STATEMENTS = st.integers(1, 2)
END = st.sampled_from(["", ";", " ; "])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Texts of one or more statements; most are accepted, some name a thing twice."""
    statements = []
    for _ in range(draw(STATEMENTS)):
        mode = draw(MODE)
        fields = draw(FIELDS)
        into = f"{mode} INTO {draw(TARGET)} " if mode else ""
        clauses = draw(CLAUSES_IN_ANY_ORDER)
        blank = draw(BLANK)
        statements.append(f"{into}SELECT {fields} FROM {draw(TOPIC)} {' '.join(clauses)}".replace(" ", blank, 3))
    return " ;\n".join(statements) + draw(END)


def accepted(text: str) -> tuple[Statement, ...] | None:
    """The statements of a text, None when it is refused, in which case the error must point at the text."""
    try:
        return parse(text)
    except KcqlError as error:
        refused = error
    lines = re.split(r"\r\n|\r|\n", text)
    assert lines[refused.line - 1][refused.column - 1 :].startswith(re.split(r"[\r\n]", refused.offending)[0])
    assert str(refused).startswith(f"KCQL: line {refused.line}, column {refused.column}: ")
    return None


NEUTRAL = {"_VALUE", "_KEY", "_", "KEY", "WITH", "FORMAT", "WITHFORMAT"}
"""Words that differ between two spellings of one clause, so that neither has a meaning alone."""


def significant(text: str) -> Counter[str]:
    """The words and signs of a text that carry meaning, found without the parser: comments, quotes, brackets,
    commas, dots and equals signs aside."""
    without_comments = re.sub(
        r"`[^`]*`|'[^']*'|(?<!\S)--[^\r\n]*", lambda m: "" if m[0].startswith("--") else m[0], text
    )
    words = re.findall(r"\w+|[^\w\s`',.;()=]", without_comments.upper())
    numbered = [str(int(word)) if word.isdecimal() and word.isascii() else word for word in words]
    spelled = ["RING_BUFFER" if word == "RINGBUFFER" else word for word in numbered]
    return Counter(word for word in spelled if word not in NEUTRAL)


def check(text: str) -> None:
    statements = accepted(text)
    if statements is not None:
        again = render(statements)
        assert parse(again) == statements
        assert significant(again) == significant(text)


@given(texts())
@settings(max_examples=150)
def test_written_back_it_says_the_same_and_all_of_it(text: str) -> None:
    check(text)


CHANGES = st.integers(1, 3)
CHANGE = st.sampled_from(["insert", "replace", "remove"])


@given(texts(), st.data())
@settings(max_examples=250)
def test_a_changed_text_is_refused_or_says_all_that_it_holds(text: str, data: st.DataObject) -> None:
    pieces = re.findall(r"\w+|\s+|.", text)
    for _ in range(data.draw(CHANGES)):
        at = data.draw(st.integers(0, len(pieces) - 1))
        other = data.draw(st.sampled_from([*pieces, "garbage", "'", "`", "(", ")", "--", ";", ",", "=", "{", "$", "."]))
        change = data.draw(CHANGE)
        pieces[at : at + (change != "insert")] = [] if change == "remove" and len(pieces) > 1 else [other]
    check("".join(pieces))


TOKENS = [
    "SELECT",
    "FROM",
    "INSERT",
    "INTO",
    "AS",
    "PK",
    "TTL",
    "=",
    "(",
    ")",
    ",",
    ";",
    "*",
    "`",
    "'",
    ".",
    "--",
    "\n",
]


@given(
    st.lists(st.sampled_from([*TOKENS, "a", "b", "5", "WITHTAG", "{", "}"]), max_size=14).map(" ".join)
    | st.text(max_size=60)
)
@settings(max_examples=300)
def test_any_text_is_refused_or_says_all_that_it_holds(text: str) -> None:
    check(text)


NAMES = st.sampled_from(["a", "b", "c", "d", "b_1"])
VALUES = st.recursive(
    st.none() | st.integers(0, 9),
    lambda inner: st.dictionaries(NAMES, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=12,
)
RECORDS = st.dictionaries(NAMES, VALUES, max_size=5)
SELECTED = st.lists(
    st.tuples(st.lists(NAMES, min_size=0, max_size=3), st.none() | NAMES).map(
        lambda entry: (tuple(entry[0]), entry[1] if entry[0] else None)
    ),
    min_size=1,
    max_size=4,
)
IGNORED = st.lists(st.lists(NAMES, min_size=1, max_size=2).map(tuple), max_size=2, unique=True)
ABSENT = object()


def naive_row(
    fields: list[tuple[tuple[str, ...], bool, str | None]], ignored: list[tuple[str, ...]], value: Any
) -> Any:
    """The table of the specification as plain code: slow, and for one record at a time."""

    def without(node: Any, prefix: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [without(item, prefix) for item in node]
        if isinstance(node, dict):
            return {k: without(v, (*prefix, k)) for k, v in node.items() if (*prefix, k) not in ignored}
        return node

    def at(path: tuple[str, ...]) -> Any:
        if any(path[: len(gone)] == gone for gone in ignored):
            return ABSENT
        node = without(value, ())
        for name in path:
            if node is None or node is ABSENT:
                break
            if not isinstance(node, dict):
                raise LookupError(path)
            node = node.get(name, ABSENT)
        return node

    aliases = [alias for _, _, alias in fields if alias]
    named = {path for path, wildcard, _ in fields if not wildcard}
    found: list[tuple[str, str | None, Any]] = []
    for path, wildcard, alias in fields:
        if not wildcard:
            found.append((path[-1], alias, at(path)))
            continue
        node = at(path)
        if not isinstance(node, dict) and node is not ABSENT and node is not None:
            raise LookupError(path)
        below = node if isinstance(node, dict) else {}
        found += [(name, None, field) for name, field in below.items() if (*path, name) not in named]
    row: dict[str, Any] = {}
    taken = set(aliases)
    for name, alias, field in found:
        candidates = [name, *(f"{name}_{i}" for i in range(1, 99))]
        key = alias or next(candidate for candidate in candidates if candidate not in taken)
        taken.add(key)
        if field is not ABSENT:
            row[key] = field
    return list(row.items())


def avro_schema(value: Any, name: str) -> Any:
    """A schema that a JSON value could have been written with."""
    if isinstance(value, dict):
        fields = [{"name": k, "type": ["null", avro_schema(v, f"{name}_{k}")]} for k, v in value.items()]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(value, list):
        return {"type": "array", "items": avro_schema(value[0], f"{name}_i") if value else "int"}
    return "int"


@given(RECORDS, SELECTED, IGNORED)
@settings(max_examples=200)
def test_rows_are_those_of_the_table(value: Any, selected: Any, ignored: list[tuple[str, ...]]) -> None:
    fields = [(path, alias is None and len(path) < 2, alias) for path, alias in selected]
    written = [
        ".".join([*path, "*"] if wildcard else path) + (f" AS {alias}" if alias else "")
        for path, wildcard, alias in fields
    ]
    clause = f" IGNORE {', '.join('.'.join(path) for path in ignored)}" if ignored else ""
    statements = accepted(f"SELECT {', '.join(written)} FROM s{clause}")
    if statements is None:
        return
    try:
        expected = naive_row(fields, ignored, value)
    except LookupError:
        expected = None
    for schema in (None, avro_schema(value, "r")):
        try:
            row = list(compile_projection(statements[0], schema=schema).row(Record(value=value)).items())
        except ProjectionError as error:
            refused_by_schema = schema is not None and (
                "no such field" in error.reason or "leads through" in error.reason
            )
            assert expected is None or refused_by_schema
            continue
        if schema is None:
            assert row == expected
        else:
            assert expected is None or dict(expected).items() <= dict(row).items()


@given(RECORDS, st.lists(NAMES, min_size=1, max_size=3), st.lists(NAMES, min_size=1, max_size=2))
def test_ids_are_values_and_never_names(value: Any, first: list[str], second: list[str]) -> None:
    assume(first != second)
    (statement,) = parse(f"UPSERT INTO t SELECT * FROM s PK {'.'.join(first)}, {'.'.join(second)}")
    projection = compile_projection(statement)
    found = []
    for path in (first, second):
        node: Any = value
        for name in path:
            node = node.get(name) if isinstance(node, dict) else None
        found.append(node)
    if all(isinstance(part, int) for part in found):
        assert projection.pk(Record(value=value)) == tuple(found)
        assert projection.id(Record(value=value)) == f"{found[0]}-{found[1]}"
    else:
        with pytest.raises(ProjectionError) as caught:
            projection.id(Record(value=value))
        assert caught.value.path in (".".join(first), ".".join(second))


@given(
    st.lists(st.sampled_from(["'a`'", "`a'`", "`.`", "'.`'", "`b.c'.`", "a", "'..'"]), min_size=1, max_size=8).map(
        ".".join
    )
)
def test_names_with_dots_and_both_quotes_survive_rendering(name: str) -> None:
    text = f"INSERT INTO t SELECT a AS {name}, {name} FROM s PK {name}"
    statements = accepted(text)
    if statements is not None:
        assert parse(render(statements)) == statements


def test_a_name_of_many_dots_and_both_quotes_is_rendered_in_linear_time() -> None:
    statements = parse(f"SELECT a AS '{'.' * 2_000}`'.{'`b`.' * 1_000}`'` FROM t")
    assert parse(render(statements))[0].fields == statements[0].fields


def test_comments_behind_a_flag_take_linear_time() -> None:
    with pytest.raises(KcqlError):
        parse("SELECT * FROM t PK AUTOCREATE " + "-- " * 5_000 + "\n;x")


def test_the_length_of_statements_is_bounded() -> None:
    with pytest.raises(KcqlError, match="at most 65536"):
        parse("SELECT * FROM " + "a" * 70_000)
