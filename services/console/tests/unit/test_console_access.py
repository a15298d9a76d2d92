"""The access policy."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from isotherm.console.access.policy import AccessPolicy, Request, Role
from isotherm.console.settings import AuthSettings, ConsoleSettings, ListenSettings

AUTH = AuthSettings(
    operator_passwords={"ada": SecretStr("o-pass")},
    reader_passwords={"bob": SecretStr("r-pass")},
    operator_tokens={"ci": SecretStr("o-token")},
    reader_tokens={"grafana": SecretStr("r-token")},
)
HOST = "127.0.0.1:8083"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def status(access: AccessPolicy, method: str = "GET", authorization: str = "", host: str = HOST, **headers: str) -> int:
    request = Request(method, host, {name.replace("_", "-"): value for name, value in headers.items()})
    refusal = access.check(request, access.authenticate(authorization))
    return 200 if refusal is None else refusal.status


@pytest.fixture
def closed() -> AccessPolicy:
    return AccessPolicy(ListenSettings(), AUTH)


@pytest.fixture
def loopback() -> AccessPolicy:
    return AccessPolicy(ListenSettings(), AuthSettings())


@pytest.mark.parametrize(
    ("authorization", "read", "change"),
    [
        (basic("ada", "o-pass"), 200, 200),
        (basic("bob", "r-pass"), 200, 403),
        ("Bearer o-token", 200, 200),
        ("bearer r-token", 200, 403),
        ("", 401, 401),
        (basic("ada", "r-pass"), 401, 401),
        (basic("bob", "o-pass"), 401, 401),
        (basic("ada", ""), 401, 401),
        ("Bearer ", 401, 401),
        ("Bearer o-pass", 401, 401),
        ("Basic ???", 401, 401),
        ("Digest x", 401, 401),
    ],
)
def test_roles(closed: AccessPolicy, authorization: str, read: int, change: int) -> None:
    assert status(closed, "GET", authorization) == read
    assert status(closed, "PUT", authorization) == change


def test_without_credentials_everything_is_allowed_on_loopback_only(loopback: AccessPolicy) -> None:
    assert loopback.authenticate("") == ("anonymous", Role.OPERATOR)
    assert status(loopback, "DELETE") == 200
    reader = AccessPolicy(ListenSettings(host="0.0.0.0"), AuthSettings(anonymous="reader"))  # noqa: S104 -- what is tested
    assert (status(reader, "GET"), status(reader, "POST")) == (200, 403)


def test_an_empty_password_never_matches() -> None:
    access = AccessPolicy(ListenSettings(), AuthSettings(operator_passwords={"ada": SecretStr("")}))
    assert status(access, "GET", basic("ada", "")) == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8083", "", "127.0.0.1.evil.example", "[::1"])
def test_an_unknown_host_name_is_refused(loopback: AccessPolicy, host: str) -> None:
    assert status(loopback, host=host) == 421


@pytest.mark.parametrize("host", ["localhost:8083", "127.0.0.1", "[::1]:8083", "LOCALHOST"])
def test_loopback_names_are_allowed(loopback: AccessPolicy, host: str) -> None:
    assert status(loopback, host=host) == 200


def test_a_configured_host_name_is_allowed() -> None:
    assert (
        status(AccessPolicy(ListenSettings(allowed_hosts=["Console.Example"]), AuthSettings()), host="console.example")
        == 200
    )


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 200),
        ({"origin": f"http://{HOST}"}, 200),
        ({"origin": f"http://{HOST}", "sec_fetch_site": "same-origin"}, 200),
        ({"sec_fetch_site": "none"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
    ],
)
def test_pages_of_other_sites_change_nothing(loopback: AccessPolicy, headers: dict[str, str], expected: int) -> None:
    assert status(loopback, "POST", **headers) == expected
    assert status(loopback, "GET", **headers) == 200


@pytest.mark.parametrize(
    ("more", "is_fine"),
    [
        ({}, False),
        ({"auth": AUTH}, True),
        ({"auth": AuthSettings(anonymous="reader")}, True),
        ({"auth": AuthSettings(anonymous="none")}, True),
    ],
)
def test_listening_on_the_network_needs_credentials(more: dict[str, Any], is_fine: bool) -> None:
    listen = ListenSettings(host="0.0.0.0")  # noqa: S104 -- what is tested
    if is_fine:
        assert ConsoleSettings(listen=listen, **more).listen == listen
        return
    with pytest.raises(ValidationError, match=r"auth\.operator_passwords"):
        ConsoleSettings(listen=listen, **more)
