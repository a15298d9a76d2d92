"""The errors of the language: the position and the message of each."""

import pickle

import pytest

from isotherm.kcql import KcqlError, parse


def refusal(text: str) -> KcqlError:
    with pytest.raises(KcqlError) as caught:
        parse(text)
    return caught.value


def test_the_printed_form() -> None:
    assert str(refusal("INSERT INTO a SELECT * FROM b garbage")) == (
        'KCQL: line 1, column 31: unexpected "garbage" after the source "b"\n'
        "  INSERT INTO a SELECT * FROM b garbage\n"
        "                                ^^^^^^^\n"
        '  expected a clause (PK, WITHFORMAT, ...), ";" or the end'
    )


@pytest.mark.parametrize(
    ("text", "line", "column", "offending"),
    [
        ("", 1, 1, ""),
        (" \n-- only a comment", 2, 18, ""),
        (";", 1, 1, ";"),
        ("SELECT a FROM b;;", 1, 17, ";"),
        ("SELECT a FROM b;--x", 1, 17, "--x"),
        ("SELECT a FROM b; ; SELECT c FROM d", 1, 18, ";"),
        ("SELECT a\nFROM b\n  garbage", 3, 3, "garbage"),
        ("SELECT a\r\nFROM b\rgarbage", 3, 1, "garbage"),
        ("-- x\nSELECT a FROM b;\nSELECT größe ö FROM b", 3, 14, "ö"),
        ("SELECT a FROM b 'c'", 1, 17, "'c'"),
        ("SELECT a FROM 'b", 1, 15, "'"),
        ("SELECT `a FROM b", 1, 8, "`"),
        ("SELECT a FROM b WITHKEY(a", 1, 26, ""),
        ("SELECT a FROM b WITHKEY(a; SELECT", 1, 26, ";"),
        ("SELECT now(1) FROM b", 1, 12, "1"),
        ("SELECT a, FROM b", 1, 11, "FROM"),
        ("SELECT FROM b", 1, 8, "FROM"),
        ("SELECT a FROM", 1, 14, ""),
        ("SELECT a FROM b PK", 1, 19, ""),
        ("INSERT INTO SELECT a FROM b", 1, 13, "SELECT"),
        ("INSERT a SELECT a FROM b", 1, 8, "a"),
        ("UPSERT PK a INTO t SELECT a FROM b", 1, 8, "PK"),
        ("DELETE FROM b", 1, 1, "DELETE"),
        ("SELECT a AS as FROM b", 1, 13, "as"),
        ("SELECT a b FROM c", 1, 10, "b"),
        ("SELECT a FROM *", 1, 15, "*"),
        ("SELECT a/b FROM c", 1, 8, "a/b"),
        ("SELECT a'b' FROM c", 1, 8, "a'b'"),
        ("SELECT a..b FROM c", 1, 8, "a..b"),
        ("SELECT .a FROM c", 1, 8, ".a"),
        ("SELECT a. b FROM c", 1, 8, "a."),
        ("SELECT a$ FROM c", 1, 8, "a$"),
        ("SELECT `` FROM c", 1, 8, "``"),
        ("SELECT a.'' FROM c", 1, 10, "''"),
        ("SELECT a AS '' FROM c", 1, 13, "''"),
        ("INSERT INTO '' SELECT a FROM c", 1, 13, "''"),
        ("SELECT a FROM ``", 1, 15, "``"),
        ("SELECT *.a FROM c", 1, 8, "*.a"),
        ("SELECT a.*.b FROM c", 1, 8, "a.*.b"),
        ("SELECT a.* AS b FROM c", 1, 15, "b"),
        ("SELECT * AS b FROM c", 1, 13, "b"),
        ("SELECT a AS x, b AS x FROM c", 1, 16, "b"),
        ("SELECT a, a FROM c", 1, 11, "a"),
        ("SELECT a, _value.a FROM c", 1, 11, "_value.a"),
        ("SELECT a, a AS a FROM c", 1, 11, "a"),
        ("SELECT *, * FROM c", 1, 11, "*"),
        ("SELECT now(), `now()` FROM c", 1, 15, "`now()`"),
        ("SELECT a.now() FROM c", 1, 8, "a.now"),
        ("SELECT _header FROM c", 1, 8, "_header"),
        ("SELECT `_header` FROM c", 1, 8, "`_header`"),
        ("SELECT `_key.` FROM c", 1, 9, "_key."),
        ("SELECT `_key..a` FROM c", 1, 9, "_key..a"),
        ("SELECT _.value FROM c", 1, 8, "_.value"),
        ("SELECT _.key FROM c", 1, 8, "_.key"),
        ("SELECT _.topic.x FROM c", 1, 8, "_.topic.x"),
        ("SELECT _.topic.* FROM c", 1, 8, "_.topic.*"),
        ("SELECT _.* FROM c", 1, 8, "_.*"),
        ("INSERT INTO _header SELECT * FROM c", 1, 13, "_header"),
        ("INSERT INTO `_value.*` SELECT * FROM c", 1, 21, "*"),
        ("INSERT INTO _key.a/b SELECT * FROM c", 1, 18, "a/b"),
    ],
)
def test_where_a_statement_goes_wrong(text: str, line: int, column: int, offending: str) -> None:
    error = refusal(text)
    assert (error.line, error.column, error.offending) == (line, column, offending)
    assert f"line {line}, column {column}: {error.message}" in str(error)


