"""What the language accepts and what it means, sentence by sentence of its specification."""

import pytest

from isotherm.kcql import (
    SYS_TIME,
    Field,
    Part,
    Path,
    Statement,
    StoreAs,
    Tag,
    parse,
)


def value(*names: str) -> Path:
    return Path(Part.VALUE, names)


def one(text: str) -> Statement:
    (statement,) = parse(text)
    return statement


def clause(text: str) -> Statement:
    return one(f"INSERT INTO t SELECT * FROM s {text}")


def field(text: str) -> Field:
    (only,) = one(f"SELECT {text} FROM s").fields
    return only


class TestStatement:
    @pytest.mark.parametrize(
        ("text", "mode", "target", "source"),
        [
            ("INSERT INTO a SELECT * FROM b", "INSERT", "a", "b"),
            ("UPSERT INTO a SELECT * FROM b", "UPSERT", "a", "b"),
            ("SELECT * FROM b", None, None, "b"),
            ("insert into a select * from b", "INSERT", "a", "b"),
            ("iNsErT\n\tInTo\r\na SeLeCt*FrOm b", "INSERT", "a", "b"),
            ("INSERT INTO`a`SELECT*FROM'b'", "INSERT", "a", "b"),
        ],
    )
    def test_mode_target_source(self, text: str, mode: str | None, target: str | None, source: str) -> None:
        statement = one(text)
        assert (statement.mode, statement.target, statement.source) == (mode, target, source)

    def test_semicolons_separate_statements_and_one_may_trail(self) -> None:
        first, second = parse("INSERT INTO a SELECT x FROM b;\nINSERT INTO c SELECT y FROM b ; ")
        assert (first.target, second.target) == ("a", "c")
        assert (first.text, second.text) == ("INSERT INTO a SELECT x FROM b", "INSERT INTO c SELECT y FROM b")

    def test_semicolons_in_quotes_and_comments_do_not_separate(self) -> None:
        first, second = parse("SELECT 'a;b' FROM `c;d` -- ; SELECT\n; SELECT e FROM f")
        assert (first.fields, first.source) == ((Field(value("a;b")),), "c;d")
        assert second.source == "f"

    @pytest.mark.parametrize(
        "text",
        [
            "-- first\nSELECT a FROM b",
            "SELECT a -- the field\n FROM b",
            "SELECT a\t--the field\r\nFROM b",
            "SELECT a FROM b --",
            "SELECT a FROM b -- no end",
            "SELECT a FROM b\n--x\n; --y\n",
        ],
    )
    def test_comments(self, text: str) -> None:
        assert one(text) == one("SELECT a FROM b")

    def test_two_dashes_inside_a_name_are_no_comment(self) -> None:
        assert one("SELECT a--b FROM c--d").source == "c--d"

    def test_statements_that_say_the_same_are_equal(self) -> None:
        assert parse("SELECT `a` FROM 'b' LIMIT=5 PK c") == parse("select a from b pk c limit 5;")
        assert hash(one("SELECT a FROM b PROPERTIES(a=b)")) == hash(one("SELECT a FROM b PROPERTIES(a=b)"))

    def test_matches_its_source_or_anything(self) -> None:
        assert one("SELECT a FROM b").matches("b")
        assert not one("SELECT a FROM b").matches("c")
        assert one("SELECT a FROM `*`").matches("c")


