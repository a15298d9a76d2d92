"""Transforms as a configuration has them, and the records that a real worker and ours apply them to."""

from __future__ import annotations

from typing import Any, NamedTuple

PACKAGE = "org.apache.kafka.connect.transforms."
LOGICAL = "org.apache.kafka.connect.data."


class Case(NamedTuple):
    """A chain of transforms: for each the class and its options."""

    name: str
    chain: tuple[tuple[str, dict[str, str]], ...]


def case(name: str, *steps: tuple[str, dict[str, str]]) -> Case:
    return Case(name, steps)


def one(name: str, kind: str, **options: str) -> Case:
    """A chain of one transform; `_` in an option's name stands for a dot."""
    return Case(name, ((kind, {key.replace("_", "."): value for key, value in options.items()}),))


def _field(field: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"field": field, "type": kind, "optional": False, **more}


INNER = _field(
    "inner",
    "struct",
    optional=True,
    fields=[
        _field("a", "int32"),
        _field("b", "string", optional=True),
        _field("deep", "struct", optional=True, fields=[_field("c", "int64"), _field("d.e", "boolean")]),
    ],
)
SCHEMA: dict[str, Any] = {
    "type": "struct",
    "optional": False,
    "name": "house.Reading",
    "fields": [
        _field("i8", "int8"),
        _field("i16", "int16"),
        _field("i32", "int32"),
        _field("i64", "int64"),
        _field("f32", "float"),
        _field("f64", "double"),
        _field("flag", "boolean"),
        _field("text", "string"),
        _field("number", "string", optional=True),
        _field("nothing", "string", optional=True),
        _field("date", "int32", name=f"{LOGICAL}Date", version=1),
        _field("time", "int32", name=f"{LOGICAL}Time", version=1),
        _field("ts", "int64", name=f"{LOGICAL}Timestamp", version=1),
        _field("money", "bytes", name=f"{LOGICAL}Decimal", version=1, parameters={"scale": "2"}),
        _field("list", "array", items={"type": "int32", "optional": False}),
        INNER,
    ],
}
FIELDS = [field["field"] for field in SCHEMA["fields"]]
FULL: dict[str, Any] = {
    "i8": -3,
    "i16": 300,
    "i32": 70_000,
    "i64": 1_769_860_800_123,
    "f32": 1.1,
    "f64": 21.5,
    "flag": True,
    "text": "2026-01-31 12:00:00",
    "number": "12.7",
    "nothing": None,
    "date": 20_484,
    "time": 43_200_500,
    "ts": 1_769_860_800_123,
    "money": "AJY=",
    "list": [1, 2],
    "inner": {"a": 1, "b": "x", "deep": {"c": 5, "d.e": False}},
}
STRUCTS: tuple[dict[str, Any], ...] = (
    FULL,
    {
        **FULL,
        "i64": -1,
        "f32": 3e38,
        "f64": -1e10,
        "text": "true",
        "number": None,
        "inner": None,
        "ts": -1,
        "list": [],
        "flag": False,
    },
    {
        **FULL,
        "f64": 0.0001,
        "text": "",
        "number": "7",
        "ts": 1_769_817_600_000,
        "inner": {"a": 2, "b": None, "deep": None},
    },
)
KEY_SCHEMA = {"type": "struct", "optional": False, "fields": [_field("id", "string"), _field("n", "int32")]}
KEY = {"id": "k", "n": 7}
HEADERS: list[tuple[str, str | bytes | None]] = [("origin", b"north"), ("origin", b"south"), ("other", b"x y")]

MAPS: tuple[dict[str, Any], ...] = (
    {
        "n": 5,
        "big": 5_000_000_000,
        "f": 1.5,
        "huge": 1e10,
        "tiny": 0.00001,
        "flag": True,
        "text": "true",
        "number": "12",
        "nothing": None,
        "list": [1, {"a": 2}],
        "ts": 1_769_860_800_123,
        "when": "2026-01-31 12:00:00",
        "inner": {"a": 1, "b": {"c": None, "d": "x"}, "empty": {}},
    },
    {"n": -300, "text": "x", "number": "-7", "ts": -1, "when": "2026-13-01 25:00:00 rest"},
    {"n": 0, "f": -0.5, "text": "", "number": "1.5", "ts": 0, "when": "no time"},
)

