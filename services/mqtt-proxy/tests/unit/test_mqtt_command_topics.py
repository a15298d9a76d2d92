"""Topics of commands and answers, what may be subscribed to, and who may."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given
from pydantic import ValidationError

from isotherm.kcql.filters import matches_levels
from isotherm.mqtt_proxy.access.acl import covers, overlaps, parse_acl
from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.codec.packets import Subscribe
from isotherm.mqtt_proxy.commands.command_topics import CommandTopics, Scope
from isotherm.mqtt_proxy.commands.grants import Grantee, Grants
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.sections.commands import CommandSettings
from isotherm.mqtt_proxy.sessions.store import Subscription
from isotherm.mqtt_proxy.settings import ProxySettings

DEFAULTS = CommandSettings()
TOPICS = CommandTopics(DEFAULTS.topic, DEFAULTS.response_topic)
WITHOUT_ID = CommandTopics("devices/{device}/commands/{name}", DEFAULTS.response_topic)

texts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=30)
LEVELS = st.lists(st.sampled_from(["a", "b", "+", "$c"]), min_size=1, max_size=4)
filters = st.builds(lambda levels, is_open: [*levels, "#"] if is_open else levels, LEVELS, st.booleans())
topics = st.lists(st.sampled_from(["a", "b", "", "$c"]), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("topic_filter", "scope"),
    [
        ("devices/attic/commands/#", Scope("attic", None)),
        ("devices/attic/commands/+/+", Scope("attic", None)),
        ("devices/attic/commands/+/#", Scope("attic", None)),
        ("devices/attic/commands/set/+", Scope("attic", "set")),
        ("devices/attic/commands/set/#", Scope("attic", "set")),
        ("devices/attic/commands/set/+/#", Scope("attic", "set")),
        ("devices/attic/commands/set/c1", None),
        ("devices/attic/commands/set/c1/#", None),
        ("devices/attic/commands/+", None),
        ("devices/+/commands/#", None),
        ("devices/attic/#", None),
        ("devices/attic/commands", None),
        ("devices//commands/#", None),
        ("#", None),
        ("+/+/+/+/+", None),
    ],
)
def test_what_is_a_filter_of_commands(topic_filter: str, scope: Scope | None) -> None:
    assert TOPICS.scope(topic_filter) == scope


@pytest.mark.parametrize(
    ("topic_filter", "scope"),
    [
        ("devices/attic/commands/#", Scope("attic", None)),
        ("devices/attic/commands/+", Scope("attic", None)),
        ("devices/attic/commands/set", Scope("attic", "set")),
        ("devices/attic/commands/set/#", Scope("attic", "set")),
        ("devices/+/commands/#", None),
        ("devices/attic/#", None),
        ("devices/attic/commands", None),
        ("#", None),
        ("+/+/+/+", None),
    ],
)
def test_what_is_a_filter_of_commands_without_their_ids(topic_filter: str, scope: Scope | None) -> None:
    assert WITHOUT_ID.scope(topic_filter) == scope


@given(device_id=texts, name=texts, command_id=texts)
def test_a_filter_of_a_device_matches_the_topics_of_its_commands(device_id: str, name: str, command_id: str) -> None:
    for topics in (TOPICS, WITHOUT_ID):
        topic = topics.topic(device_id, name, command_id)
        if topic is None:
            assert any(sign in device_id + name for sign in "/+#")
            continue
        mine = f"devices/{device_id}/commands/#"
        assert matches_levels(mine.split("/"), topic.split("/"))
        assert topics.scope(mine) == Scope(device_id, None)


@given(device_id=texts, command_id=texts)
def test_an_answer_finds_its_command_whatever_its_id_holds(device_id: str, command_id: str) -> None:
    topic = TOPICS.response_topic(device_id, command_id)
    if any(sign in device_id for sign in "/+#"):
        assert topic is None
    else:
        assert topic is not None
        assert TOPICS.answered(topic) == (device_id, command_id)
        levels = topic.split("/")
        assert all(TOPICS.may_be_answers([*levels[:at], "x", *levels[at + 1 :]], at) for at in range(len(levels)))


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "a\0"])
def test_a_name_that_is_no_level_has_no_topic(name: str) -> None:
    assert TOPICS.topic("attic", name, "c1") is None


def test_topics_that_are_no_answers() -> None:
    for topic in ("devices/attic/temperature", "devices/attic/responses", "devices//responses/x", "a/b/c/d"):
        assert TOPICS.answered(topic) is None
    assert not TOPICS.may_be_answers(["devices", "attic", "temperature", "x"], 1)
    assert not TOPICS.may_be_answers(["devices", "attic", "responses"], 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"topic": "commands/{name}"},
        {"topic": "{device}/{name}/x"},
        {"topic": "{device}/{command}/{name}"},
        {"topic": "{device}/{command}"},
        {"topic": "{device}/{device}/{name}"},
        {"topic": "x-{device}/{device}/{name}"},
        {"response_topic": "{device}/responses"},
        {"response_topic": "+/{device}/{command}"},
    ],
)
def test_templates_that_cannot_be_used(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        CommandSettings(**settings)


@given(rule=filters, topic_filter=filters, topic=topics)
def test_a_rule_covers_a_filter_only_if_it_matches_all_of_its_topics(
    rule: list[str], topic_filter: list[str], topic: list[str]
) -> None:
    assume(matches_levels(topic_filter, topic))
    if covers(rule, topic_filter):
        assert matches_levels(rule, topic)
    if matches_levels(rule, topic):
        assert overlaps(rule, topic_filter)
        assert overlaps(topic_filter, rule)


@given(topic_filter=filters)
def test_a_filter_covers_and_overlaps_itself(topic_filter: list[str]) -> None:
    assert covers(topic_filter, topic_filter)
    assert overlaps(topic_filter, topic_filter)


ACL = parse_acl(
    """
