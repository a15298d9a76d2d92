"""Validation: every problem at once, old names, clauses that a connector does not use."""

from __future__ import annotations

import pytest

from isotherm.connector.config.converters import converter_keys
from isotherm.connector.config.definitions import (
    Definition,
    Importance,
    Key,
    Type,
    common_keys,
    consumer_keys,
    error_keys,
    with_short_names,
)
from isotherm.connector.config.files import from_mapping
from isotherm.connector.config.validation import (
    InvalidConfigError,
    Validated,
    source_problems,
    validate,
)

PREFIX = "connect.store"
DEFINITION = Definition(
    klass="isotherm.StoreSink",
    kind="sink",
    keys=with_short_names(
        PREFIX,
        (
            *common_keys("isotherm.StoreSink"),
            *consumer_keys(),
            *converter_keys(),
            Key(f"{PREFIX}.kcql", Type.STRING, None, "Statements.", Importance.HIGH, required=True),
            Key(f"{PREFIX}.hosts", Type.LIST, "localhost", "Hosts.", aliases=("connect.old.store.hosts",)),
            Key(f"{PREFIX}.port", Type.INT, "9", "Port.", minimum=1, maximum=65535),
            Key(f"{PREFIX}.password", Type.PASSWORD, "", "Password.", allowed=("abc",)),
            Key(f"{PREFIX}.ratio", Type.DOUBLE, "0.5", "Ratio.", maximum=1),
            Key(f"{PREFIX}.keep.alive", Type.STRING, None, "Old.", without_effect="there is no such option any more"),
            *error_keys(PREFIX, "connect.old.store"),
        ),
    ),
    aliases=("store", "com.old.StoreSinkConnector"),
    kcql_key=f"{PREFIX}.kcql",
    kcql_clauses=frozenset(("PK", "WITHTIMESTAMP")),
    clause_reasons=(("TTL", "nothing expires here"),),
    open_prefixes=("consumer.override.",),
)


def checked(**config: str) -> Validated:
    base = {"name": "n", "connector.class": "store", f"{PREFIX}.kcql": "INSERT INTO a SELECT * FROM t"}
    return validate(DEFINITION, from_mapping(base | {key.replace("__", "."): value for key, value in config.items()}))


def problems(**config: str) -> list[str]:
    with pytest.raises(InvalidConfigError) as caught:
        checked(**config)
    return list(caught.value.problems)


def test_defaults_are_filled_in_and_typed() -> None:
    config = checked(topics="t, u")
    assert config.integer(f"{PREFIX}.port") == 9
    assert config.items("topics") == ["t", "u"]
    assert config.integer("tasks.max") == 1
    assert config.flag("errors.deadletterqueue.enable") is False
    assert "topics" in config.given
    assert f"{PREFIX}.port" not in config.given


@pytest.mark.parametrize("name", ["connect__old__store__hosts", "connect__store__hosts", "hosts"])
def test_old_and_short_names_are_the_same_key(name: str) -> None:
    assert checked(**{name: "a,b"}).items(f"{PREFIX}.hosts") == ["a", "b"]


def test_max_tasks_and_the_error_keys_of_the_old_prefix() -> None:
    config = checked(max__tasks="3", connect__old__store__error__policy="NOOP")
    assert config.integer("tasks.max") == 3
    assert config.text(f"{PREFIX}.error.policy") == "NOOP"


def test_two_names_of_one_key_must_agree() -> None:
    assert problems(hosts="a", connect__store__hosts="b") == [
        "connect.store.hosts: contradicts hosts; they are names of one key"
    ]
    assert checked(hosts="a", connect__store__hosts="a").items(f"{PREFIX}.hosts") == ["a"]


def test_every_problem_at_once_with_key_value_and_what_is_allowed() -> None:
    found = problems(
        port="70000",
        ratio="much",
        error__policy="EXPLODE",
        max__tasks="0",
        errors__tolerance="some",
        password="hunter2",
        errors__deadletterqueue__enable="maybe",
    )
    assert "connect.store.port: '70000' is not allowed; expected a whole number at least 1 at most 65535" in found
    assert "connect.store.ratio: 'much' is not allowed; expected a number at most 1" in found
    assert "connect.store.error.policy: 'EXPLODE' is not allowed; expected one of THROW, NOOP, RETRY" in found
    assert "tasks.max: '0' is not allowed; expected a whole number at least 1" in found
    assert "errors.tolerance: 'some' is not allowed; expected one of none, all" in found
    assert "errors.deadletterqueue.enable: 'maybe' is not allowed; expected true or false" in found
    assert "connect.store.password: ****** is not allowed; expected one of abc" in found
    assert len(found) == 7


def test_a_required_key_and_a_foreign_class() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        validate(DEFINITION, from_mapping({"name": "n", "connector.class": "com.other.Sink"}))
    assert list(caught.value.problems) == [
        "connect.store.kcql: missing",
        "connector.class: 'com.other.Sink' is not isotherm.StoreSink",
    ]


