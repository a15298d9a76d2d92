"""The calls that readers may make, and the audit lines of changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from console_in_memory import CONFIG, KLASS, World, world_of
from pydantic import SecretStr
from structlog.testing import capture_logs

from isotherm.console.settings import AuthSettings

OPERATOR, READER = ("ada", "o-pass"), ("bob", "r-pass")
AUTH = AuthSettings(
    operator_passwords={OPERATOR[0]: SecretStr(OPERATOR[1])}, reader_passwords={READER[0]: SecretStr(READER[1])}
)
VALIDATE = f"/connector-plugins/{KLASS}/config/validate"
QUEUE = "/ui/dead-letter-queues/a.dead-letters"
REPLAY = "/isotherm/connectors/a/replay"
ONLY_LOOKS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/isotherm/kcql/explain", {"json": {"kcql": "INSERT INTO a SELECT * FROM t"}}),
    ("POST", "/isotherm/check", {"json": {"text": "a=1"}}),
    ("PUT", VALIDATE, {"json": CONFIG}),
    ("POST", REPLAY, {"json": {"to": "earliest", "dry_run": True}}),
    ("POST", "/ui/connectors/a/replay", {"data": {"to": "earliest", "plan": "yes"}}),
    ("POST", QUEUE, {"data": {"verb": "discard", "which": "all"}}),
]
CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", REPLAY, {"json": {"to": "earliest"}}),
    ("POST", "/ui/connectors/a/replay", {"data": {"to": "earliest", "plan": "no"}}),
    ("PUT", "/connectors/a/config", {"json": CONFIG}),
    ("POST", "/isotherm/dead-letter-queues/a.dead-letters/replay", {"json": {"all": True}}),
    ("POST", QUEUE, {"data": {"verb": "replay", "which": "chosen", "record": "0/3"}}),
    ("POST", QUEUE, {"data": {"verb": "discard", "which": "all", "confirmed": "yes"}}),
    ("POST", "/isotherm/check/", {"json": {"text": "a=1"}}),
]


@pytest.fixture
def world() -> Iterator[World]:
    with world_of(AUTH) as made:
        assert made.http.post("/connectors", json={"name": "a", "config": CONFIG}, auth=OPERATOR).is_success
        assert made.http.put("/connectors/a/stop", auth=OPERATOR).is_success
        yield made


def said(world: World, call: tuple[str, str, dict[str, Any]], **more: Any) -> tuple[int, list[dict[str, Any]]]:
    """The status of a call's answer, and the audit lines that it left."""
    method, path, body = call
    with capture_logs() as lines:
        status = world.http.request(method, path, **body, **more).status_code
    return status, [dict(one) for one in lines if one["event"] in ("change", "refused")]


@pytest.mark.parametrize("call", ONLY_LOOKS, ids=lambda call: call[1])
def test_a_reader_may_make_calls_that_change_nothing(world: World, call: tuple[str, str, dict[str, Any]]) -> None:
    assert said(world, call, auth=READER) == (200, [])
    assert said(world, call, auth=OPERATOR) == (200, [])


@pytest.mark.parametrize("call", CHANGES, ids=lambda call: call[1])
def test_a_reader_changes_nothing(world: World, call: tuple[str, str, dict[str, Any]]) -> None:
    before = (list(world.memory.records), list(world.queues.asked))
    status, lines = said(world, call, auth=READER)

    assert (status, [(one["event"], one["user"], one["status"]) for one in lines]) == (403, [("refused", "bob", 403)])
    assert (world.memory.records, world.queues.asked) == before


@pytest.mark.parametrize("call", CHANGES[:-1], ids=lambda call: call[1])
def test_a_change_leaves_one_line(world: World, call: tuple[str, str, dict[str, Any]]) -> None:
    status, lines = said(world, call, auth=OPERATOR)

    assert status in (200, 303)
    assert [(one["event"], one["user"], one["path"]) for one in lines] == [("change", "ada", call[1])]


@pytest.mark.parametrize("call", ONLY_LOOKS, ids=lambda call: call[1])
def test_pages_of_other_sites_may_make_none_of_these_calls(world: World, call: tuple[str, str, dict[str, Any]]) -> None:
    status, lines = said(world, call, auth=OPERATOR, headers={"sec-fetch-site": "cross-site"})

    assert (status, [one["event"] for one in lines]) == (403, ["refused"])
