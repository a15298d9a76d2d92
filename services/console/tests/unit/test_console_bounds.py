"""Oversized requests and internal errors are answered in Kafka Connect's form, without a stack trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from console_in_memory import World, world_of
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
DIGITS = "9" * 5_000


@pytest.fixture
def world() -> Iterator[World]:
    with world_of() as made:
        yield made


@pytest.fixture
def asked(world: World) -> TestClient:
    """A client that receives the server's answer when the application fails."""
    return TestClient(
        world.http.app, base_url="http://127.0.0.1:8083", raise_server_exceptions=False, follow_redirects=False
    )


def pieces(count: int) -> Iterator[bytes]:
    """A body without a Content-Length."""
    for _ in range(count):
        yield b"x" * 65_536


@pytest.mark.parametrize("count", [17, 40])
@pytest.mark.parametrize(
    ("method", "path", "media_type"),
    [
        ("POST", "/connectors", JSON),
        ("PUT", "/connectors/a/config", JSON),
        ("PATCH", "/connectors/a/offsets", JSON),
        ("POST", "/isotherm/check", JSON),
        ("POST", "/ui/new", FORM),
        ("POST", "/ui/dead-letter-queues/a.dead-letters", FORM),
    ],
)
def test_a_body_without_length_that_is_too_long_is_413(
    world: World, method: str, path: str, media_type: str, count: int
) -> None:
    with capture_logs() as lines:
        refused = world.http.request(method, path, content=pieces(count), headers={"content-type": media_type})
    assert refused.status_code == 413
    assert refused.json() == {"error_code": 413, "message": "a body may have 1048576 bytes at most"}
    assert "content-security-policy" in refused.headers
    audit = [(line["event"], line["status"]) for line in lines if "client" in line]
    assert audit == [("refused", 413)]
    assert world.http.get("/connectors").json() == []


def test_a_body_of_the_largest_size_is_read(world: World) -> None:
    refused = world.http.post("/connectors", content=pieces(16), headers={"content-type": JSON})
    assert refused.status_code == 400, "what it says is another thing"


@pytest.mark.parametrize("length", [DIGITS, "x", "-1", "1048577"])
def test_an_invalid_content_length_is_413(world: World, length: str) -> None:
    assert world.http.post("/connectors", content=b"{}", headers={"content-length": length}).status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", f"/connectors/a/tasks/{DIGITS}/restart", 404),
        ("GET", f"/connectors/a/tasks/{DIGITS}/status", 404),
        ("POST", f"/ui/connectors/a/tasks/{DIGITS}/restart", 404),
        ("GET", f"/ui/topics/t?partition={DIGITS}", 400),
        ("GET", "/ui/topics/t?partition=%C2%B2", 400),
        ("GET", f"/ui/topics/t?before=0:{DIGITS}", 400),
        ("GET", f"/ui/topics/t?after={DIGITS}:0", 400),
        ("GET", f"/ui/topics/t?since={DIGITS}", 400),
        ("GET", f"/ui/topics/t/0/{DIGITS}", 404),
        ("GET", f"/isotherm/topics/t/records?partition={DIGITS}", 400),
        ("GET", f"/isotherm/topics/t/records?before=0:{DIGITS}", 400),
        ("GET", f"/isotherm/topics/t/records/0/{DIGITS}", 400),
    ],
)
def test_numbers_of_thousands_of_digits_are_refused(world: World, method: str, path: str, status: int) -> None:
    world.create()
    world.topics.put("t", b"1")
    answer = world.http.request(method, path)
    assert answer.status_code == status
    if not path.startswith("/ui"):
        assert answer.json()["error_code"] == status


@pytest.mark.parametrize("path", ["/connectors/a/status", "/isotherm/topics/t/records", "/ui/topics/t"])
def test_an_internal_error_is_logged_and_answers_500(
    world: World, asked: TestClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def fails(*_given: object) -> None:
        raise ZeroDivisionError("hunter22")

    world.create()
    monkeypatch.setattr(world.topics, "reader", fails)
    monkeypatch.setattr(world.cluster, "view", fails)
    with capture_logs() as lines:
        answer = asked.get(path)
    assert answer.status_code == 500
    assert "hunter22" not in answer.text
    assert "The console&#39;s log" in answer.text if path.startswith("/ui") else answer.json()["error_code"] == 500
    assert "content-security-policy" in answer.headers
    failed = [line for line in lines if line["event"] == "request failed"]
    assert [(line["path"], line["error"]) for line in failed] == [(path, "ZeroDivisionError")]


def test_a_failed_change_is_logged_too(world: World, asked: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: object) -> None:
        raise ZeroDivisionError

    world.create()
    monkeypatch.setattr(world.memory, "write", fails)
    with capture_logs() as lines:
        assert asked.delete("/connectors/a").status_code == 500
    assert [(line["event"], line["status"]) for line in lines if "client" in line] == [("change", 500)]
