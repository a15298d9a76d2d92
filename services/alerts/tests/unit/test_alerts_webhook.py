"""When a post is given up, and that no failure ends the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaError, KafkaException

from isotherm.alerts.metrics import Metrics
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.webhook import PART, Webhook, WebhookClients
from isotherm.servicekit.health import Health

LIMIT_S = 20.0

Turn = Callable[[], Any]


class Consumer:
    """Returns alerts, or the scripted results; when it is closed, the next one can be opened."""

    def __init__(self, turns: list[Turn], commit: Turn) -> None:
        self.polled, self._turns, self._commit = 0, turns, commit

    def subscribe(self, topics: list[str], on_assign: Callable[..., None]) -> None:
        """Nothing is assigned."""

    def poll(self, timeout_s: float) -> Any:
        self.polled += 1
        return self._turns.pop(0)() if self._turns else alert()

    def commit(self, **_arguments: Any) -> None:
        self._commit()

    def close(self) -> None:
        """Nothing is held."""


def message(error: KafkaError | None, value: bytes | None) -> Any:
    fields: dict[str, Any] = {"error": error, "value": value, "topic": "alerts", "offset": 0}
    return SimpleNamespace(**{name: (lambda found=found: found) for name, found in fields.items()})


def alert() -> Any:
    return message(None, b"an alert")


def failing(code: int) -> Turn:
    def fail() -> None:
        raise KafkaException(KafkaError(code))

    return fail


def refused() -> Any:
    return message(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), None)


def unexpected() -> Any:
    raise RuntimeError("unexpected")


class Hook:
    """A real server that answers 200, as a body that is not as its Content-Encoding says."""

    def __init__(self) -> None:
        self.posts = 0
        self.third = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Encoding", "gzip")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")
                hook.posts += 1
                if hook.posts >= 3:
                    hook.third.set()

            def log_message(self, format: str, *args: object) -> None:
                """The posts are counted."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.server.shutdown()
    made.server.server_close()


class World:
    """A webhook that reads from fake consumers, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, url: str, consumers: list[Consumer]) -> None:
        self.opened = 0
        self.health, self.metrics = Health(), Metrics()
        self.health.ready()

        def consumer() -> Any:
            self.opened += 1
            return consumers[min(self.opened, len(consumers)) - 1]

        unused: Any = None
        settings = AlertsSettings.model_validate({"webhook": {"url": url}})
        clients = WebhookClients(consumer, lambda: unused, httpx.Client)
        self.webhook = Webhook(settings, unused, clients, self.metrics, self.health)
        decoded = SimpleNamespace(record={"alert_id": "a", "state": "opened"})
        monkeypatch.setattr(self.webhook, "_decode", lambda _value: decoded)


@pytest.mark.parametrize("code", [KafkaError.REQUEST_TIMED_OUT, KafkaError._WAIT_COORD, KafkaError.ILLEGAL_GENERATION])
def test_a_failed_commit_ends_nothing(monkeypatch: pytest.MonkeyPatch, hook: Hook, code: int) -> None:
    world = World(monkeypatch, hook.url, [Consumer([], failing(code))])
    world.webhook.start()
    assert hook.third.wait(LIMIT_S)
    world.webhook.close()
    assert (world.opened, world.health.problems()) == (1, {})


def test_an_answer_is_its_status_whatever_its_body_is(monkeypatch: pytest.MonkeyPatch, hook: Hook) -> None:
    world = World(monkeypatch, hook.url, [Consumer([], lambda: None)])
    world.webhook.start()
    assert hook.third.wait(LIMIT_S)
    world.webhook.close()
    assert world.metrics.webhook.labels("repeated")._value.get() == 0
    assert world.metrics.webhook.labels("posted")._value.get() >= 3


@pytest.mark.parametrize("problem", [refused, unexpected])
def test_what_fails_is_told_and_begun_anew(monkeypatch: pytest.MonkeyPatch, hook: Hook, problem: Turn) -> None:
    told = threading.Event()
    again = threading.Event()

    def second() -> Any:
        told.set()
        assert again.wait(LIMIT_S)
        return alert()

    world = World(monkeypatch, hook.url, [Consumer([problem], lambda: None), Consumer([second], lambda: None)])
    world.webhook.start()
    assert told.wait(LIMIT_S)
    assert "posts nothing" in world.health.problems()[PART]
    again.set()
    assert hook.third.wait(LIMIT_S)
    world.webhook.close()
    assert (world.opened, world.health.problems()) == (2, {})