class TestNames:
    @pytest.mark.parametrize(
        ("written", "name"),
        [
            ("a_b-c+d#e$f@g/h:i", "a_b-c+d#e$f@g/h:i"),
            ("ks.table", "ks.table"),
            ("9lives", "9lives"),
            ("-", "-"),
            ("größe.Å", "größe.Å"),
            ("`a b`", "a b"),
            ("'a`b'", "a`b"),
            ("`it's`", "it's"),
            (r"`a\b`", r"a\b"),
            (r"'a\'", "a\\"),
            ("ks.`my table`", "ks.my table"),
            ("`a.b`", "a.b"),
            ("`line\nbreak`", "line\nbreak"),
            ("limit", "limit"),
            ("insert", "insert"),
            ("into", "into"),
            ("with", "with"),
            ("`from`", "from"),
            ("'SELECT'", "SELECT"),
            ("from.x", "from.x"),
            ("_keys", "_keys"),
        ],
    )
    def test_targets_and_sources(self, written: str, name: str) -> None:
        statement = one(f"INSERT INTO {written} SELECT * FROM {written}")
        assert (statement.target, statement.target_from, statement.source) == (name, None, name)

    @pytest.mark.parametrize("source", ["/a/+/b", "a/#", "#", "+", "$share/g/a/+", "coap://h:5683/x", "sensors"])
    def test_sources_of_devices_need_no_quotes(self, source: str) -> None:
        assert one(f"SELECT * FROM {source}").source == source
        assert one(f"SELECT * FROM `{source}`").source == source

    @pytest.mark.parametrize(
        "word", ["ttl", "limit", "PK", "with", "format", "autocreate", "insert", "into", "properties", "Ignore"]
    )
    def test_a_clauses_word_is_a_name_where_no_clause_stands(self, word: str) -> None:
        statement = one(f"INSERT INTO {word} SELECT {word}, a AS {word} FROM {word}")
        assert statement.target == statement.source == word
        assert statement.fields == (Field(value(word)), Field(value("a"), word))

    @pytest.mark.parametrize("clause_word", ["PK", "IGNORE", "PARTITIONBY", "IGNORE x,", "PK x,"])
    @pytest.mark.parametrize("word", ["ttl", "limit", "batch", "with", "withtag"])
    def test_a_clauses_word_begins_a_list(self, clause_word: str, word: str) -> None:
        statement = clause(f"{clause_word} {word} TIMESTAMPUNIT=DAYS")
        lists = (*statement.primary_key, *statement.partition_by, *map(Path, [Part.VALUE] * 2, statement.ignore))
        assert value(word) in lists
        assert statement.timestamp_unit == "DAYS"

    def test_a_clauses_word_before_its_own_clause(self) -> None:
        statement = clause("IGNORE pk PK ttl TTL=5 PARTITIONBY limit, autocreate, b LIMIT 5")
        assert statement.ignore == (("pk",),)
        assert statement.primary_key == (value("ttl"),)
        assert statement.partition_by == (value("limit"), value("autocreate"), value("b"))
        assert (statement.ttl, statement.limit) == (5, 5)

    def test_a_flag_is_an_element_only_before_a_comma(self) -> None:
        assert clause("PK autocreate -- one\n , b").primary_key == (value("autocreate"), value("b"))
        assert clause("PK autocreate.x").primary_key == (value("autocreate", "x"),)
        assert clause("PK `autocreate`").primary_key == (value("autocreate"),)
        assert clause("WITHKEY(autocreate)").with_key == (value("autocreate"),)


class TestTarget:
    @pytest.mark.parametrize(
        ("written", "text", "part", "path"),
        [
            ("_key", "_key", Part.KEY, ()),
            ("_key.p", "_key.p", Part.KEY, ("p",)),
            ("_value", "_value", Part.VALUE, ()),
            ("_value.a.b", "_value.a.b", Part.VALUE, ("a", "b")),
            ("_header.h", "_header.h", Part.HEADER, ("h",)),
            ("_header.'a.b'", "_header.'a.b'", Part.HEADER, ("a.b",)),
            ("`_value.a.b`", "_value.a.b", Part.VALUE, ("a", "b")),
            ("'_key'", "_key", Part.KEY, ()),
            ("`_header.'a.b'.c`", "_header.'a.b'.c", Part.HEADER, ("a.b", "c")),
            ("$", "$", Part.TOPIC, ()),
            ("`$`", "$", Part.TOPIC, ()),
            ("'$'", "$", Part.TOPIC, ()),
        ],
    )
    def test_derived(self, written: str, text: str, part: Part, path: tuple[str, ...]) -> None:
        statement = one(f"INSERT INTO {written} SELECT * FROM s")
        assert (statement.target, statement.target_from) == (text, Path(part, path))

    def test_static_names_that_look_alike(self) -> None:
        for name in ("_keyed.a", "$x", "_headers", "_.topic"):
            assert one(f"INSERT INTO {name} SELECT * FROM s").target_from is None


