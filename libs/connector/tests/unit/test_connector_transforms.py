"""Transforms: their configuration, and what the comparison with a real worker cannot see."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.config.definitions import Definition, common_keys
from isotherm.connector.config.files import from_mapping
from isotherm.connector.config.validation import InvalidConfigError, validate
from isotherm.connector.transforms.catalog import PACKAGE
from isotherm.connector.transforms.chain import Chain, read_chain
from isotherm.connector.transforms.date_format import DateFormat
from isotherm.connector.transforms.message import Message, TransformError
from isotherm.connector.transforms.numbers import text_of_double
from isotherm.connector.transforms.schemas import resolved
from isotherm.connector.transforms.structure import field_path

PREDICATES = f"{PACKAGE}predicates."
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "n", "type": "long"},
        {"name": "note", "type": ["string", "null"], "default": "none"},
    ],
    "isotherm.identity": "device, at",
    "isotherm.event_time": "at",
    "isotherm.revision": "n",
}
VALUE = {"device": "d", "at": 1_769_860_800_123, "n": 5, "note": "x"}


def config(kind: str, name: str = "a", **options: str) -> dict[str, str]:
    """The configuration of one transform; `_` in an option's name stands for a dot."""
    given = {f"transforms.{name}.{key.replace('_', '.')}": value for key, value in options.items()}
    return {"transforms": name, f"transforms.{name}.type": f"{PACKAGE}{kind}", **given}


def chain(given: dict[str, str]) -> Chain:
    found, problems = read_chain(given)
    assert problems == []
    assert found is not None
    return found


def message(value: Any = VALUE, schema: Any = SCHEMA, **parts: Any) -> Message:
    said: dict[str, Any] = {"topic": "t", "key": None, "key_schema": None, "headers": ()}
    said |= {"partition": 0, "offset": 3, "timestamp_ms": 1_769_860_800_123}
    return Message(value=value, value_schema=schema, **{**said, **parts})


