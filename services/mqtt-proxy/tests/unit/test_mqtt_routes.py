"""Routes: which publish goes where, with which defaults, and which settings are refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm import kcql
from isotherm.mqtt_proxy.ingest.routes import RouteError, Router, _entries, kcql_routes, regex_routes

METRICS = frozenset(("temperature", "brightness"))


def kcql_router(text: str, *, device_level: int | None = None, first: bool = False) -> Router:
    return Router(kcql_routes(text, device_level=device_level, metrics=METRICS), first_match_only=first)


@pytest.mark.parametrize(
    ("topic", "targets"),
    [
        ("kitchen/temperature", ["temperature"]),
        ("temperature", ["temperature"]),
        ("temperature/kitchen", []),
        ("a/brightness", ["brightness"]),
        ("brightness-temperature", ["temperature"]),
    ],
)
def test_the_documents_regex_list(topic: str, targets: list[str]) -> None:
    routes = regex_routes("temperature:.*temperature, brightness:.*brightness", device_level=None)
    found = Router(routes, first_match_only=False).resolve(topic)
    assert [(r.target, r.metric) for r in found] == [(target, target) for target in targets]


def test_a_regex_may_hold_commas_and_colons() -> None:
    routes = regex_routes("a:x{1,2}, b.c:y:z", device_level=1)
    router = Router(routes, first_match_only=False)
    assert [r.target for r in router.resolve("xx")] == ["a"]
    assert [r.target for r in router.resolve("y:z")] == ["b.c"]


@pytest.mark.parametrize("text", ["temperature", ":x", "temperature:", "a b:x", "temperature:(", "a:x, :y"])
def test_a_bad_regex_list_is_refused(text: str) -> None:
    with pytest.raises(RouteError):
        regex_routes(text, device_level=None)


@pytest.mark.parametrize(
    ("topic", "matched", "device", "metric"),
    [
        ("devices/d1/temperature", True, "d1", "temperature"),
        ("devices//temperature", True, None, "temperature"),
        ("devices/d1/x/temperature", False, None, None),
        ("Devices/d1/temperature", False, None, None),
    ],
)
def test_a_kcql_route(topic: str, matched: bool, device: str | None, metric: str | None) -> None:
    router = kcql_router("INSERT INTO thermostat.data SELECT id AS device_id, t AS value FROM devices/+/temperature")
    found = router.resolve(topic)
    assert [(r.target, r.device_id, r.metric) for r in found] == (
        [("thermostat.data", device, metric)] if matched else []
    )


def test_a_target_that_is_a_metric_names_it() -> None:
    (found,) = kcql_router("INSERT INTO brightness SELECT * FROM rooms/#").resolve("rooms/attic/lamp/")
    assert (found.metric, found.device_id) == ("brightness", None)


@pytest.mark.parametrize(
    ("source", "level", "device"),
    [("a/+/+/t", None, None), ("a/+/+/t", 2, "y"), ("a/#", 1, "x"), ("a/#", 9, None), ("$share/g/a/+/y/t", None, "x")],
)
def test_which_level_is_the_device(source: str, level: int | None, device: str | None) -> None:
    (found,) = kcql_router(f"INSERT INTO t SELECT * FROM {source}", device_level=level).resolve("a/x/y/t")
    assert found.device_id == device


GATEWAYS = "INSERT INTO t SELECT * FROM a/+/t"


@pytest.mark.parametrize(
    ("routes", "topic", "level"),
    [
        (GATEWAYS, "a/x/t", 1),
        (GATEWAYS, "a//t", None),
        (GATEWAYS, "b/x/t", None),
        ("INSERT INTO t SELECT * FROM a/b/+", "a/b/x", None),
        ("INSERT INTO brightness SELECT * FROM a/b/+", "a/b/x", 2),
        ("INSERT INTO t SELECT * FROM +/t", "x/t", None),
        ("INSERT INTO t SELECT * FROM a/#", "a/x/t", None),
        (f"{GATEWAYS}; INSERT INTO u SELECT * FROM a/special/t", "a/x/t", None),
        (f"{GATEWAYS}; INSERT INTO u SELECT * FROM a/special/#", "a/x/t", None),
        (f"{GATEWAYS}; INSERT INTO u SELECT * FROM b/special/t", "a/x/t", 1),
        (f"{GATEWAYS}; INSERT INTO u SELECT * FROM a/special", "a/x/t", 1),
        (f"{GATEWAYS}; INSERT INTO u SELECT * FROM a/+/t", "a/x/t", None),
        (f"{GATEWAYS}; INSERT INTO u SELECT * FROM b/#", "a/x/t", 1),
    ],
)
def test_which_level_only_names_the_device(routes: str, topic: str, level: int | None) -> None:
    assert kcql_router(routes).device_level(topic) == level


def test_no_level_only_names_the_device_beside_a_regular_expression() -> None:
    routes = [*kcql_routes(GATEWAYS, device_level=None, metrics=frozenset()), *regex_routes("u:b.*", device_level=None)]
    assert Router(routes, first_match_only=False).device_level("a/x/t") is None


def test_first_or_all() -> None:
    text = "INSERT INTO one SELECT * FROM a/#; INSERT INTO two SELECT * FROM a/b"
    assert [r.target for r in kcql_router(text).resolve("a/b")] == ["one", "two"]
    assert [r.target for r in kcql_router(text, first=True).resolve("a/b")] == ["one"]


def test_targets_known_before_any_publish() -> None:
    router = kcql_router("INSERT INTO a SELECT * FROM x; INSERT INTO a SELECT * FROM y; INSERT INTO $ SELECT * FROM z")
    assert router.targets == ("a",)
    assert router.has_dynamic_targets


def test_raw_targets_need_no_schema() -> None:
    router = kcql_router("INSERT INTO a SELECT * FROM x; INSERT INTO b SELECT * FROM y WITH FORMAT raw")
    assert (router.targets, router.raw_targets) == (("a",), ("b",))
    (route,) = regex_routes("c:.*", device_level=None, is_raw=True)
    assert Router([route], first_match_only=False).raw_targets == ("c",)
    with pytest.raises(RouteError, match="expect SensorReading"):
        regex_routes("temperature:.*", device_level=None, is_raw=True)


def test_an_mqtt_topic_as_target() -> None:
    (found,) = kcql_router("INSERT INTO $ SELECT * FROM a/#").resolve("a/b/")
    assert found.target is None
    assert found.route.target_of is not None
    assert found.route.target_of(kcql.Record(value={}, topic="a/b/")) == "a_b"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SELECT * FROM a", "INSERT INTO"),
        ("INSERT INTO a SELECT * FROM b PK c", "PK has no effect"),
        ("INSERT INTO a SELECT * FROM b TTL=5", "TTL has no effect"),
        ("INSERT INTO a SELECT * FROM b WITHKEY(x)", "readings are keyed by device"),
        ("INSERT INTO `a b` SELECT * FROM b", "not a Kafka topic"),
        ("INSERT INTO a SELECT * FROM b WITHFORMAT JSON", "WITHFORMAT JSON is not allowed; expected PROTOBUF or RAW"),
        ("INSERT INTO a SELECT x FROM b WITHFORMAT RAW", "takes SELECT"),
        ("INSERT INTO a SELECT * FROM b IGNORE x WITHFORMAT RAW", "takes SELECT"),
        ("INSERT INTO $ SELECT * FROM b WITHFORMAT RAW", "needs the name of a Kafka topic"),
        ("INSERT INTO `a b` SELECT * FROM b WITHFORMAT RAW", "not a Kafka topic"),
        ("INSERT INTO thermostat.data SELECT * FROM b WITHFORMAT RAW", "expect SensorReading"),
        ("INSERT INTO isotherm.tasks SELECT * FROM b WITHFORMAT RAW", "not for payloads of devices"),
        ("INSERT INTO __consumer_offsets SELECT * FROM b WITHFORMAT RAW", "not for payloads of devices"),
    ],
)
def test_statements_without_meaning_here_are_refused(text: str, says: str) -> None:
    with pytest.raises(RouteError, match=says):
        kcql_router(text)


def test_a_syntax_error_says_where() -> None:
    with pytest.raises(kcql.KcqlError) as refused:
        kcql_router("INSERT INTO a SELECT * FORM b")
    assert refused.value.line == 1


@given(st.lists(st.sampled_from(["a", ":", ",", "{", "}", "[", "]", " "]), max_size=12).map("".join))
def test_a_list_is_split_at_commas_outside_of_brackets(text: str) -> None:
    assert _entries(text) == [entry.strip() for entry in re.split(r",(?![^{\[]*[}\]])", text)]


@pytest.mark.parametrize("text", ["a:" + "," * 50_000, "a:x" + " " * 50_000 + "y,"], ids=["commas", "blanks"])
def test_a_long_list_is_split_in_linear_time(text: str) -> None:
    with pytest.raises(RouteError):
        regex_routes(text, device_level=None)


def test_a_regex_matches_in_linear_time_and_an_impossible_one_is_refused() -> None:
    (route,) = regex_routes("a:(x+)+y", device_level=None)
    assert not route.matches("x" * 10_000)
    for pattern in (r"a:(x)\1", "a:x{2000}", "a:(?!x).*", "a:(x"):
        with pytest.raises(RouteError, match=r"not a regular expression of RE2: [a-z]"):
            regex_routes(pattern, device_level=None)
