"""Lists of links, filters and patterns; and what keepers of one server tell each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.coap.resource import Resource, Server
from isotherm.coap_ingest.observe.discovery import (
    Filters,
    Link,
    Pattern,
    is_pattern,
    parse_links,
    resource_of,
)
from isotherm.coap_ingest.observe.restart_detector import Endpoint, Hasten

SERVER = Server("coap", "localhost", 5633)


def test_the_list_of_rfc_6690_is_read() -> None:
    text = (
        '</sensors>;ct=40;title="Sensor, \\"Index\\"; all",</sensors/temp>;rt="temperature-c x";if="sensor";obs, '
        '<http://www.example.com/t>;anchor="/sensors";rel="describedby",</t>;rt=a;rt=b'
    )
    assert parse_links(text) == [
        Link("/sensors"),
        Link("/sensors/temp", ("temperature-c", "x"), ("sensor",), is_observable=True),
        Link("http://www.example.com/t"),
        Link("/t", ("a",)),
    ]
    assert parse_links("") == []


@pytest.mark.parametrize("text", ["sensors", "</a", '</a>;rt="x', "</a> </b>", "</a>;;"])
def test_what_is_no_list_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ValueError, match="no link at character 0"):
        parse_links(text)


@given(st.text(max_size=200))
def test_any_text_is_a_list_or_refused(text: str) -> None:
    try:
        links = parse_links(text)
    except ValueError:
        return
    for link in links:
        resource_of(SERVER, link)


def test_only_resources_of_the_server_itself_are_taken() -> None:
    assert resource_of(SERVER, Link("/a/b%20c?u=x")) == Resource(SERVER, ("a", "b c"), ("u=x",))
    for target in ("coap://other/a", "//other/a", "a", "/", "/a//b", "/.well-known/core", "/%ff", "http://[x"):
        assert resource_of(SERVER, Link(target)) is None


@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        (Filters(), True),
        (Filters(types=("temperature",)), True),
        (Filters(types=("temp*",)), True),
        (Filters(types=("temp",)), False),
        (Filters(types=("x", "humidity")), False),
        (Filters(interfaces=("sensor",)), True),
        (Filters(types=("temperature",), interfaces=("actuator",)), False),
    ],
)
def test_filters_ask_for_one_of_each(filters: Filters, passes: bool) -> None:
    assert filters.pass_(Link("/t", ("temperature", "y"), ("sensor",), is_observable=True)) is passes


def test_what_cannot_be_observed_is_taken_only_when_told() -> None:
    assert not Filters().pass_(Link("/t"))
    assert Filters(observable_only=False).pass_(Link("/t"))


def test_patterns_stay_within_their_segment() -> None:
    assert is_pattern("sensors/*")
    assert not is_pattern("sensors?q=*")
    assert Pattern("*").matches(("a", "b", "c"))
    assert Pattern("/a/*/t*p").matches(("a", "anything", "temp"))
    assert not Pattern("a/*").matches(("a", "b", "c"))
    assert not Pattern("a.c/*").matches(("abc", "d"))
    assert Pattern("a%20b/*").matches(("a b", "x"))


def test_one_restart_is_told_once_to_everybody_else() -> None:
    told: list[str] = []
    now = 0.0
    endpoint = Endpoint(clock=lambda: now)

    def keeper(name: str) -> Hasten:
        def hasten(_within_ms: float) -> None:
            told.append(name)

        endpoint.join(hasten)
        return hasten

    a, b, c = keeper("a"), keeper("b"), keeper("c")
    endpoint.restarted(a)
    endpoint.restarted(b)
    assert told == ["b", "c"]
    endpoint.leave(c)
    now = 11.0
    endpoint.restarted(b)
    assert told == ["b", "c", "a"]