@pytest.mark.parametrize(
    ("clauses", "offending"),
    [
        ("PK a PK b", "PK"),
        ("WITHFORMAT JSON WITH FORMAT JSON", "WITH"),
        ("AUTOCREATE autocreate", "autocreate"),
        ("PARTITIONBY a NOPARTITION", "NOPARTITION"),
        ("NOPARTITION PARTITIONBY a", "PARTITIONBY"),
        ("TTL=0", "0"),
        ("TTL=-1", "-1"),
        ("TTL=1.5", "1.5"),
        ("TTL=1_000", "1_000"),
        ("TTL=\u0661", "\u0661"),
        ("BATCH=9223372036854775808", "9223372036854775808"),
        (f"LIMIT {'9' * 5000}", "9" * 5000),
        ("LIMIT ten", "ten"),
        ("TTL 5", "5"),
        ("BATCH 5", "5"),
        ("WITHFORMAT XML", "XML"),
        ("WITHFORMAT", ""),
        ("WITH UNWRAP", "UNWRAP"),
        ("TIMESTAMPUNIT=YEARS", "YEARS"),
        ("WITHTIMESTAMP now()", "now"),
        ("WITHTIMESTAMP a.*", "a.*"),
        ("AUTOCREATE=true", "="),
        ("PK", ""),
        ("PK AUTOCREATE", "AUTOCREATE"),
        ("PK a, AUTOCREATE", "AUTOCREATE"),
        ("PK TTL=5", "="),
        ("PK limit 5", "5"),
        ("IGNORE WITHFORMAT JSON", "JSON"),
        ("PK FROM", "FROM"),
        ("PK a,", ""),
        ("PK a,,b", ","),
        ("PK a, a", "a"),
        ("PK a, _value.a", "_value.a"),
        ("PK *", "*"),
        ("PK a.*", "a.*"),
        ("PK now()", "("),
        ("PK `now()`", "`now()`"),
        ("IGNORE a, a", "a"),
        ("IGNORE *", "*"),
        ("IGNORE _key.a", "_key.a"),
        ("IGNORE _header.a", "_header.a"),
        ("IGNORE _.topic", "_.topic"),
        ("IGNORE _value", "_value"),
        ("PARTITIONBY a, a", "a"),
        ("WITHKEY(a, a)", "a"),
        ("WITHKEY()", ")"),
        ("WITHKEY a", "a"),
        ("WITHTAG()", ")"),
        ("WITHTAG(_key.a)", "_key.a"),
        ("WITHTAG(_header.a AS b)", "_header.a"),
        ("WITHTAG(_.topic)", "_.topic"),
        ("WITHTAG(a.*)", "a.*"),
        ("WITHTAG(a=b, a=c)", "a"),
        ("WITHTAG(a='')", "''"),
        ("WITHTARGET=_key.a", "_key.a"),
        ("WITHTARGET=_.topic", "_.topic"),
        ("WITHTARGET a", "a"),
        ("STOREAS", ""),
        ("STOREAS SET()", ")"),
        ("STOREAS SET(a=b, A=c)", "A"),
        ("STOREAS SET(a='')", "''"),
        ("STOREAS PROPERTIES(a=b)", "PROPERTIES"),
        ("STOREAS AUTOCREATE", "AUTOCREATE"),
        ("WITHDOCTYPE=", ""),
        ("WITHDOCTYPE=''", "''"),
        ("WITHREGEX=a*", "a*"),
        ("WITHKEY(a) KEYDELIMITER='  '", "'  '"),
        ("WITHKEY(a) KEYDELIMITER=''", "''"),
        ("WITHKEY(a) KEYDELIMITER=|", "|"),
        ("PROPERTIES(a=b, 'A'=c)", "'A'"),
        ("PROPERTIES(''=c)", "''"),
        ("PROPERTIES(a)", ")"),
        ("PROPERTIES(a=b,)", ")"),
        ("PROPERTIES", ""),
        ("WITHINDEXSUFFIX TTL=5", "="),
        ("WITHINDEXSUFFIX AUTOCREATE", "AUTOCREATE"),
        ("WITHINDEXSUFFIX --{YYYY}", ""),
        ("WITHINDEXSUFFIX=", ""),
        ("WITHINDEXSUFFIX=''", "''"),
        ("WITHINDEXSUFFIX=-{YYYY", "{"),
        ("WITHINDEXSUFFIX=-YYYY}", "}"),
        ("WITHINDEXSUFFIX=-{{YYYY}}", "{"),
        ("WITHINDEXSUFFIX={}", "{}"),
        ("WITHINDEXSUFFIX={YYY}", "YYY"),
        ("WITHINDEXSUFFIX={YYYY.mmm}", "m"),
        ("WITHINDEXSUFFIX='{YYYY.week}'", "week"),
        ("WITHINDEXSUFFIX={YYYY.}", "YYYY."),
        ("WITHINDEXSUFFIX={.YYYY}", "."),
        ("WITHINDEXSUFFIX=-{YYYY MM}", "MM}"),
    ],
)  # fmt: skip
def test_where_a_clause_goes_wrong(clauses: str, offending: str) -> None:
    text = f"INSERT INTO t SELECT * FROM s {clauses}"
    error = refusal(text)
    assert error.offending == offending
    assert text[error.column - 1 :].startswith(offending)
    assert error.column > len("INSERT INTO t SELECT * FROM s")


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("SELECT a FROM b WITHFORMTA JSON", "WITHFORMAT"),
        ("SELECT a FROM b WITH UNWRAP", "WITHUNWRAP"),
        ("SELECT a FROM b WITHFORMAT JSN", "JSON"),
        ("SELECT a FROM b TIMESTAMPUNIT=millis", "MILLISECONDS"),
        ("INSRT INTO a SELECT a FROM b", "INSERT"),
        ("SELECT a FRM b", "FROM"),
        ("SELECT _.key FROM b", "_key"),
        ("SELECT a FROM b garbage", None),
    ],
)
def test_the_nearest_word_is_suggested(text: str, suggestion: str | None) -> None:
    error = refusal(text)
    assert error.suggestion == suggestion
    assert (f"did you mean {suggestion}?" in str(error)) == (suggestion is not None)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("SELECT from FROM b", "from needs quotes as a name"),
        ("SELECT a FROM b PK autocreate", "as a name it needs quotes"),
        ("SELECT a FROM *", "any topic is `*`"),
        ("SELECT a FROM b;--x", "a comment has a blank before it"),
        ("SELECT a FROM b WITHFORMAT XML", "one of AVRO, JSON, TEXT, BINARY, OBJECT, MAP, PROTOBUF, RAW"),
        ("SELECT a FROM b LIMIT 0", "a whole number from 1 to 2^63-1"),
        ("SELECT a FROM b WITHINDEXSUFFIX=-{YYYY MM}", "a suffix with blanks is quoted"),
    ],
)
def test_what_is_expected(text: str, hint: str) -> None:
    assert hint in (refusal(text).expected or "")