EVERY_TYPE = ["int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string"]
FORMATS = (
    "yyyy-MM-dd HH:mm:ss.SSS",
    "dd.MM.yy h:mm a",
    "EEE, d MMM yyyy HH:mm:ss Z",
    "EEEE MMMM d yyyy 'at' K''k S z X",
    "yyyyMMddHHmmss",
)

EITHER = (
    one("router", "RegexRouter", regex="(t)-(.*)", replacement="to-$2-\\$1"),
    one("router-partly", "RegexRouter", regex="t", replacement="never"),
    one("router-group", "RegexRouter", regex="(t)-(.*)", replacement="$12"),
    one("day", "TimestampRouter"),
    one("month", "TimestampRouter", topic_format="x-${topic}-${topic}-${timestamp}", timestamp_format="yyyy.MM"),
    one("hoist", "HoistField$Value", field="all"),
    one("hoist-key", "HoistField$Key", field="all"),
    one("drop", "DropHeaders", headers="origin,none"),
    one("insert-header", "InsertHeader", header="origin", value_literal="east"),
    *(
        one(f"insert-header-{number}", "InsertHeader", header="origin", value_literal=literal)
        for number, literal in enumerate(("7", "-1.0", "2.5", "1e300", "true", "null", '"7"', "12.3.4", "0x1", "+5"))
    ),
    one("header-default", "HeaderFrom$Value", fields="text", headers="a", operation="copy"),
    one("filter", "Filter"),
    one("flatten-key", "Flatten$Key", delimiter="_"),
    one("key-field", "ExtractField$Key", field="id"),
    one("mask-key", "MaskField$Key", fields="id"),
    one("replace-key", "ReplaceField$Key", renames="id:name"),
    one("cast-key", "Cast$Key", spec="n:string"),
    one("key-header", "HeaderFrom$Key", fields="id,n", headers="a,b", operation="copy"),
    one("no-field", "ExtractField$Value", field="absent"),
    one("insert", "InsertField$Value", topic_field="t", partition_field="p!", offset_field="o", timestamp_field="at"),
    one("insert-required", "InsertField$Value", static_field="s!", static_value="v", timestamp_field="at!"),
    one("insert-key", "InsertField$Key", topic_field="t"),
)

WITH_SCHEMA = (
    *EITHER,
    one("mask", "MaskField$Value", fields="i8,i16,i32,i64,f32,f64,flag,text,number,nothing,date,time,ts,money,list"),
    one("mask-inner", "MaskField$Value", fields="inner"),
    one("mask-text", "MaskField$Value", fields="text,number", replacement="***"),
    one("mask-number", "MaskField$Value", fields="i8,i16,i32,i64,f32,f64", replacement="70000.9"),
    one("mask-no-number", "MaskField$Value", fields="i8", replacement="x"),
    one("mask-flag", "MaskField$Value", fields="flag", replacement="1"),
    one("mask-ts", "MaskField$Value", fields="ts", replacement="1"),
    one("keep", "ReplaceField$Value", include="text,i8,inner", exclude="i8"),
    one("rename", "ReplaceField$Value", exclude="inner,list", renames="text:word,i8:small"),
    one("rename-twice", "ReplaceField$Value", renames="text:number"),
    one("insert-twice", "InsertField$Value", static_field="text", static_value="v"),
    one("flatten", "Flatten$Value"),
    one("flatten-twice", "Flatten$Value", delimiter=""),
    one("extract", "ExtractField$Value", field="inner"),
    one("extract-deep", "ExtractField$Value", field="inner.deep.`d.e`", field_syntax_version="V2"),
    one("extract-ts", "ExtractField$Value", field="ts"),
    one("value-to-key", "ValueToKey", fields="text,ts,inner"),
    one("value-to-no-key", "ValueToKey", fields="absent"),
    one("header", "HeaderFrom$Value", fields="text,i64", headers="a,b", operation="move"),
    one("no-header", "HeaderFrom$Value", fields="absent", headers="a", operation="move"),
    one("metadata", "SetSchemaMetadata$Value", schema_name="other.Name", schema_version="3"),
    *(
        one(f"cast-{target}", "Cast$Value", spec=",".join(f"{name}:{target}" for name in names))
        for target in EVERY_TYPE
        for names in [["i8", "i16", "i32", "i64", "f32", "f64", "flag", "date", "time", "ts", "nothing"]]
    ),
    *(one(f"cast-text-{target}", "Cast$Value", spec=f"text:{target}") for target in EVERY_TYPE),
    *(one(f"cast-number-{target}", "Cast$Value", spec=f"number:{target}") for target in EVERY_TYPE),
    one("cast-money", "Cast$Value", spec="money:string"),
    one("cast-money-int", "Cast$Value", spec="money:int32"),
    one("cast-list", "Cast$Value", spec="list:string"),
    case("cast-whole", ("ExtractField$Value", {"field": "i64"}), ("Cast$Value", {"spec": "int8"})),
    *(
        one(f"time-{field}-{target}", "TimestampConverter$Value", field=field, target_type=target, format=FORMATS[0])
        for field in ("ts", "i64", "date", "time")
        for target in ("string", "unix", "Date", "Time", "Timestamp")
    ),
    *(
        one(f"format-{index}", "TimestampConverter$Value", field="ts", target_type="string", format=text)
        for index, text in enumerate(FORMATS)
    ),
    one("time-text", "TimestampConverter$Value", field="text", target_type="Timestamp", format="yyyy-MM-dd HH:mm:ss"),
    one("time-int", "TimestampConverter$Value", field="i32", target_type="unix"),
    one("time-absent", "TimestampConverter$Value", field="absent", target_type="unix"),
    one("time-micros", "TimestampConverter$Value", field="ts", target_type="unix", unix_precision="microseconds"),
    case("time-whole", ("ExtractField$Value", {"field": "ts"}), ("TimestampConverter$Value", {"target.type": "Date"})),
    case(
        "chain",
        ("ReplaceField$Value", {"include": "text,ts,inner"}),
        ("Flatten$Value", {"delimiter": "_"}),
        ("InsertField$Value", {"topic.field": "topic"}),
        ("Cast$Value", {"spec": "inner_a:int64"}),
        ("ValueToKey", {"fields": "text"}),
        ("ExtractField$Key", {"field": "text"}),
    ),
)