@pytest.mark.parametrize(
    ("given", "key", "told"),
    [
        ({"transforms": "a"}, "transforms.a.type", "missing; expected one of Cast, DropHeaders"),
        (config("MaskFild$Value", fields="x"), "transforms.a.type", "is not supported; expected one of Cast"),
        (config("MaskFild$Value", fields="x"), "transforms.a.type", "did you mean MaskField?"),
        (config("MaskField", fields="x"), "transforms.a.type", f"expected {PACKAGE}MaskField$Key or"),
        (config("Filter$Value"), "transforms.a.type", f"expected {PACKAGE}Filter"),
        ({"transforms": "a", "transforms.a.type": "com.acme.Mask"}, "transforms.a.type", "is not supported"),
        (config("MaskField$Value"), "transforms.a.fields", "missing"),
        (config("MaskField$Value", fields=" "), "transforms.a.fields", "is empty; expected a list"),
        (config("MaskField$Value", fields="x", field="x"), "transforms.a.field", "unknown; its options are fields"),
        (config("MaskField$Value", fields="x", field="x"), "transforms.a.field", "did you mean fields?"),
        (config("Filter") | {"transforms.b.type": "x"}, "transforms.b.type", "transforms does not list it (a)"),
        (config("Filter") | {"transforms": "a,a"}, "transforms", "'a' is listed twice"),
        (config("Filter", predicate="p"), "transforms.a.predicate", "predicates lists none"),
        (config("Filter", negate="true"), "transforms.a.negate", "has no effect without transforms.a.predicate"),
        (config("Filter", negate="no", predicate="p"), "transforms.a.negate", "expected true or false"),
        ({"predicates": "p", "predicates.p.type": "x"}, "predicates.p.type", "expected one of HasHeaderKey"),
        (
            {"predicates": "p", "predicates.p.type": f"{PREDICATES}TopicNameMatches", "predicates.p.pattern": "("},
            "predicates.p.pattern",
            "is no regular expression",
        ),
        (config("Cast$Value", spec="a:int"), "transforms.a", "'int' is not allowed; expected a type of int8, int16"),
        (config("Cast$Value", spec="a:int8,string"), "transforms.a", "stands alone"),
        (config("Cast$Value", spec="a:int8:x"), "transforms.a", "expected pairs such as field:int32"),
        (config("ReplaceField$Value", renames="a"), "transforms.a", "expected pairs such as old:new"),
        (config("ReplaceField$Value", blacklist="a"), "transforms.a.blacklist", "unknown"),
        (config("InsertField$Value"), "transforms.a", "none of topic.field"),
        (config("InsertField$Value", static_field="s"), "transforms.a", "static.field needs static.value"),
        (config("HeaderFrom$Key", fields="a", headers="b", operation="cut"), "transforms.a.operation", "move, copy"),
        (config("HeaderFrom$Key", fields="a", headers="b,c", operation="copy"), "transforms.a", "same number"),
        (config("TimestampConverter$Value", target_type="Text"), "transforms.a.target.type", "one of string, unix"),
        (config("TimestampConverter$Value", target_type="string"), "transforms.a", "needs a format"),
        (config("TimestampConverter$Value", target_type="string", format="Q"), "transforms.a", "the letter 'Q'"),
        (config("TimestampRouter", timestamp_format="yyyy'"), "transforms.a", "unclosed quote"),
        (config("RegexRouter", regex="a", replacement="$1"), "transforms.a", "names the group 1; there are 0"),
        (config("RegexRouter", regex="a", replacement="$x"), "transforms.a", "without a group"),
        (config("RegexRouter", regex="a", replacement="${x}"), "transforms.a", "which the expression lacks"),
        (config("SetSchemaMetadata$Key"), "transforms.a", "neither schema.name nor schema.version"),
        (config("SetSchemaMetadata$Key", schema_version="x"), "transforms.a.schema.version", "a whole number"),
        (config("ExtractField$Key", field="`a", field_syntax_version="V2"), "transforms.a", "without its partner"),
        (config("ExtractField$Key", field="a", field_syntax_version="V3"), "transforms.a.field.syntax.version", "V2"),
        (config("Flatten$Value", replace_null_with_default="x"), "transforms.a.replace.null.with.default", "unknown"),
        (
            config("MaskField$Value", fields="a", replace_null_with_default="x"),
            "transforms.a.replace.null.with.default",
            "expected true or false",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_key(given: dict[str, str], key: str, told: str) -> None:
    found, problems = read_chain(given)
    assert found is None
    assert any(one == key and told in why for one, why in problems), problems


def test_no_transforms_are_no_chain() -> None:
    assert read_chain({"transforms": " ", "predicates": "", "topics": "t"}) == (None, [])


def test_values_with_references_are_not_checked() -> None:
    assert read_chain(config("MaskField$Value", fields="${env:FIELDS}")) == (None, [])


def checked(kind: str, given: dict[str, str]) -> None:
    definition = Definition("isotherm.X", kind, common_keys("isotherm.X"))
    validate(definition, from_mapping({"name": "x", "connector.class": "isotherm.X", **given}))


def test_a_sink_takes_them_and_a_source_refuses_them() -> None:
    given = config("Filter")
    checked("sink", given)
    with pytest.raises(InvalidConfigError) as caught:
        checked("source", given)
    assert {problem.key for problem in caught.value.found} == set(given)
    with pytest.raises(InvalidConfigError, match=r"transforms\.a\.type"):
        checked("sink", {"transforms": "a"})


def test_short_names_and_every_class_are_known() -> None:
    assert chain({"transforms": "a", "transforms.a.type": "Filter"}).apply(message()) is None


def test_predicates_choose_records() -> None:
    given = {
        "transforms": "a,b,c",
        "transforms.a.type": f"{PACKAGE}Filter",
        "transforms.a.predicate": "gone",
        "transforms.b.type": f"{PACKAGE}InsertHeader",
        "transforms.b.header": "seen",
        "transforms.b.value.literal": "yes",
        "transforms.b.predicate": "known",
        "transforms.b.negate": "TRUE",
        "transforms.c.type": f"{PACKAGE}RegexRouter",
        "transforms.c.regex": "(.*)",
        "transforms.c.replacement": "$1-x",
        "transforms.c.predicate": "named",
        "predicates": "gone,known,named",
        "predicates.gone.type": f"{PREDICATES}RecordIsTombstone",
        "predicates.known.type": f"{PREDICATES}HasHeaderKey",
        "predicates.known.name": "h",
        "predicates.named.type": f"{PREDICATES}TopicNameMatches",
        "predicates.named.pattern": "t.",
    }
    apply = chain(given).apply
    assert apply(message(None, None)) is None
    plain = apply(message())
    assert plain is not None
    assert (plain.headers, plain.topic) == ((("seen", "yes"),), "t")
    other = apply(message(headers=(("h", b"1"),), topic="t1"))
    assert other is not None
    assert (other.headers, other.topic) == ((("h", b"1"),), "t1-x")


def declared(kind: str, **options: str) -> dict[str, Any]:
    made = chain(config(kind, **options)).apply(message())
    assert made is not None
    return {key.removeprefix("isotherm."): found for key, found in made.value_schema.items() if "isotherm" in key}


ALL = {"identity": "device,at", "event_time": "at", "revision": "n"}


@pytest.mark.parametrize(
    ("kind", "options", "left"),
    [
        ("InsertField$Value", {"topic_field": "topic"}, ALL),
        ("ReplaceField$Value", {"renames": "at:t,n:r"}, {"identity": "device,t", "event_time": "t", "revision": "r"}),
        ("ReplaceField$Value", {"exclude": "device"}, {"event_time": "at", "revision": "n"}),
        # The field of the name is another one after it: rows of different devices must not become one.
        ("ReplaceField$Value", {"exclude": "device", "renames": "note:device"}, {"event_time": "at", "revision": "n"}),
        ("ReplaceField$Value", {"renames": "device:note,note:device"}, {**ALL, "identity": "note,at"}),
        ("ReplaceField$Value", {"renames": "absent:device"}, {"event_time": "at", "revision": "n"}),
        ("MaskField$Value", {"fields": "device"}, {"event_time": "at", "revision": "n"}),
        ("MaskField$Value", {"fields": "note"}, ALL),
        ("Cast$Value", {"spec": "n:int8"}, {"identity": "device,at", "event_time": "at"}),
        ("Cast$Value", {"spec": "n:int64,device:string"}, ALL),
        ("TimestampConverter$Value", {"field": "at", "target_type": "Date"}, {"revision": "n"}),
        ("Flatten$Value", {}, ALL),
    ],
)  # fmt: skip
def test_what_the_schema_declares_follows_the_fields(kind: str, options: dict[str, str], left: dict[str, str]) -> None:
    """Masked devices must not become one device: without an identity, rows get ids of topic, partition and offset."""
    assert declared(kind, **options) == left


DATE_OF_DAYS = {"type": "int", "logicalType": "date"}


@pytest.mark.parametrize(
    ("avro", "value", "target", "stays"),
    [
        ("int", 1, "int64", True),
        ("boolean", True, "int8", True),
        ("float", 1.5, "float64", True),
        ("string", "1", "string", True),
        (DATE_OF_DAYS, 1, "int64", True),
        ("float", 1.5, "int64", False),
        ("double", 1.5, "int64", False),
        ("double", 1.5, "float32", False),
        ("string", "1", "int64", False),
        ("string", "1.0", "float64", False),
        ("long", 2**40, "int32", False),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, Decimal("1.25"), "int64", False),
    ],
)
def test_an_identity_ends_with_a_cast_that_may_make_two_values_one(
    avro: Any, value: Any, target: str, stays: bool
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": avro}], "isotherm.identity": "id"}
    made = chain(config("Cast$Value", spec=f"id:{target}")).apply(message({"id": value}, schema))
    assert made is not None
    assert ("isotherm.identity" in made.value_schema) is stays


def test_a_date_may_be_a_number_of_days() -> None:
    """As the decoder of JSON Schema gives it."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "d", "type": DATE_OF_DAYS}]}
    for kind, options, expected in (
        ("Cast$Value", {"spec": "d:int32"}, 20_454),
        ("Cast$Value", {"spec": "d:string"}, "2026-01-01"),
        ("TimestampConverter$Value", {"field": "d", "target_type": "string", "format": "yyyy-MM-dd"}, "2026-01-01"),
        ("TimestampConverter$Value", {"field": "d", "target_type": "unix"}, 20_454 * 86_400_000),
    ):
        for value in (20_454, date(2026, 1, 1)):
            made = chain(config(kind, **options)).apply(message({"d": value}, schema))
            assert made is not None
            assert made.value == {"d": expected}


@pytest.mark.parametrize("operation", ["copy", "move"])
def test_a_header_gets_the_default_of_a_field_that_is_null(operation: str) -> None:
    for replaced, expected in (("true", "none"), ("false", None)):
        given = config("HeaderFrom$Value", fields="note", headers="h", operation=operation)
        made = chain({**given, "transforms.a.replace.null.with.default": replaced}).apply(
            message({**VALUE, "note": None})
        )
        assert made is not None
        assert made.headers == (("h", expected),)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("east", "east"),
        ("true", True),
        ("null", None),
        ("7", 7),
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775808", 9.223372036854775807e18),
        ("1.0", 1),
        ("2.5", 2.5),
        ("1e300", 1e300),
        ("12.3.4", "12.3.4"),
        ("-", "-"),
        ('"7"', '"7"'),
        ("[1, 2]", [1, 2]),
        ("[1", "[1"),
        ('{"a": 1}', {"a": 1}),
        ("2026-01-31", date(2026, 1, 31)),
        ("12:30:00.500Z", time(12, 30, 0, 500_000)),
        ("2026-01-31T12:30:00.500Z", datetime(2026, 1, 31, 12, 30, 0, 500_000, UTC)),
        ("1e400", Decimal("1e400")),
    ],
)
def test_the_literal_of_a_header_says_its_type(literal: str, value: Any) -> None:
    """As a real worker infers it; a quoted text keeps its quotes."""
    made = chain(config("InsertHeader", header="h", value_literal=literal)).apply(message())
    assert made is not None
    ((_, found),) = made.headers
    assert (type(found), found) == (type(value), value)


def test_null_in_an_optional_field_with_a_default_counts_as_the_default_unless_told_otherwise() -> None:
    value = {**VALUE, "note": None}
    for told, note in (("true", "none"), ("false", None)):
        given = config("ReplaceField$Value", include="note", replace_null_with_default=told)
        made = chain(given).apply(message(value))
        assert made is not None
        assert made.value == {"note": note}


def test_a_chain_says_whether_it_needs_the_key_and_changes_topics() -> None:
    assert chain(config("MaskField$Key", fields="a"))[1:] == (True, False)
    assert chain(config("ValueToKey", fields="a"))[1:] == (True, False)
    assert chain(config("MaskField$Value", fields="a"))[1:] == (False, False)
    assert chain(config("TimestampRouter"))[1:] == (False, True)


def test_schemas_are_compiled_once_and_results_are_the_same_object() -> None:
    apply = chain(config("InsertField$Value", topic_field="topic")).apply
    one, other = apply(message()), apply(message())
    assert one is not None
    assert other is not None
    assert one.value_schema is other.value_schema


def test_references_to_named_types_are_replaced() -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
    fields = [{"name": "a", "type": inner}, {"name": "b", "type": ["null", "Inner"]}]
    outer = {"type": "record", "name": "o.Outer", "fields": fields}
    assert resolved(outer)["fields"][1]["type"] == ["null", inner]
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "left", "type": ["null", "Tree"]}]}
    assert resolved(tree) == tree


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.b", ("a", "b")),
        ("`a.b`.c", ("a.b", "c")),
        ("a.`b`", ("a", "b")),
        ("`a`b`.c", ("a`b", "c")),
        (r"`a\`.b`", ("a`.b",)),
        ("a.", ("a", "")),
    ],
)
def test_paths(text: str, names: tuple[str, ...]) -> None:
    assert field_path(text, is_nested=True) == names
    assert field_path(text, is_nested=False) == (text,)


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)))
def test_what_a_format_writes_it_reads(moment: datetime) -> None:
    ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    for pattern in ("yyyy-MM-dd'T'HH:mm:ss.SSSX", "yyyyMMddHHmmssSSS", "EEEE, d MMMM yyyy h:mm:ss.SSS a z"):
        date_format = DateFormat(pattern)
        assert date_format.parse(date_format.format(ms)) == ms


def test_a_text_of_another_format_is_bad() -> None:
    with pytest.raises(TransformError, match="does not have the format"):
        DateFormat("yyyy-MM-dd").parse("x")
    with pytest.raises(TransformError, match="outside the years"):
        DateFormat("yyyy").parse("99999")
    with pytest.raises(TransformError, match="outside the years"):
        DateFormat("yyyy").format(10**18)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0.0"), (-0.0, "-0.0"), (1e7, "1.0E7"), (1234567.5, "1234567.5"), (0.001, "0.001"), (0.00099, "9.9E-4"),
     (1e-5, "1.0E-5"), (123456789.125, "1.23456789125E8"), (100.0, "100.0"), (float("inf"), "Infinity")],
)  # fmt: skip
def test_doubles_are_written_as_java_writes_them(number: float, text: str) -> None:
    assert text_of_double(number) == text


def test_a_renamed_field_replaces_no_other() -> None:
    apply = chain(config("ReplaceField$Value", renames="a:b")).apply
    with pytest.raises(TransformError, match="two fields one name"):
        apply(message({"a": 1, "b": 2}, None))


@pytest.mark.parametrize(
    ("regex", "replacement", "topic", "routed"),
    [
        ("(.*)-raw", "$1", "temp-raw", "temp"),
        ("temp", "x", "temp-raw", "temp-raw"),
        # Java's replaceFirst looks for the first match, which may be shorter than the whole name.
        ("(.*?)(-raw)?", "$1", "temp-raw", "temp-raw"),
        ("a|ab", "X", "ab", "Xb"),
    ],
)
def test_regex_router_replaces_the_first_match(regex: str, replacement: str, topic: str, routed: str) -> None:
    found = chain(config("RegexRouter", regex=regex, replacement=replacement)).apply(message(topic=topic))
    assert found is not None
    assert found.topic == routed