def test_the_caret_keeps_tabs_and_long_lines_short() -> None:
    assert "\n  \tSELECT a FROM b\tx\n  \t               \t^\n" in str(refusal("\tSELECT a FROM b\tx"))
    shown = str(refusal(f"SELECT {'a' * 5000}, ; {'b' * 5000}")).splitlines()
    assert len(shown[1]) < 250
    assert shown[1][shown[2].index("^")] == ";"


def test_an_error_survives_pickling() -> None:
    error = refusal("SELECT a FROM b garbage")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301  # our own bytes


_ANY_OPERAND = "a field, a number, a text in '..', TIMESTAMP '..', TRUE or FALSE"


@pytest.mark.parametrize(
    ("condition", "offending", "message", "expected"),
    [
        ("", "", "unexpected end after WHERE", "NOT or"),
        ("a", "", 'unexpected end after the field "a"', "a comparison (=, <>, <, <=, >, >=), IS, IN or LIKE"),
        ("a = NULL", "NULL", 'unexpected "NULL" after "="', "IS NULL or IS NOT NULL, which test for null"),
        ("a == 5", "=", 'unexpected "=" after "="', f"{_ANY_OPERAND}; equal is =, unequal is <> or !="),
        ('a = "x"', '"', 'unexpected """', "a name with other characters stands in `..`"),
        ("a BETWEEN 1 AND 2", "BETWEEN", 'unexpected "BETWEEN" after the field "a"', "a comparison"),
        ("(a = 1", "", 'unexpected end after the number "1"', 'AND, OR or ")"'),
        ("and = 1", "and", 'unexpected "and" after WHERE', "and needs quotes (`and`) as a name"),
        ("a > TRUE", ">", '">" has no meaning for TRUE and FALSE', "= or <>"),
        ("1 = 2", "1", "WHERE compares two constants", "a field on one side"),
        ("5 IS NULL", "5", "IS NULL after a constant", "a field before it"),
        ("'x' LIKE 'x'", "'x'", "LIKE after a constant", "a field before it"),
        ("a IN (1, 'x')", "'x'", "a text in a list of IN that begins with a number", None),
        ("a IN (b)", "b", 'unexpected "b"', "a number"),
        ("a LIKE 5", "5", 'unexpected "5"', "a text in '..'"),
        ("a LIKE 'x' ESCAPE 'yy'", "'yy'", 'ESCAPE is "yy"', "one character"),
        ("a LIKE 'x!' ESCAPE '!'", "'x!'", '"!" escapes nothing here', "%, _ or ! after the escape character !"),
        ("a = TIMESTAMP '31.1.2026'", "TIMESTAMP '31.1.2026'", '"31.1.2026" is no time', "ISO 8601"),
        ("a = 1e999", "1e999", '"1e999" is too large', "a number that a double can hold"),
        ("a = " + "9" * 41, "9" * 41, "a number of 41 characters", "at most 40"),
        ("`now()` = 5", "`now()`", "WHERE takes fields and constants, no function", None),
        ("a = `_header`", "`_header`", "_header without the name of a header", "_header.name"),
        ("a = 'x", "'", "an unclosed quote", "a second '"),
        ("a = 5 WHERE b = 5", "WHERE", "WHERE is given twice", "each clause at most once"),
        ("NOT " * 51 + "a = 5", "N", "the condition is nested too deeply", "at most 50 levels"),
    ],
)
def test_conditions(condition: str, offending: str, message: str, expected: str | None) -> None:
    error = refusal(f"SELECT a FROM s WHERE {condition}")
    assert error.offending == offending
    assert error.message.startswith(message)
    assert (expected or "") in (error.expected or "")


def test_a_misspelt_word_of_a_condition_is_named() -> None:
    assert refusal("SELECT a FROM s WHERE a LKE 'x'").suggestion == "LIKE"
    assert refusal("SELECT a FROM s WERE a = 5").suggestion == "WHERE"


def test_deep_parentheses_are_refused_and_no_crash() -> None:
    assert "nested too deeply" in refusal("SELECT a FROM s WHERE " + "(" * 20_000 + "a = 5" + ")" * 20_000).message