class TestFields:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("*", Field(value(), wildcard=True)),
            ("f", Field(value("f"))),
            ("a.b.c", Field(value("a", "b", "c"))),
            ("a.b.*", Field(value("a", "b"), wildcard=True)),
            ("a.'b c'.*", Field(value("a", "b c"), wildcard=True)),
            ("f AS x", Field(value("f"), "x")),
            ("f as `x y`", Field(value("f"), "x y")),
            ("f AS a.b", Field(value("f"), "a.b")),
            ("@f", Field(value("@f"))),
            ("`a.b`", Field(value("a.b"))),
            ("`a.b`.c", Field(value("a.b", "c"))),
            ("a.from", Field(value("a", "from"))),
            ("`from`", Field(value("from"))),
            ("`*`", Field(value("*"))),
            ("_", Field(value("_"))),
            ("_value.f", Field(value("f"))),
            ("_value", Field(value())),
            ("_value.*", Field(value(), wildcard=True)),
            ("_value._key", Field(value("_key"))),
            ("_key", Field(Path(Part.KEY))),
            ("_key.f AS k", Field(Path(Part.KEY, ("f",)), "k")),
            ("_key.*", Field(Path(Part.KEY), wildcard=True)),
            ("_header.h", Field(Path(Part.HEADER, ("h",)))),
            ("_header.a.b", Field(Path(Part.HEADER, ("a", "b")))),
            ("_header.`a.b`", Field(Path(Part.HEADER, ("a.b",)))),
            ("_header.*", Field(Path(Part.HEADER), wildcard=True)),
            ("`_key.a.b`", Field(Path(Part.KEY, ("a", "b")))),
            ("'_header.h'", Field(Path(Part.HEADER, ("h",)))),
            ("'_value.a.b' AS c", Field(value("a", "b"), "c")),
            ("`_value`", Field(value())),
            ("_.key.f", Field(Path(Part.KEY, ("f",)))),
            ("_.key.*", Field(Path(Part.KEY), wildcard=True)),
            ("_.topic", Field(Path(Part.TOPIC))),
            ("_.partition", Field(Path(Part.PARTITION))),
            ("_.offset", Field(Path(Part.OFFSET))),
            ("_.timestamp AS ts", Field(Path(Part.TIMESTAMP), "ts")),
            ("`_.topic`", Field(value("_.topic"))),
            ("now()", Field(Path(Part.FUNCTION, ("now",)))),
            ("now ( ) AS t", Field(Path(Part.FUNCTION, ("now",)), "t")),
            ("`now()`", Field(Path(Part.FUNCTION, ("now",)))),
            ("'now()' AS t", Field(Path(Part.FUNCTION, ("now",)), "t")),
            ("_value.`now()`", Field(value("now()"))),
        ],
    )
    def test_forms(self, text: str, expected: Field) -> None:
        assert field(text) == expected

    @pytest.mark.parametrize("fields", ["a, a AS b", "a AS x, a AS y", "a AS b, b", "*, a", "a, a.*, a.b", "a.b, c.b"])
    def test_lists_that_name_nothing_twice(self, fields: str) -> None:
        assert len(one(f"SELECT {fields} FROM s").fields) == fields.count(",") + 1


