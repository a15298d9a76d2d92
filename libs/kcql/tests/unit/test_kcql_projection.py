"""From a record to its row, line by line of the specification's table."""

from collections.abc import Mapping
from typing import Any

import pytest

from isotherm.kcql import (
    Part,
    Path,
    Projection,
    ProjectionError,
    Record,
    compile_projection,
    parse,
)

VALUE: dict[str, Any] = {
    "a": 1,
    "c": 9,
    "b": {"c": 2, "d": None, "e": {"c": 5, "f": 6}},
    "n": None,
    "l": [{"n": 1, "m": 2}, None, {"n": 3, "m": 4}],
    "tags": {"room": "kitchen"},
}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Outer",
    "namespace": "x",
    "fields": [
        {"name": "a", "type": "int"},
        {"name": "c", "type": ["null", "int"]},
        {
            "name": "b",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Inner",
                    "fields": [
                        {"name": "c", "type": "int"},
                        {"name": "d", "type": ["null", {"type": "record", "name": "Empty", "fields": []}]},
                        {
                            "name": "e",
                            "type": {
                                "type": "record",
                                "name": "y.Deep",
                                "fields": [{"name": "c", "type": "int"}, {"name": "f", "type": "int"}],
                            },
                        },
                    ],
                },
            ],
        },
        {"name": "n", "type": ["null", "y.Deep"]},
        {
            "name": "l",
            "type": {
                "type": "array",
                "items": [
                    "null",
                    {
                        "type": "record",
                        "name": "Item",
                        "fields": [{"name": "n", "type": "int"}, {"name": "m", "type": "int"}],
                    },
                ],
            },
        },
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}


def compiled(text: str, schema: Mapping[str, Any] | None = None, **options: Any) -> Projection:
    (statement,) = parse(text)
    return compile_projection(statement, schema=schema, **options)


def row(
    fields: str, value: Any = VALUE, schema: Mapping[str, Any] | None = None, **parts: Any
) -> list[tuple[str, Any]]:
    select = f"SELECT {fields}" if " FROM " in fields else f"SELECT {fields} FROM s"
    return list(compiled(select, schema).row(Record(value=value, **parts)).items())


both = pytest.mark.parametrize("schema", [None, SCHEMA], ids=["json", "avro"])


