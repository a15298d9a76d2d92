"""Connector files: the three forms, what they refuse, and secrets that stay references until the task needs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.config.files import (
    ConfigError,
    entries,
    from_mapping,
    parse,
    read,
    to_properties,
)

TEXT = st.characters(exclude_categories=["Cs"], exclude_characters="\0")

COAP_SOURCE = """
name = coap-source
connector.class = com.datamountaineer.streamreactor.connect.coap.source.CoapSourceConnector
max.tasks = 1
connect.coap.source.uri = coap://localhost:5633
connect.coap.kcql = INSERT INTO coap_sensor_topic SELECT * FROM sensors
"""

ELASTIC_JSON = """
{
  "name": "temperatures-to-elasticsearch",
  "config": {
    "connector.class": "com.datamountaineer.streamreactor.connect.elastic.ElasticSinkConnector",
    "tasks.max": 3,
    "topics": "temperatures.grouped",
    "connect.elastic.url": "elasticsearch://${env:ELASTIC_SEARCH_HOST}:${env:ELASTIC_SEARCH_PORT}",
    "connect.elastic.index.auto.create": true
  }
}
"""


def test_reads_the_printed_properties_with_blanks_round_the_equals_sign() -> None:
    config = parse(COAP_SOURCE)
    assert config.name == "coap-source"
    assert config.klass == "com.datamountaineer.streamreactor.connect.coap.source.CoapSourceConnector"
    assert config.config["connect.coap.source.uri"] == "coap://localhost:5633"
    assert config.config["connect.coap.kcql"] == "INSERT INTO coap_sensor_topic SELECT * FROM sensors"


def test_values_keep_their_equals_signs_and_colons() -> None:
    text = "name=x\nconnector.class=y\nconnect.elastic.kcql=INSERT INTO a SELECT * FROM b WITHINDEXSUFFIX=-{YYYY-MM-dd}"
    assert parse(text).config["connect.elastic.kcql"].endswith("WITHINDEXSUFFIX=-{YYYY-MM-dd}")


def test_comments_blank_lines_and_continued_lines() -> None:
    text = "# a comment\n! another\n\nname = x\nconnector.class = y\nkcql = INSERT INTO a \\\n    SELECT * FROM b\n"
    assert parse(text).config["kcql"] == "INSERT INTO a SELECT * FROM b"


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("topics a:b", "topics", "a:b"),
        ("topics\ta = b", "topics", "a = b"),
        (r"connect.\u006bcql : SELECT", "connect.kcql", "SELECT"),
        (r"greeting=\ud83c\udf21", "greeting", "\U0001f321"),
        ("topics=a \t", "topics", "a"),
        (r"separator=\u0020", "separator", " "),
    ],
)
def test_properties_are_read_as_java_reads_them(line: str, key: str, value: str) -> None:
    """java.util.Properties: a blank separates too, and pairs of surrogates are one character."""
    assert parse(f"name=x\nconnector.class=y\r\n{line}").config[key] == value


def test_json_in_both_shapes_gives_texts() -> None:
    nested = parse(ELASTIC_JSON)
    assert nested.name == "temperatures-to-elasticsearch"
    assert nested.config["tasks.max"] == "3"
    assert nested.config["connect.elastic.index.auto.create"] == "true"
    flat = parse('{"name": "a", "connector.class": "b", "topics": ["t", "u"]}')
    assert flat.config == {"name": "a", "connector.class": "b", "topics": "t,u"}


def test_toml_is_the_native_form(tmp_path: Path) -> None:
    file = tmp_path / "sink.toml"
    file.write_text('name = "a"\nclass = "elasticsearch"\ntopics = ["t"]\n[error]\npolicy = "NOOP"\n', encoding="utf-8")
    config = read(file)
    assert (config.klass, config.config["topics"], config.config["error.policy"]) == ("elasticsearch", "t", "NOOP")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name=x\nnonsense\nconnector.class=y", "line 2: expected key=value, found 'nonsense'"),
        ("name=x\nname=y\nconnector.class=z", "line 2: name: given twice"),
        ("topics=a", "name: missing"),
        ("name=x", "connector.class: missing"),
        ("name=a b\nconnector.class=y", "name: 'a b' is not allowed"),
        ('{"name": "x", "connector.class": "y", "topics": null}', "topics: expected a text, number or boolean"),
        ('{"name": "x", "name": "y"}', "name: given twice"),
        ('{"name": "x",', "line 1, column"),
        (
            '{"name": "x", "config": {"name": "y", "connector.class": "c"}}',
            "name: 'x' outside of config and 'y' inside",
        ),
        ("name=x\nconnector.class=y\nkcql=\\u12", "line 3: \\u needs four hexadecimal digits"),
        ("name=x\nconnector.class=y\nkcql=\\ud800", "line 3: 'kcql': it has half of a surrogate pair"),
        ("name=x\nconnector.class=y\nkcql=a\\u0000", "line 3: 'kcql': it has a NUL character"),
        ("a=" + "b\\\n" * 1_000, "a value has more than 500 lines"),
        ("a" * 300_000, "300000 characters; allowed: 262144"),
        ('{"name": "\\ud800"}', "half of a surrogate pair"),
        ('{"batch": NaN}', "NaN is not JSON"),
        ('{"": "n"}', "a key is empty"),
        ('{"batch": 1' + "0" * 5_000 + "}", "4300"),
        ('{"a": ' * 2_000 + "1" + "}" * 2_000, "nested too deeply"),
    ],
)
def test_refuses_with_the_place_and_the_reason(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, origin="conf/x.properties")
    assert any(expected in problem for problem in caught.value.problems)
    assert all(problem.startswith("conf/x.properties: ") for problem in caught.value.problems)


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("one\ntwo\n=three\n")
    assert len(caught.value.problems) == 3


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.properties: No such file"):
        read(tmp_path / "absent.properties")


def test_secrets_stay_references_until_resolved(tmp_path: Path) -> None:
    secret_file = tmp_path / "secrets.properties"
    secret_file.write_text("sink = hunter2\n", encoding="utf-8")
    config = from_mapping(
        {"name": "n", "connector.class": "c", "user": "${env:SINK_USER}", "password": f"${{file:{secret_file}:sink}}"}
    )
    assert config.config["user"] == "${env:SINK_USER}"
    resolved = config.resolved({"SINK_USER": "ann"})
    assert (resolved.config["user"], resolved.config["password"]) == ("ann", "hunter2")
    with pytest.raises(ConfigError, match=r"user: \$\{env:SINK_USER\}: the environment has no variable SINK_USER"):
        config.resolved({})


@given(
    st.dictionaries(
        st.text(TEXT, min_size=1).filter(lambda key: key not in {"name", "class"}),
        st.text(TEXT),
        max_size=5,
    )
)
def test_properties_round_trip(extra: dict[str, str]) -> None:
    values = {"name": "n", "connector.class": "c", **extra}
    assert parse(to_properties(values), form="properties").config == values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = " + "[" * 2_000 + "]" * 2_000, "nested too deeply"),
        (".".join("a" * 2_000) + " = 1", "nested too deeply"),
        ("a = 1" + "0" * 5_000, "4300"),
        ("a = 0x" + "f" * 5_000, "4300"),
    ],
    ids=["arrays", "tables", "decimal", "hexadecimal"],
)
def test_toml_that_python_refuses_otherwise_is_refused_like_any_other(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse(text, form="toml")


@given(st.lists(st.sampled_from(["a=b", " ", "\t", "\\", "\f", "\n", "\r\n", "c"]), max_size=12).map("".join))
def test_blanks_at_the_end_of_a_line_are_removed_up_to_an_escaped_one(text: str) -> None:
    removed = re.sub(r"(?<!\\)[ \t\f]+(?=[\r\n]|\Z)", "", text)

    def values(written: str) -> dict[str, str] | None:
        try:
            return entries(written, form="properties")
        except ConfigError:
            return None

    assert values(text) == values(removed)


def test_many_blanks_take_linear_time() -> None:
    assert parse(f"name=x\nconnector.class=a{' ' * 100_000}b").klass.endswith(" b")
