"""The link format, link filters, resource patterns, and the restart detector."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.coap.link_format import Link, parse_links, resource_of
from isotherm.coap_ingest.coap.resource import Resource, Server
from isotherm.coap_ingest.ingest.resource_pattern import ResourcePattern, is_pattern
from isotherm.coap_ingest.observe.link_filter import LinkFilter
from isotherm.coap_ingest.observe.restart_detector import AskSoon, RestartDetector

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
def test_text_that_is_no_list_is_refused_with_its_position(text: str) -> None:
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
        (LinkFilter(), True),
        (LinkFilter(types=("temperature",)), True),
        (LinkFilter(types=("temp*",)), True),
        (LinkFilter(types=("temp",)), False),
        (LinkFilter(types=("x", "humidity")), False),
        (LinkFilter(interfaces=("sensor",)), True),
        (LinkFilter(types=("temperature",), interfaces=("actuator",)), False),
    ],
)
def test_a_link_needs_one_of_the_types_and_one_of_the_interfaces(filters: LinkFilter, passes: bool) -> None:
    assert filters.accepts(Link("/t", ("temperature", "y"), ("sensor",), is_observable=True)) is passes


def test_a_resource_that_is_not_observable_is_accepted_only_when_configured() -> None:
    assert not LinkFilter().accepts(Link("/t"))
    assert LinkFilter(observable_only=False).accepts(Link("/t"))


def test_patterns_stay_within_their_segment() -> None:
    assert is_pattern("sensors/*")
    assert not is_pattern("sensors?q=*")
    assert ResourcePattern("*").matches(("a", "b", "c"))
    assert ResourcePattern("/a/*/t*p").matches(("a", "anything", "temp"))
    assert not ResourcePattern("a/*").matches(("a", "b", "c"))
    assert not ResourcePattern("a.c/*").matches(("abc", "d"))
    assert ResourcePattern("a%20b/*").matches(("a b", "x"))


def test_a_restart_is_reported_once_to_all_other_observers() -> None:
    notified: list[str] = []
    now = 0.0
    detector = RestartDetector(clock=lambda: now)

    def observer(name: str) -> AskSoon:
        def ask_soon(_within_ms: float) -> None:
            notified.append(name)

        detector.subscribe(ask_soon)
        return ask_soon

    a, b, c = observer("a"), observer("b"), observer("c")
    detector.report_restart(a)
    detector.report_restart(b)
    assert notified == ["b", "c"]
    detector.unsubscribe(c)
    now = 11.0
    detector.report_restart(b)
    assert notified == ["b", "c", "a"]