user gateway
topic read devices/+/commands/#
topic deny devices/vault/#
user reader
topic write devices/reader/commands/#
pattern read devices/%c/commands/+
""".splitlines()
)


@pytest.mark.parametrize(
    ("client_id", "username", "topic_filter", "is_allowed"),
    [
        ("gw", "gateway", "devices/attic/commands/#", True),
        ("gw", "gateway", "devices/vault/commands/#", False),
        ("gw", "gateway", "devices/+/commands/#", False),
        ("attic", None, "devices/attic/commands/+", True),
        ("attic", None, "devices/attic/commands/set", True),
        ("attic", None, "devices/attic/commands/#", False),
        ("attic", None, "devices/cellar/commands/set", False),
        ("reader", "reader", "devices/reader/commands/#", False),
    ],
)
def test_read_rules_say_what_may_be_subscribed_to(
    client_id: str, username: str | None, topic_filter: str, is_allowed: bool
) -> None:
    assert ACL.may_subscribe(topic_filter, client_id=client_id, username=username) is is_allowed


def access(**settings: object) -> AccessControl:
    return AccessControl(ProxySettings(routes="INSERT INTO t SELECT * FROM a", **settings), Metrics())


def grants(made: AccessControl, grantee: Grantee, maximum: int = 3) -> Grants:
    return Grants(WITHOUT_ID, made, grantee, maximum)


def test_where_nobody_is_authenticated_anybody_subscribes_up_to_a_maximum() -> None:
    made = grants(access(allow_anonymous=True), Grantee("c", None, None))
    asked = [("devices/a/commands/#", 2), ("devices/b/commands/+", 0), ("$share/g/devices/a/commands/#", 1), ("#", 1)]
    after, reasons = made.grant((), Subscribe(1, [*asked, ("devices/c/commands/x", 1), ("devices/d/commands/x", 1)], 9))
    assert reasons == [1, 0, 0x9E, 0x87, 1, 0x97]
    made.set(after)
    assert made.devices == {"a", "b", "c"}
    assert (made.qos_of("a", "any"), made.qos_of("b", "any"), made.qos_of("c", "y")) == (1, 0, None)
    assert made.subscription_ids("a", "any") == [9]
    again, _ = made.grant(after, Subscribe(2, [("devices/a/commands/#", 0)]))
    assert Subscription("devices/a/commands/#", 0) in again, "replaced"
    assert len(again) == 3


@pytest.mark.parametrize(
    ("policy", "device", "is_allowed"),
    [("payload", "client", True), ("payload", "user", True), ("user", "client", False), ("user", "user", True)],
)
def test_where_clients_are_authenticated_each_is_its_own_device(
    tmp_path_factory: pytest.TempPathFactory, policy: str, device: str, is_allowed: bool
) -> None:
    passwords = tmp_path_factory.mktemp("access") / "passwords"
    passwords.write_text("")
    made = access(password_file=str(passwords), identity={"device_id": policy})
    _, (reason,) = grants(made, Grantee("client", "user", "user")).grant(
        (), Subscribe(1, [(f"devices/{device}/commands/#", 1)])
    )
    assert reason == (1 if is_allowed else 0x87)


def test_rules_that_change_end_what_they_allowed(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("access") / "acl"
    path.write_text("pattern read devices/%c/commands/#\n")
    control = access(allow_anonymous=True, acl_file=str(path))
    made = grants(control, Grantee("attic", None, None))
    made.set((Subscription("devices/attic/commands/#", 1),))
    assert made.qos_of("attic", "set") == 1
    path.write_text("pattern write devices/%c/temperature\n")
    control.refresh()
    assert made.qos_of("attic", "set") is None
