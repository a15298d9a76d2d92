"""An attempt over HTTP: what an answer means, that it ends, and that it shows no secret."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr
from route_targets import HttpServer, RawServer, alert, drip, hang

from isotherm.alerts.notifications.delivery import Delivery
from isotherm.alerts.notifications.http_target import HttpTarget
from isotherm.alerts.notifications.targets import NotDeliveredError, RefusedError
from isotherm.alerts.routes.kinds import WebhookRoute
from isotherm.alerts.routes.notification import Notification


@pytest.mark.parametrize(
    "behave",
    [hang, drip(b"HTTP/1.1 200 OK\r\nX: "), drip(b"no HTTP at all\r\n"), lambda connection: connection.close()],
)
def test_a_server_that_hangs_drips_or_lies_ends_no_attempt_late(behave: Callable[..., None]) -> None:
    server = RawServer(behave)
    url = f"http://127.0.0.1:{server.port}/"
    route = WebhookRoute.model_validate({"kind": "webhook", "name": "r", "url": url, "timeout_ms": 300})
    target = HttpTarget(route)
    for _ in range(2):
        with pytest.raises(NotDeliveredError, match="no answer"):
            target.send(Notification("r", {}, (alert(),)))
    target.close()
    server.close()


@pytest.mark.parametrize("rest", ["Content-Length: 9\r\n\r\nok", "Transfer-Encoding: chunked\r\n\r\nnonsense"])
@pytest.mark.parametrize("hangs", [True, False])
def test_a_status_decides_even_if_the_body_never_comes_or_is_broken(rest: str, hangs: bool) -> None:
    def behave(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + rest.encode())
        if hangs:
            hang(connection)

    server = RawServer(behave)
    url = f"http://127.0.0.1:{server.port}/"
    target = HttpTarget(WebhookRoute.model_validate({"kind": "webhook", "name": "r", "url": url, "timeout_ms": 2_000}))
    for _ in range(2):
        target.send(Notification("r", {}, (alert(),)))
    assert server.connections == 2
    target.close()
    server.close()


def test_a_pause_begins_with_the_answer() -> None:
    times = iter((0.0, 10.0))

    def fail(_notification: object) -> None:
        raise NotDeliveredError("answered 503", retry_after_s=5.0)

    taken: Any = SimpleNamespace(notification=None)
    target: Any = SimpleNamespace(send=fail)
    delivery = Delivery(taken, 60_000, 3_600_000, 0.0)
    assert delivery.attempt(target, lambda: next(times)) == "answered 503"
    assert delivery.next_s == 15.0


def test_a_secret_in_a_header_that_cannot_be_sent_is_not_shown() -> None:
    given = WebhookRoute.model_validate({"kind": "webhook", "name": "r", "url": "http://127.0.0.1:9/"})
    # The settings refuse such a token; the target does not count on it.
    route = given.model_copy(update={"authorization_token": SecretStr("hidden\nhidden")})
    target = HttpTarget(route)
    with pytest.raises((NotDeliveredError, RefusedError)) as caught:
        target.send(Notification("r", {}, (alert(),)))
    assert "hidden" not in f"{caught.value}{caught.value.__cause__}"
    target.close()


def test_a_pause_that_the_server_asks_for_is_kept_within_a_bound() -> None:
    for asked, kept in (("7", 7.0), ("999999", 300.0), ("soon", 0.0)):
        server = HttpServer({"Retry-After": asked})
        server.answers.put(429)
        target = HttpTarget(WebhookRoute.model_validate({"kind": "webhook", "name": "r", "url": server.url}))
        with pytest.raises(NotDeliveredError) as caught:
            target.send(Notification("r", {}, (alert(),)))
        assert caught.value.retry_after_s == kept
        target.close()
        server.close()


def test_who_is_asked_to_wait_is_not_given_up_before_its_alerts_are_too_old() -> None:
    def fail(_notification: object) -> None:
        raise answers.pop(0)

    throttled = NotDeliveredError("answered 429", 300.0, is_throttled=True)
    answers = [*[throttled] * 12, NotDeliveredError("answered 503"), throttled]
    taken: Any = SimpleNamespace(notification=None)
    target: Any = SimpleNamespace(send=fail)
    # It has waited behind others for longer than `retry_for_ms`.
    delivery, now_s = Delivery(taken, 60_000, 10_000_000, 0.0), [5_000.0]
    for _ in range(12):
        assert delivery.attempt(target, lambda: now_s[0]) == "answered 429"
        assert delivery.next_s >= now_s[0] + 300.0
        now_s[0] = delivery.next_s
    assert delivery.attempt(target, lambda: now_s[0]) == "answered 503", "its time begins after the pause"
    now_s[0] = 10_000.0
    with pytest.raises(RefusedError):
        delivery.attempt(target, lambda: now_s[0])


@pytest.mark.parametrize(("ahead_s", "most_s"), [(200, 200.0), (-5, 0.0), (9_000, 300.0)])
def test_a_pause_may_be_asked_for_by_date(ahead_s: int, most_s: float) -> None:
    until = datetime.now(UTC) + timedelta(seconds=ahead_s)
    server = HttpServer({"Retry-After": format_datetime(until, usegmt=True)})
    server.answers.put(429)
    route = WebhookRoute.model_validate({"kind": "webhook", "name": "r", "url": server.url})
    with closing(HttpTarget(route)) as target, pytest.raises(NotDeliveredError) as caught:
        target.send(Notification("r", {}, (alert(),)))
    server.close()
    assert (caught.value.retry_after_s > 0.0) is (ahead_s > 0)
    assert caught.value.retry_after_s <= most_s
    assert caught.value.is_throttled
