"""`isotherm kcql`: what goes to stdout, what to stderr, and the exit code."""

import json

import pytest
from typer.testing import CliRunner, Result

from isotherm.cli.commands.kcql import app

PRINTED = "INSERT INTO dev SELECT * FROM coap_sensor_topic WITHFORMAT JSON STOREAS QUEUE"
REFUSED = """KCQL: line 1, column 31: unexpected "garbage" after the source "b"
  INSERT INTO a SELECT * FROM b garbage
                                ^^^^^^^
  expected a clause (PK, WITHFORMAT, ...), ";" or the end
"""


def run(*arguments: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def test_explain_in_words() -> None:
    result = run("explain", PRINTED)
    assert (result.exit_code, result.stderr) == (0, "")
    assert 'Every record of "coap_sensor_topic" is inserted into "dev".' in result.stdout
    assert "stored as: QUEUE" in result.stdout


def test_explain_reads_stdin_without_the_argument() -> None:
    assert run("explain", stdin=f"-- from a file\n{PRINTED};\n").stdout == run("explain", PRINTED).stdout
    assert run("explain", stdin=f"\ufeff{PRINTED}".encode()).stdout == run("explain", PRINTED).stdout


def test_explain_as_json_is_one_object_a_statement() -> None:
    result = run("explain", "--json", f"{PRINTED}; SELECT größe FROM b")
    first, second = json.loads(result.stdout)
    assert (first["mode"], first["store_as"]) == ("INSERT", {"type": "QUEUE", "parameters": {}})
    assert second["fields"] == [{"path": ["größe"], "alias": None, "part": "value"}]
    assert "größe" in result.stdout
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_statement_may_begin_with_a_comment() -> None:
    assert run("explain", "-- a comment\nSELECT a FROM b").exit_code == 0
    assert run("project", "-- a comment\nSELECT a FROM b", stdin="{}").exit_code == 0


def test_a_refused_statement() -> None:
    result = run("explain", "INSERT INTO a SELECT * FROM b garbage")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", REFUSED)


def test_a_refused_statement_as_json() -> None:
    result = run("explain", "--json", stdin="SELECT a FROM b\nWITHFORMTA JSON")
    assert result.exit_code == 2
    assert json.loads(result.stdout) == {
        "message": 'unexpected "WITHFORMTA" after the source "b"',
        "line": 2,
        "column": 1,
        "suggestion": "WITHFORMAT",
    }
    assert "did you mean WITHFORMAT?" in result.stderr


@pytest.mark.parametrize(
    "arguments", [("explain", "--jsno"), ("explain", "--jsno", "SELECT a FROM b"), ("explain", ""), ("project",)]
)
def test_an_invalid_argument_is_not_parsed_as_a_statement(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr


def test_stdin_that_is_no_text() -> None:
    result = run("explain", stdin=b"SELECT \xff FROM b")
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr


def test_project_prints_one_line_a_record() -> None:
    result = run("project", "INSERT INTO t SELECT b AS x, * FROM s PK a", stdin='{"a": 1, "b": "ö"}\n{"b": 2}\nnope\n')
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == '{"target": "t", "id": "1", "row": {"x": "ö", "a": 1}}'
    assert lines[1] == '{"error": "\\"a\\": the record has no such field"}'
    assert "not JSON" in json.loads(lines[2])["error"]
    assert len(lines) == 3


def test_project_with_the_envelope() -> None:
    text = "INSERT INTO t SELECT * FROM s WITHINDEXSUFFIX -{YYYY.MM.DD}"
    record = '{"value": {"a": 1}, "timestamp": 1769817600000}\n'
    assert json.loads(run("project", "--envelope", text, stdin=record).stdout)["target"] == "t-2026.01.31"
    assert "envelope" in json.loads(run("project", text, stdin='{"a": 1}\n').stdout)["error"]


def test_project_of_a_refused_statement() -> None:
    result = run("project", "INSERT INTO a SELECT * FROM b garbage", stdin="{}\n")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", REFUSED)


def test_a_lone_surrogate_is_printed_as_its_escape() -> None:
    result = run("project", "SELECT a FROM s", stdin='{"a": "\\ud800"}')
    assert '"\\ud800"' in result.stdout
    assert json.loads(result.stdout)["row"] == {"a": "\ud800"}
