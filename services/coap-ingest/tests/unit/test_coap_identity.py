"""The device of a path, and the access rules for paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.coap_ingest.listener.identity import PathAcl, device_of_path, parse_acl


@pytest.mark.parametrize(
    ("source", "path", "device"),
    [
        ("devices/*", "devices/7", "7"),
        ("homes/*/rooms/*", "homes/a/rooms/b", "a"),
        ("devices/t-*/data", "devices/t-1/data", "t-1"),
        ("*", "any/thing/7", "7"),
        ("sensors", "sensors", "sensors"),
        ("/devices/7", "devices/7", "7"),
    ],
)
def test_the_asterisk_of_from_selects_the_device_in_the_path(source: str, path: str, device: str) -> None:
    assert device_of_path(source, tuple(path.split("/"))) == device


def test_an_identity_may_send_only_to_the_paths_of_its_rules() -> None:
    acl = parse_acl("device-1: devices/1, rooms/*/1 ; gateway: *\n*: own/%u/data")
    allowed = {
        "device-1": ["devices/1", "rooms/kitchen/1", "own/device-1/data"],
        "gateway": ["devices/1", "x", "own/device-1/data"],
        "stranger": ["own/stranger/data"],
    }
    paths = {path for found in allowed.values() for path in found} | {"devices/2", "rooms/1", "devices/1/x"}
    for identity, expected in allowed.items():
        found = {path for path in paths if acl.permits(identity, tuple(path.split("/")))}
        assert found == (paths if identity == "gateway" else set(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "names no path"),
        ("device-1", "rule 1 is not identity: path"),
        ("a: b; c:", "rule 2 is not identity: path"),
        ("a: b//c", "has an empty segment"),
        ("a: b, ", "has an empty segment"),
        ("a: devices/x%u", "%u must be a whole segment"),
    ],
)
def test_an_invalid_rule_is_named(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_acl(text)


@given(st.text(min_size=1), st.lists(st.text(), min_size=1, max_size=4))
def test_no_identity_reaches_beyond_its_own_segment(identity: str, path: list[str]) -> None:
    acl = PathAcl((("*", "devices/%u"),))
    assert acl.permits(identity, ("devices", identity))
    assert acl.permits(identity, tuple(path)) == (path == ["devices", identity])