def test_unknown_keys_are_a_notice_that_names_the_nearest() -> None:
    config = checked(connect__store__prot="9", wibble="1", consumer__override__fetch__min__bytes="7")
    notices = {notice.key: notice.message for notice in config.notices}
    assert notices["connect.store.prot"] == "unknown key; did you mean connect.store.port?"
    assert notices["wibble"] == "unknown key, it has no effect"
    assert "consumer.override.fetch.min.bytes" not in notices
    assert config.under("consumer.override.") == {"fetch.min.bytes": "7"}


def test_keys_without_effect_are_a_notice() -> None:
    (notice,) = checked(keep__alive="true").notices
    assert str(notice) == "connect.store.keep.alive: has no effect: there is no such option any more"


def test_a_reference_to_a_secret_is_not_checked_before_it_is_resolved() -> None:
    assert checked(port="${env:PORT}").text(f"{PREFIX}.port") == "${env:PORT}"


def test_kcql_errors_keep_their_caret() -> None:
    (problem,) = problems(connect__store__kcql="INSERT INTO a SELECT * FROM b garbage")
    assert problem.startswith("connect.store.kcql: KCQL: line 1, column 31")
    assert "^^^^^^^" in problem


def test_clauses_that_the_connector_does_not_use_are_refused() -> None:
    found = problems(connect__store__kcql="INSERT INTO a SELECT * FROM b IGNORE x TTL=5; SELECT * FROM c PK now")
    assert any(
        "IGNORE has no effect in" in problem and "not used by isotherm.StoreSink" in problem for problem in found
    )
    assert any("TTL has no effect in" in problem and "nothing expires here" in problem for problem in found)
    assert any("has no INSERT INTO or UPSERT INTO" in problem for problem in found)


def test_functions_are_refused() -> None:
    (problem,) = problems(connect__store__kcql="INSERT INTO a SELECT now() FROM b")
    assert "there is no function now()" in problem


def test_statements_and_topics_must_name_each_other() -> None:
    config = checked(connect__store__kcql="INSERT INTO a SELECT * FROM one; INSERT INTO a SELECT * FROM two")
    found = [str(problem) for problem in source_problems(config.statements, ["one", "three"])]
    assert len(found) == 2
    assert "'two' is read by" in found[0]
    assert "no KCQL statement reads 'three'" in found[1]
    everything = checked(connect__store__kcql="INSERT INTO a SELECT * FROM `*`")
    assert source_problems(everything.statements, ["any"]) == []


@pytest.mark.parametrize("key", ["errors__deadletterqueue__topic__name", "dead__letters__topic"])
@pytest.mark.parametrize("topic", ["isotherm.connectors", "isotherm.anything", "__consumer_offsets"])
def test_no_dead_letters_go_into_topics_of_control(key: str, topic: str) -> None:
    (problem,) = problems(**{key: topic})
    assert problem == (
        f"errors.deadletterqueue.topic.name: {topic!r} is not allowed: "
        "topics isotherm.* and __* are not for dead letters"
    )


def test_no_dead_letters_go_into_what_the_connector_reads() -> None:
    said = "the connector reads it itself"
    assert said in problems(topics="t, u", dead__letters__topic="u")[0]
    assert said in problems(topics__regex="n.*", dead__letters="true")[0]
    assert problems(topics="n.dead-letters", dead__letters="true") == [
        "errors.deadletterqueue.enable: 'n.dead-letters' is not allowed: the connector reads it itself, and would get "
        "each dead letter again"
    ]
    assert checked(topics="t", dead__letters__topic="u").text("errors.deadletterqueue.topic.name") == "u"
    assert checked(topics__regex="(", dead__letters="true").flag("errors.deadletterqueue.enable")
    assert not checked(dead__letters__topic="${env:LETTERS}").is_resolved("errors.deadletterqueue.topic.name")


def test_a_class_without_such_keys_is_held_to_it_too() -> None:
    definition = Definition("isotherm.Bare", "sink", common_keys("isotherm.Bare"))
    config = {"name": "n", "connector.class": "isotherm.Bare", "dead.letters.topic": "isotherm.tasks"}
    with pytest.raises(InvalidConfigError, match=r"'isotherm\.tasks' is not allowed"):
        validate(definition, from_mapping(config))


def test_a_refused_address_does_not_repeat_its_password() -> None:
    (problem,) = problems(error__policy="http://elastic:pw12345@es:9200")
    assert "'http://elastic:******@es:9200' is not allowed" in problem


@pytest.mark.parametrize(
    ("key", "value"),
    [("enable.auto.commit", "true"), ("isolation.level", "read_uncommitted"), ("group.id", "mine")],
)
def test_override_on_which_a_promise_rests_is_a_problem(key: str, value: str) -> None:
    override = f"consumer.override.{key}"
    (problem,) = problems(**{override: value})
    assert problem.startswith(f"{override}: {value!r} is not allowed")


def test_override_that_keeps_the_promises_is_passed_on() -> None:
    config = checked(consumer__override__auto__offset__reset="latest")
    assert config.under("consumer.override.") == {"auto.offset.reset": "latest"}


def test_a_key_delimiter_without_a_key_is_told_and_taken() -> None:
    (notice,) = checked(connect__store__kcql="INSERT INTO a SELECT _.key.* FROM t KEYDELIMITER='|'").notices
    assert "KEYDELIMITER has no effect without WITHKEY" in notice.message
