"""ACL files in the format of mosquitto, for publishers only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.mqtt_proxy.access.acl import AclLineError, parse_acl

ACL = parse_acl(
    """
# clients without a name
topic write public/#
topic read secret/#

user anna
topic devices/+/temperature
topic deny devices/vault/temperature
topic write with space/x

user bert
topic read devices/#
topic write $SYS/bert

pattern write devices/%c/status
pattern readwrite users/%u/#
pattern deny users/%u/private
""".splitlines()
)


@pytest.mark.parametrize(
    ("username", "topic", "allowed"),
    [
        (None, "public/a/b", True),
        (None, "public", True),
        (None, "secret/a", False),
        (None, "devices/client/status", True),
        (None, "users//x", False),
        ("anna", "devices/attic/temperature", True),
        ("anna", "devices/vault/temperature", False),
        ("anna", "devices/attic/cellar/temperature", False),
        ("anna", "devices/attic", False),
        ("anna", "public/a", False),
        ("anna", "with space/x", True),
        ("anna", "devices/client/status", True),
        ("anna", "devices/other/status", False),
        ("anna", "users/anna/x/y", True),
        ("anna", "users/anna/private", False),
        ("anna", "users/bert/x", False),
        ("bert", "devices/attic/temperature", False),
        ("bert", "$SYS/bert", True),
        ("unknown", "users/unknown/x", True),
        ("unknown", "public/a", False),
    ],
)
def test_who_may_publish_where(username: str | None, topic: str, allowed: bool) -> None:
    assert ACL.may_publish(topic, client_id="client", username=username) is allowed


def test_an_empty_file_allows_nothing() -> None:
    assert not parse_acl([]).may_publish("a", client_id="c", username="u")


def test_a_wildcard_at_the_beginning_leaves_the_servers_topics_out() -> None:
    acl = parse_acl(["topic #", "topic +/x"])
    assert acl.may_publish("a/b", client_id="c", username=None)
    assert not acl.may_publish("$SYS/x", client_id="c", username=None)


@given(name=st.text(max_size=12), topic=st.text(alphabet="ab/+#%cu", min_size=1, max_size=12))
def test_no_name_brings_a_wildcard_or_a_level_of_its_own(name: str, topic: str) -> None:
    acl = parse_acl(["pattern write devices/%c/x", "pattern write users/%u"])
    if acl.may_publish(f"devices/{topic}/x", client_id=name, username=None):
        assert topic == name
    if acl.may_publish(f"users/{topic}", client_id="c", username=name):
        assert topic == name
        assert "/" not in name


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("user", "expected user NAME"),
        ("topic", "expected user NAME"),
        ("allow a/b", "expected user NAME"),
        ("topic write a/#/b", "wildcard"),
        ("topic a+/b", "wildcard"),
        ("pattern write devices/x%c", "whole levels"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str, says: str) -> None:
    with pytest.raises(AclLineError, match=rf"^line 2: .*{says}"):
        parse_acl(["topic a", line])


def test_an_access_word_alone_is_a_topic() -> None:
    assert parse_acl(["topic write"]).may_publish("write", client_id="c", username=None)
