from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.settings import HttpSettings


class Clock:
    """A clock that advances only when the test sets it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(beat_limit_ms=30_000, clock=clock)


@pytest.fixture
def server(health: Health) -> Iterator[MonitoringServer]:
    registry = CollectorRegistry()
    Counter("isotherm_things", "Things.", registry=registry).inc(3)
    monitoring = MonitoringServer(HttpSettings(), health, registry)
    monitoring.start()
    yield monitoring
    monitoring.stop()


def get(server: MonitoringServer, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{page}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_service_is_not_ready_before_it_says_so(health: Health, server: MonitoringServer) -> None:
    assert get(server, "/ready") == (503, json.dumps({"ready": False, "problems": {"start": "starting"}}))

    health.ready()

    assert get(server, "/ready") == (200, json.dumps({"ready": True, "problems": {}}))


def test_every_part_that_does_not_work_is_named(health: Health, server: MonitoringServer) -> None:
    health.ready()
    health.not_ready("kafka", "no broker answers")
    health.not_ready("sink", "503")
    health.ready("sink")

    status, body = get(server, "/ready")

    assert status == 503
    assert json.loads(body)["problems"] == {"kafka": "no broker answers"}


def test_service_that_does_not_turn_is_not_live(health: Health, server: MonitoringServer, clock: Clock) -> None:
    clock.now_s += 30.0
    assert get(server, "/live") == (200, '{"live": true}')

    clock.now_s += 0.1
    assert get(server, "/live") == (503, '{"live": false}')

    health.beat()
    assert get(server, "/live")[0] == 200


def test_outage_of_another_server_makes_nobody_restart_us(health: Health, server: MonitoringServer) -> None:
    health.not_ready("kafka", "down")

    assert get(server, "/live")[0] == 200


def test_metrics_are_in_prometheus_text(server: MonitoringServer) -> None:
    status, body = get(server, "/metrics?name[]=x")

    assert status == 200
    assert "isotherm_things_total 3.0" in body


def test_other_pages_are_not_there(server: MonitoringServer) -> None:
    assert get(server, "/")[0] == 404
    assert get(server, "/ready/x")[0] == 404


def test_port_is_free_after_the_stop(health: Health) -> None:
    first = MonitoringServer(HttpSettings(), health, CollectorRegistry())
    first.start()
    port = first.port
    first.stop()

    second = MonitoringServer(HttpSettings(port=port), health, CollectorRegistry())
    second.start()
    second.stop()