WITHOUT_SCHEMA = (
    *EITHER,
    one("mask", "MaskField$Value", fields="n,f,flag,text,nothing,absent,list,inner"),
    one("mask-with", "MaskField$Value", fields="n,big", replacement="99.9"),
    one("mask-text", "MaskField$Value", fields="text,number", replacement="***"),
    one("mask-list", "MaskField$Value", fields="list", replacement="x"),
    one("keep", "ReplaceField$Value", include="n,text,absent"),
    one("rename", "ReplaceField$Value", exclude="list,inner", renames="n:count"),
    one("flatten", "Flatten$Value"),
    one("flatten-with", "Flatten$Value", delimiter="__"),
    one("extract", "ExtractField$Value", field="inner"),
    one("extract-deep", "ExtractField$Value", field="inner.b.d", field_syntax_version="V2"),
    one("extract-number", "ExtractField$Value", field="n"),
    one("value-to-key", "ValueToKey", fields="n,absent"),
    one("header", "HeaderFrom$Value", fields="text,n,absent", headers="a,b,c", operation="move"),
    one("metadata", "SetSchemaMetadata$Value", schema_name="other"),
    *(
        one(f"cast-{target}", "Cast$Value", spec=",".join(f"{name}:{target}" for name in names))
        for target in EVERY_TYPE
        for names in [["n", "big", "f", "huge", "tiny", "flag", "nothing", "absent"]]
    ),
    *(one(f"cast-number-{target}", "Cast$Value", spec=f"number:{target}") for target in EVERY_TYPE),
    one("cast-text", "Cast$Value", spec="text:boolean,when:string"),
    one("cast-inner", "Cast$Value", spec="inner:string"),
    one("cast-map", "Cast$Value", spec="string"),
    *(
        one(f"time-{target}", "TimestampConverter$Value", field="ts", target_type=target, format=FORMATS[0])
        for target in ("string", "unix")
    ),
    one("time-seconds", "TimestampConverter$Value", field="ts", target_type="unix", unix_precision="seconds"),
    one("time-text", "TimestampConverter$Value", field="when", target_type="unix", format="yyyy-MM-dd HH:mm:ss"),
    one("time-flag", "TimestampConverter$Value", field="flag", target_type="unix"),
    one("time-absent", "TimestampConverter$Value", field="absent", target_type="unix"),
    case(
        "chain",
        ("HoistField$Value", {"field": "all"}),
        ("Flatten$Value", {}),
        ("InsertField$Value", {"offset.field": "offset"}),
        ("HeaderFrom$Value", {"fields": "all.n", "headers": "n", "operation": "move"}),
    ),
)
