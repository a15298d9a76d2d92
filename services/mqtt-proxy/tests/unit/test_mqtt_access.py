"""Authentication and authorization by files that change while the proxy runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from isotherm.mqtt_proxy.access.authentication import AccessControl, PublishPermissions, Refused
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.settings import LimitSettings, ProxySettings, TlsSettings
from isotherm.servicekit.settings import SettingsError

ROUTES = "INSERT INTO t SELECT * FROM t"
# By mosquitto_passwd 2.0.11, password sesame-7.
ANNA = (
    "anna:$7$101$1hfxihBN+EiQb80V$"
    "kcSeDNY9kkM2HKZfRTheWidEp9NGDlozdLSH5bo0BQ2WGz2MCVLDb3Ss1CYyq1Br2g1I/IxbV7oXY5rRd0smRA==\n"
)


def access(**settings: object) -> AccessControl:
    return AccessControl(ProxySettings.model_validate({"routes": ROUTES, **settings}), Metrics())


async def outcome(
    made: AccessControl, username: str | None = None, password: bytes | None = None, common_name: str | None = None
) -> str | Reason | None:
    identity = await made.authenticate(
        client_id="c", address="10.0.0.1", username=username, password=password, common_name=common_name
    )
    return identity.reason if isinstance(identity, Refused) else identity.username


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text(ANNA)
    return path


async def test_with_a_password_file(password_file: Path) -> None:
    made = access(password_file=str(password_file))
    assert await outcome(made, "anna", b"sesame-7") == "anna"
    assert await outcome(made, "anna", b"wrong") is Reason.BAD_USER_NAME_OR_PASSWORD
    assert await outcome(made, "anna") is Reason.BAD_USER_NAME_OR_PASSWORD
    assert await outcome(made) is Reason.NOT_AUTHORIZED
    assert await outcome(access(password_file=str(password_file), allow_anonymous=True)) is None


async def test_a_name_that_nobody_verified_is_none() -> None:
    assert await outcome(access(allow_anonymous=True), "admin", b"x") is None


async def test_certificates() -> None:
    tls = TlsSettings(certfile="c", cafile="a")
    assert await outcome(access(tls=tls), common_name="attic") is None
    named = access(tls=TlsSettings(certfile="c", cafile="a", use_identity_as_username=True))
    assert await outcome(named, "admin", b"x", common_name="attic") == "attic"
    assert await outcome(named) is Reason.BAD_USER_NAME_OR_PASSWORD


async def test_a_certificate_is_not_enough_where_passwords_are_asked_for(password_file: Path) -> None:
    made = access(tls=TlsSettings(certfile="c", cafile="a"), password_file=str(password_file))
    assert await outcome(made, common_name="attic") is Reason.NOT_AUTHORIZED


async def test_guessing_ends_for_that_user_and_address_only(password_file: Path) -> None:
    made = access(password_file=str(password_file), limits=LimitSettings(failed_logins="3:3600"))
    for _ in range(3):
        assert await outcome(made, "anna", b"guess") is Reason.BAD_USER_NAME_OR_PASSWORD
    assert await outcome(made, "anna", b"sesame-7") is Reason.CONNECTION_RATE_EXCEEDED
    assert await outcome(made, "bert", b"guess") is Reason.BAD_USER_NAME_OR_PASSWORD


async def test_guessing_at_many_users_ends_for_the_address(password_file: Path) -> None:
    made = access(password_file=str(password_file), limits=LimitSettings(failed_logins_per_address="20:60"))
    found = await asyncio.gather(*(outcome(made, f"user-{number}", b"guess") for number in range(100)))
    assert found.count(Reason.BAD_USER_NAME_OR_PASSWORD) == 20
    assert found.count(Reason.CONNECTION_RATE_EXCEEDED) == 80
    assert await outcome(made, "anna", b"sesame-7") is Reason.CONNECTION_RATE_EXCEEDED


async def test_guesses_at_once_are_as_limited_as_in_a_row(password_file: Path) -> None:
    made = access(password_file=str(password_file))
    found = await asyncio.gather(*(outcome(made, "anna", b"guess") for _ in range(100)))
    assert found.count(Reason.BAD_USER_NAME_OR_PASSWORD) == 10
    assert found.count(Reason.CONNECTION_RATE_EXCEEDED) == 90


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({"allow_anonymous": True}, "payload"),
        ({"password_file": "users"}, "user"),
        ({"password_file": "users", "allow_anonymous": True}, "user"),
        ({"password_file": "users", "acl_file": "acl"}, "topic"),
        ({"tls": {"certfile": "c", "cafile": "a"}}, "user"),
        ({"password_file": "users", "identity": {"device_id": "payload"}}, "payload"),
        ({"allow_anonymous": True, "identity": {"device_id": "topic"}}, "topic"),
        ({"role": "bridge"}, "payload"),
    ],
)
def test_where_a_device_comes_from_by_default(settings: dict[str, object], policy: str) -> None:
    assert ProxySettings.model_validate({"routes": ROUTES, **settings}).device_policy == policy


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(password_file: Path) -> None:
    made = access(password_file=str(password_file))

    def logs_in(username: str) -> bool:
        return asyncio.run(outcome(made, username, b"sesame-7")) == username

    assert logs_in("anna")
    password_file.write_text(ANNA.replace("anna", "bert"))
    made.refresh()
    assert not logs_in("anna")
    assert logs_in("bert")
    with capture_logs() as logged:
        password_file.write_text("carl:in-the-clear\n")
        made.refresh()
        made.refresh()
    assert logs_in("bert")
    (problem,) = [str(entry) for entry in logged]
    assert f"{password_file}: line 1: user 'carl'" in problem
    assert "in-the-clear" not in problem
    password_file.unlink()
    made.refresh()
    assert logs_in("bert")


def test_permissions_follow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "acl"
    path.write_text("topic write a\n")
    made = access(allow_anonymous=True, acl_file=str(path))
    permissions = PublishPermissions("c", None)
    assert made.acl is not None
    assert permissions.may_publish(made.acl, "a")
    path.write_text("topic write b\n")
    os.utime(path, ns=(1, 1))
    made.refresh()
    assert not permissions.may_publish(made.acl, "a")
    assert permissions.may_publish(made.acl, "b")
    assert not any(permissions.may_publish(made.acl, f"many/{number}") for number in range(1_000))
    assert len(permissions._decisions) <= PublishPermissions._MAX_CACHED + 1


@pytest.mark.parametrize(
    ("certificates", "username", "permitted"),
    [(False, "anna", False), (False, None, True), (True, "sensor", True), (True, None, True)],
)
def test_a_will_is_permitted_by_the_rules_of_its_moment(
    tmp_path: Path, certificates: bool, username: str | None, permitted: bool
) -> None:
    path = tmp_path / "acl"
    path.write_text("topic write t\nuser anna\ntopic write other\n")
    tls = TlsSettings(certfile="c", cafile="a") if certificates else TlsSettings()
    metrics = Metrics()
    made = AccessControl(ProxySettings(routes=ROUTES, acl_file=str(path), tls=tls, allow_anonymous=True), metrics)
    assert made.permits_will(client_id="c", username=username, topic="t", qos=1) is permitted
    path.write_text("topic deny t\ntopic deny other\n")
    made.refresh()
    assert not made.permits_will(client_id="c", username=username, topic="t", qos=1)
    assert metrics.unauthorized == [0, 2 - permitted, 0]


def test_decisions_about_long_topics_take_no_memory(tmp_path: Path) -> None:
    """64 topics of 64 KB would take 4 MB for each connection."""
    path = tmp_path / "acl"
    path.write_text("topic write many/#\n")
    acl = access(allow_anonymous=True, acl_file=str(path)).acl
    permissions = PublishPermissions("c", None)
    assert acl is not None
    for number in range(10):
        assert permissions.may_publish(acl, f"many/{'x' * 300}/{number}")
        assert not permissions.may_publish(acl, f"other/{'x' * 300}/{number}")
    assert not permissions._decisions


@pytest.mark.parametrize("key", ["password_file", "acl_file"])
def test_a_file_that_cannot_be_used_at_the_start_is_named_with_its_line(tmp_path: Path, key: str) -> None:
    path = tmp_path / "file"
    with pytest.raises(SettingsError, match=rf"{key}: {path}: No such file"):
        access(**{key: str(path), "allow_anonymous": True})
    path.write_text("# fine\nnonsense\n")
    with pytest.raises(SettingsError, match=rf"{key}: {path}: line 2: expected"):
        access(**{key: str(path), "allow_anonymous": True})
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not UTF-8"):
        access(**{key: str(path), "allow_anonymous": True})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "no client could ever"),
        ({"allow_anonymous": True, "tls": {"use_identity_as_username": True}}, "needs tls.cafile"),
        (
            {"password_file": "p", "tls": {"certfile": "c", "cafile": "a", "use_identity_as_username": True}},
            "exclude each other",
        ),
        ({"allow_anonymous": True, "limits": {"messages_per_client": "fast"}}, "expected n:seconds"),
        ({"allow_anonymous": True, "limits": {"failed_logins": "1"}}, "expected n:seconds"),
        ({"allow_anonymous": True, "identity": {"device_id": "user"}}, "needs password_file or tls.cafile"),
        ({"role": "bridge", "identity": {"device_id": "user"}}, "allowed here: payload, topic"),
        ({"role": "worker", "identity": {"device_id": "user"}}, "allowed here: payload, topic"),
        ({"allow_anonymous": True, "identity": {"device_id": "client"}}, "'payload', 'topic' or 'user'"),
        ({"allow_anonymous": True, "limits": {"connections_per_address": 0}}, "greater than or equal to 1"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ProxySettings.model_validate({"routes": ROUTES, **settings})


def test_only_a_line_feed_ends_a_line_and_a_byte_order_mark_is_no_name(tmp_path: Path) -> None:
    path = tmp_path / "acl"
    path.write_text("\ufefftopic write a\x0ctopic write b\u2028topic write c\r\ntopic write d\r\n", encoding="utf-8")
    acl = access(allow_anonymous=True, acl_file=str(path)).acl
    assert acl is not None
    allowed = ["a\x0ctopic write b\u2028topic write c", "d"]
    for topic in ("a", "b", "c", *allowed):
        assert acl.may_publish(topic, client_id="c", username=None) == (topic in allowed)