class TestClauses:
    @pytest.mark.parametrize(
        ("text", "attribute", "expected"),
        [
            ("IGNORE a, b.c", "ignore", (("a",), ("b", "c"))),
            ("IGNORE _value.a", "ignore", (("a",),)),
            ("AUTOCREATE", "autocreate", True),
            ("AUTOEVOLVE", "autoevolve", True),
            ("WITHSTRUCTURE", "with_structure", True),
            ("WITHUNWRAP", "unwrap", True),
            ("NOPARTITION", "no_partition", True),
            ("PK a, b.c", "primary_key", (value("a"), value("b", "c"))),
            ("PK _key.a, _header.h", "primary_key", (Path(Part.KEY, ("a",)), Path(Part.HEADER, ("h",)))),
            ("PK _.topic, _.offset", "primary_key", (Path(Part.TOPIC), Path(Part.OFFSET))),
            ("PK a, A", "primary_key", (value("a"), value("A"))),
            ("WITHTARGET=a.b", "dynamic_target", ("a", "b")),
            ("BATCH=100", "batch", 100),
            ("TTL=1", "ttl", 1),
            ("TTL = '9223372036854775807'", "ttl", 2**63 - 1),
            ("LIMIT 007", "limit", 7),
            ("PARTITIONBY a, _header.b", "partition_by", (value("a"), Path(Part.HEADER, ("b",)))),
            ("WITHTIMESTAMP ts", "timestamp", value("ts")),
            ("WITHTIMESTAMP _key.ts", "timestamp", Path(Part.KEY, ("ts",))),
            ("WITHTIMESTAMP sys_time()", "timestamp", SYS_TIME),
            ("WITHTIMESTAMP SYS_TIME()", "timestamp", SYS_TIME),
            ("WITHTIMESTAMP `sys_time()`", "timestamp", SYS_TIME),
            ("TIMESTAMPUNIT=nanoseconds", "timestamp_unit", "NANOSECONDS"),
            ("", "timestamp_unit", "MILLISECONDS"),
            ("WITHFORMAT json", "format", "JSON"),
            ("WITHFORMAT raw", "format", "RAW"),
            ("WITH FORMAT JSON", "format", "JSON"),
            ("with\nformat = `avro`", "format", "AVRO"),
            ("STOREAS queue", "store_as", StoreAs("QUEUE", {})),
            ("STOREAS RingBuffer", "store_as", StoreAs("RING_BUFFER", {})),
            ("STOREAS RING_BUFFER", "store_as", StoreAs("RING_BUFFER", {})),
            ("STOREAS any (a=b, c.d='e f', 'g'=5)", "store_as", StoreAs("ANY", {"a": "b", "c.d": "e f", "g": "5"})),
            ("STOREAS `PROPERTIES`(a=b)", "store_as", StoreAs("PROPERTIES", {"a": "b"})),
            (
                "WITHTAG (f, c=v, a.b AS x, d='e f')",
                "tags",
                (Tag(("f",)), Tag(("c",), constant="v"), Tag(("a", "b"), "x"), Tag(("d",), constant="e f")),
            ),
            ("WITHTAG(f)", "tags", (Tag(("f",)),)),
            ("INCREMENTALMODE=timestamp", "incremental_mode", "TIMESTAMP"),
            ("WITHTYPE topic", "type", "TOPIC"),
            ("WITHDOCTYPE=Doc", "doc_type", "Doc"),
            ("WITHDOCTYPE=`a b`", "doc_type", "a b"),
            ("WITHINDEXSUFFIX=-{YYYY.MM.DD}", "index_suffix", "-{YYYY.MM.DD}"),
            ("WITHINDEXSUFFIX -{YYYY.MM.DD}", "index_suffix", "-{YYYY.MM.DD}"),
            ("WITHINDEXSUFFIX={YYYY-MM-dd}", "index_suffix", "{YYYY-MM-dd}"),
            ("WITHINDEXSUFFIX=_{yyyy/MM}--{HH,mm}", "index_suffix", "_{yyyy/MM}--{HH,mm}"),
            ("WITHINDEXSUFFIX='on {YYYY MM}'", "index_suffix", "on {YYYY MM}"),
            ("WITHCONVERTER=`com.x.Y`", "converter", "com.x.Y"),
            ("WITHCONVERTER=com.x.Y", "converter", "com.x.Y"),
            ("WITHJMSSELECTOR='a > 5'", "jms_selector", "a > 5"),
            ("WITHKEY(a, _key.b)", "with_key", (value("a"), Path(Part.KEY, ("b",)))),
            ("WITHKEY(a) KEYDELIMITER=' | '", "key_delimiter", " | "),
            ("WITHKEY(a) KEYDELIMITER=-", "key_delimiter", "-"),
            ("WITHKEY(a)", "key_delimiter", "."),
            ("KEYDELIMITER='|'", "key_delimiter", "|"),
            ("WITHPIPELINE=p-1", "pipeline", "p-1"),
            ("WITHSUBSCRIPTION=s", "subscription", "s"),
            ("WITHREGEX=`.*/temp;x`", "regex", ".*/temp;x"),
            ("PROPERTIES()", "properties", {}),
            ("PROPERTIES(k=v, 'a.b'='c d')", "properties", {"k": "v", "a.b": "c d"}),
            ("PROPERTIES(e.f=1.5, g='', h=)", "properties", {"e.f": "1.5", "g": "", "h": ""}),
            ("PROPERTIES(behavior.on.null.values=IGNORE)", "properties", {"behavior.on.null.values": "IGNORE"}),
        ],
    )  # fmt: skip
    def test_meaning(self, text: str, attribute: str, expected: object) -> None:
        assert getattr(clause(text), attribute) == expected

    @pytest.mark.parametrize(
        ("printed", "tolerated"),
        [
            ("PK a, b", "PK = a, b"),
            ("IGNORE a", "IGNORE=a"),
            ("PARTITIONBY a", "PARTITIONBY =a"),
            ("WITHTIMESTAMP a", "WITHTIMESTAMP = a"),
            ("WITHTIMESTAMP sys_time()", "WITHTIMESTAMP=sys_time()"),
            ("WITHFORMAT JSON", "WITHFORMAT=JSON"),
            ("STOREAS SET(a=b)", "STOREAS = SET(a=b)"),
            ("WITHTAG (a)", "WITHTAG = (a)"),
            ("WITHTYPE QUEUE", "WITHTYPE=QUEUE"),
            ("WITHINDEXSUFFIX x{MM}", "WITHINDEXSUFFIX=x{MM}"),
            ("WITHKEY(a)", "WITHKEY=(a)"),
            ("LIMIT 5", "LIMIT=5"),
            ("PROPERTIES(a=b)", "PROPERTIES=(a=b)"),
        ],
    )
    def test_an_equals_sign_too_many(self, printed: str, tolerated: str) -> None:
        assert clause(tolerated) == clause(printed)

    def test_clauses_in_any_order(self) -> None:
        clauses = ["PK a", "TTL=5", "AUTOCREATE", "IGNORE b", "WITHFORMAT JSON", "LIMIT 3", "WITHTAG(c)", "STOREAS SET"]
        assert clause(" ".join(clauses)) == clause(" ".join(reversed(clauses)))

    def test_the_written_clauses_are_told(self) -> None:
        statement = clause("TIMESTAMPUNIT=MILLISECONDS WITH FORMAT JSON pk a")
        assert statement.clauses == {"TIMESTAMPUNIT", "WITHFORMAT", "PK"}