class TestNames:
    @both
    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ("a", [("a", 1)]),
            ("b.c", [("c", 2)]),
            ("c, b.c, b.e.c", [("c", 9), ("c_1", 2), ("c_2", 5)]),
            ("b.e.c, c", [("c", 5), ("c_1", 9)]),
            ("a AS x, b.c AS y", [("x", 1), ("y", 2)]),
            ("c, a AS c", [("c_1", 9), ("c", 1)]),
            ("c, b.c, a AS c_1", [("c", 9), ("c_2", 2), ("c_1", 1)]),
            ("b.e", [("e", {"c": 5, "f": 6})]),
            ("l", [("l", VALUE["l"])]),
            ("tags.room", [("room", "kitchen")]),
            ("_value AS v", [("v", VALUE)]),
            ("_value", [("value", VALUE)]),
            ("b.e.*", [("c", 5), ("f", 6)]),
            ("c, b.e.*", [("c", 9), ("c_1", 5), ("f", 6)]),
            ("b.e.*, c", [("c", 5), ("f", 6), ("c_1", 9)]),
            ("tags.*, a", [("room", "kitchen"), ("a", 1)]),
            ("n.f, n.c", [("f", None), ("c", None)]),
        ],
    )
    def test_keys_in_order(self, schema: Any, fields: str, expected: list[tuple[str, Any]]) -> None:
        assert row(fields, schema=schema) == expected

    @both
    def test_everything(self, schema: Any) -> None:
        assert row("*", schema=schema) == list(VALUE.items())

    @both
    @pytest.mark.parametrize(
        ("fields", "keys"),
        [
            ("*, a AS x", ["c", "b", "n", "l", "tags", "x"]),
            ("a AS x, *", ["x", "c", "b", "n", "l", "tags"]),
            ("b, *, a", ["b", "c", "n", "l", "tags", "a"]),
            ("*, b.c", ["a", "c", "b", "n", "l", "tags", "c_1"]),
            ("b.c, *", ["c", "a", "c_1", "b", "n", "l", "tags"]),
            ("b.*, b.e AS deep", ["c", "d", "deep"]),
            ("b.*, b.e.*", ["c", "d", "e", "c_1", "f"]),
            ("b.*, *", ["c", "d", "e", "a", "c_1", "b", "n", "l", "tags"]),
        ],
    )
    def test_wildcards_among_named_fields(self, schema: Any, fields: str, keys: list[str]) -> None:
        assert [key for key, _ in row(fields, schema=schema)] == keys

    def test_parts_of_the_record(self) -> None:
        record: dict[str, Any] = {
            "key": {"k": 7},
            "headers": [("h", b"old"), ("h", b"new"), ("x.y", b"\xff"), ("m", {"a": 1})],
            "topic": "t",
            "partition": 3,
            "offset": 4,
            "timestamp_ms": 5,
        }
        old = "_.topic, _.partition, _.offset, _.timestamp, _.key.k AS again"
        new = "_key, _key.k, _header.h, _header.`x.y`, _header.m.a"
        assert row(f"{old}, {new}", **record) == [
            ("topic", "t"),
            ("partition", 3),
            ("offset", 4),
            ("timestamp", 5),
            ("again", 7),
            ("key", {"k": 7}),
            ("k", 7),
            ("h", "new"),
            ("x.y", b"\xff"),
            ("a", 1),
        ]
        assert row("_key.*, _header.h", **record) == [("k", 7), ("h", "new")]
        assert row("_header.*", headers={"a": b"1", "b": None}) == [("a", "1"), ("b", None)]
        assert row("_header.absent, a", **record) == [("a", 1)]
        assert row("_header.h", headers={"h": "text"}) == [("h", "text")]

    def test_functions_are_the_connectors(self) -> None:
        projection = compiled("SELECT now(), now() AS t, a FROM s", functions={"now": lambda record: record.offset})
        assert projection.row(Record(value=VALUE, offset=5)) == {"now": 5, "t": 5, "a": 1}
        with pytest.raises(ProjectionError, match=r'"noww\(\)".*did you mean now'):
            compiled("SELECT noww() FROM s", functions={"now": lambda record: 1}).row(Record(value=VALUE))
        with pytest.raises(ProjectionError, match="no such function"):
            compiled("SELECT now() FROM s").row(Record(value=VALUE))

    def test_a_field_whose_name_holds_a_dot_or_is_a_part(self) -> None:
        value = {"a.b": 1, "_key": 2, "*": 3}
        assert row("`a.b`, _value._key, `*`", value) == [("a.b", 1), ("_key", 2), ("*", 3)]


class TestPaths:
    @both
    def test_through_null_is_null(self, schema: Any) -> None:
        assert row("n.c, n.f", schema=schema) == [("c", None), ("f", None)]
        assert row("b.c", {**VALUE, "b": None}, schema) == [("c", None)]
        assert row("a", None) == [("a", None)]

    def test_all_fields_of_null(self) -> None:
        assert row("n.*, a", schema=SCHEMA) == [("c", None), ("f", None), ("a", 1)]
        assert row("n.*, tags.*", {**VALUE, "tags": None}, SCHEMA) == [("c", None), ("f", None)]
        assert row("n.*, a") == [("a", 1)]
        for schema in (None, SCHEMA):
            for fields in ("*", "*, a AS x"):
                with pytest.raises(ProjectionError, match="null"):
                    row(fields, None, schema)

    @both
    @pytest.mark.parametrize(("fields", "path"), [("a.x", "a.x"), ("a.*", "a.*"), ("b.c.x.y AS z", "b.c.x.y")])
    def test_through_a_scalar_is_an_error(self, schema: Any, fields: str, path: str) -> None:
        with pytest.raises(ProjectionError, match="has no fields") as caught:
            row(fields, schema=schema)
        assert caught.value.path == path

    @both
    @pytest.mark.parametrize(("fields", "path"), [("l.n", "l.n"), ("l.*", "l.*"), ("a, l.n AS z", "l.n")])
    def test_through_an_array_needs_withstructure(self, schema: Any, fields: str, path: str) -> None:
        with pytest.raises(ProjectionError, match="WITHSTRUCTURE") as caught:
            row(fields, schema=schema)
        assert caught.value.path == path

    @pytest.mark.parametrize("value", [5, "text", [1], True])
    def test_a_value_without_fields(self, value: Any) -> None:
        for fields in ("*", "a", "*, a", "a, b"):
            with pytest.raises(ProjectionError):
                row(fields, value)
        assert row("_value AS v", value) == [("v", value)]

    @pytest.mark.parametrize(
        ("fields", "path", "suggestion"),
        [
            ("tag", "tag", "tags"),
            ("b.e.ff", "b.e.ff", "b.e.f"),
            ("*, B", "B", "b"),
            ("b.d.x", "b.d.x", None),
            ("* FROM s IGNORE tagz", "tagz", "tags"),
            ("* FROM s IGNORE l.o", "l.o", None),
        ],
    )
    def test_an_unknown_field_names_the_nearest(self, fields: str, path: str, suggestion: str | None) -> None:
        with pytest.raises(ProjectionError, match="no such field") as caught:
            row(fields, schema=SCHEMA)
        assert (caught.value.path, caught.value.suggestion) == (path, suggestion)

    def test_an_unknown_field_is_left_out_of_json(self) -> None:
        assert row("a, zz, b.zz, zz.y AS y, tags.zz AS t") == [("a", 1)]
        assert row("c, zz.c, b.c") == [("c", 9), ("c_2", 2)]
        assert row("tags.zz, a", schema=SCHEMA) == [("a", 1)]

    def test_a_union_of_records_is_read_like_json(self) -> None:
        branches = [{"type": "record", "name": n, "fields": [{"name": n.lower(), "type": "int"}]} for n in "AB"]
        schema = {"type": "record", "name": "R", "fields": [{"name": "u", "type": ["null", *branches]}]}
        assert row("u.a, u.b", {"u": {"a": 1}}, schema) == [("a", 1)]
        assert row("u.*", {"u": {"b": 1}}, schema) == [("b", 1)]

    def test_schemas_as_avro_writes_them(self) -> None:
        recursive = {
            "type": "record",
            "name": "ns.Node",
            "fields": [{"name": "v", "type": {"type": "int"}}, {"name": "next", "type": ["null", "Node"]}],
        }
        assert row("next.next.v", {"v": 1, "next": {"v": 2, "next": None}}, recursive) == [("v", None)]
        with pytest.raises(ProjectionError, match="no such field"):
            row("next.next.w", {"v": 1, "next": None}, recursive)
        scalars = {
            "type": "record",
            "name": "S",
            "fields": [
                {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["X"]}},
                {"name": "f", "type": {"type": "fixed", "name": "F", "size": 1}},
                {"name": "u", "type": ["int", "string"]},
            ],
        }
        for name in "efu":
            with pytest.raises(ProjectionError, match="has no fields"):
                row(f"{name}.x", {"e": "X", "f": b"1", "u": 1}, scalars)


class TestIgnore:
    @both
    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ("* FROM s IGNORE l, n, tags, b", [("a", 1), ("c", 9)]),
            ("* FROM s IGNORE l, n, tags, a, b.d, b.e.c", [("c", 9), ("b", {"c": 2, "e": {"f": 6}})]),
            ("* FROM s IGNORE a, c, b, n, tags, l.m", [("l", [{"n": 1}, None, {"n": 3}])]),
            ("*, a AS x FROM s IGNORE l, n, tags, b", [("c", 9), ("x", 1)]),
            ("b.e, a FROM s IGNORE b.e.f", [("e", {"c": 5}), ("a", 1)]),
            ("b.e.f, a FROM s IGNORE b.e", [("a", 1)]),
            ("b.* FROM s IGNORE b.e, b.e.f", [("c", 2), ("d", None)]),
            ("tags.*, a FROM s IGNORE tags.room", [("a", 1)]),
            ("_value FROM s IGNORE a, c, n, l, b, tags.room", [("value", {"tags": {}})]),
        ],
    )
    def test_left_out_at_any_depth(self, schema: Any, fields: str, expected: list[tuple[str, Any]]) -> None:
        assert row(fields, schema=schema) == expected

    def test_the_record_is_not_changed(self) -> None:
        value = {"a": {"b": 1, "c": 2}, "d": 3}
        assert row("* FROM s IGNORE a.b, d", value) == [("a", {"c": 2})]
        assert value == {"a": {"b": 1, "c": 2}, "d": 3}


class TestStructure:
    @both
    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ("l.n AS q", {"l": [{"q": 1}, None, {"q": 3}]}),
            ("l.*", {"l": VALUE["l"]}),
            ("l.n AS q, l.*", {"l": [{"q": 1, "m": 2}, None, {"q": 3, "m": 4}]}),
            ("b.c, b.e.c AS x, a", {"b": {"c": 2, "e": {"x": 5}}, "a": 1}),
            ("b.e.*", {"b": {"e": {"c": 5, "f": 6}}}),
            ("n.c", {"n": None}),
            ("a, l", {"a": 1, "l": VALUE["l"]}),
            ("b, b.c AS x", {"b": VALUE["b"], "b_1": {"x": 2}}),
            ("b.e.c AS f, b.e.f", {"b": {"e": {"f": 5, "f_1": 6}}}),
            ("*, b.c AS x", {**VALUE, "b": {"d": None, "e": {"c": 5, "f": 6}, "x": 2}}),
            ("tags.room AS r", {"tags": {"r": "kitchen"}}),
        ],
    )  # fmt: skip
    def test_nesting_and_arrays_stay(self, schema: Any, fields: str, expected: dict[str, Any]) -> None:
        projection = compiled(f"SELECT {fields} FROM s WITHSTRUCTURE", schema)
        assert projection.row(Record(value=VALUE)) == expected

    def test_ignore_and_parts(self) -> None:
        projection = compiled("SELECT l.*, _key.k.x, _.topic FROM s IGNORE l.m WITHSTRUCTURE")
        record = Record(value=VALUE, key={"k": [{"x": 1}]}, topic="t")
        assert projection.row(record) == {"l": [{"n": 1}, None, {"n": 3}], "k": [{"x": 1}], "topic": "t"}

    @pytest.mark.parametrize("schema", [None, SCHEMA])
    def test_a_scalar_on_the_way_is_still_an_error(self, schema: Any) -> None:
        with pytest.raises(ProjectionError, match="has no fields"):
            compiled("SELECT a.x FROM s WITHSTRUCTURE", schema).row(Record(value=VALUE))

    def test_arrays_of_arrays(self) -> None:
        projection = compiled("SELECT l.n FROM s WITHSTRUCTURE")
        assert projection.row(Record(value={"l": [[{"n": 1, "m": 2}], []]})) == {"l": [[{"n": 1}], []]}


def test_everything_is_the_record_itself_and_not_a_copy() -> None:
    record = Record(value={"a": 1})
    assert compiled("SELECT * FROM s").row(record) is record.value


def test_the_statement_is_at_hand() -> None:
    assert compiled("SELECT * FROM s PK a").statement.primary_key == (Path(Part.VALUE, ("a",)),)
