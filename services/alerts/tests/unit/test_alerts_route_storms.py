"""Thousands of alerts at once, on a route that tells each by itself: what its target, a real server, holds open."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError
from route_targets import HttpServer, Incidents, alert
from test_alerts_route_runner import Consumer, World, until

from isotherm.alerts.notifications.storms import placement

MANY = 3_000


@pytest.fixture
def target() -> Iterator[Incidents]:
    made = Incidents()
    yield made
    made.close()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def run(consumer: Consumer, url: str, **fields: Any) -> World:
        given = {"kind": "pagerduty", "group_wait_ms": 0, "group_interval_ms": 0, **fields}
        if given["kind"] == "pagerduty":
            given["secret_routing_key"] = "k"
        made.append(World(monkeypatch, [consumer], url, **given))
        made[-1].runner.start()
        return made[-1]

    yield run
    for one in made:
        one.runner.close()


def alerts(numbers: range, state: str = "opened", **fields: Any) -> list[dict[str, Any]]:
    return [alert(f"d{number}", state, **fields) for number in numbers]


def test_thousands_of_alerts_are_one_incident_that_ends_with_the_last_of_them(
    target: Incidents, start: Callable[..., World]
) -> None:
    consumer = Consumer(alerts(range(MANY)))
    world = start(consumer, target.url)
    until(lambda: consumer.committed_offsets == {0: MANY})
    assert len(target.pages) == len(target.open) == 1
    assert target.events <= 10
    assert target.summaries[0].endswith("rule above, severity warning, region north")
    consumer.alerts.extend(alerts(range(1, MANY), "closed"))
    until(lambda: consumer.committed_offsets == {0: 2 * MANY - 1})
    assert len(target.open) == 1, "one alert is open"
    consumer.alerts.extend(alerts(range(1), "closed"))
    until(lambda: consumer.committed_offsets == {0: 2 * MANY})
    assert (target.open, len(target.pages), world.dead) == ([], 1, [])
    assert target.events <= 20
    assert world.counted(world.metrics.route_alerts, "delivered") == 2 * MANY


def test_alerts_from_before_a_storm_and_of_another_severity_end_by_themselves(
    target: Incidents, start: Callable[..., World]
) -> None:
    consumer = Consumer(alerts(range(5)))
    start(consumer, target.url)
    until(lambda: consumer.committed_offsets == {0: 5})
    consumer.alerts.extend(alerts(range(5, MANY)))
    consumer.alerts.append(alert("worse", severity="critical"))
    # The record of an alert that was told by itself comes again.
    consumer.alerts.extend(alerts(range(1)))
    until(lambda: consumer.committed_offsets == {0: MANY + 2})
    assert len(target.pages) == len(target.open) == 7
    consumer.alerts.extend(alerts(range(MANY), "closed"))
    consumer.alerts.append(alert("worse", "closed", severity="critical"))
    until(lambda: consumer.committed_offsets == {0: 2 * MANY + 3})
    assert (target.open, len(target.pages)) == ([], 7)


@pytest.mark.parametrize("is_calm", [False, True], ids=["amid the storm", "after it"])
def test_a_restart_goes_on_with_a_storm(
    is_calm: bool, target: Incidents, start: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Consumer(alerts(range(MANY)))
    world = start(first, target.url)
    until(lambda: first.committed_offsets == {0: MANY})
    world.runner.close()
    if is_calm:
        monkeypatch.setattr(placement, "_CALM_S", 0.0)
    more = 0 if is_calm else 30
    second = Consumer([*first.alerts, *alerts(range(MANY, MANY + more))], first.committed_offsets)
    second.metadata_of = first.metadata_of
    start(second, target.url)
    until(lambda: second.committed_offsets == {0: MANY + more})
    assert len(target.pages) == len(target.open) == 1
    second.alerts.extend(alerts(range(MANY + more), "closed"))
    until(lambda: second.committed_offsets == {0: 2 * (MANY + more)})
    assert (target.open, len(target.pages)) == ([], 1)
    assert target.events <= 30


def test_a_kill_between_the_notification_and_the_commit_opens_no_second_incident(
    target: Incidents, start: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Consumer([*alerts(range(3), severity="info"), *alerts(range(10, 500))])

    def refuse() -> None:
        first.commit_error = KafkaError(KafkaError._TRANSPORT)

    target.on_event = refuse
    world = start(first, target.url)
    until(lambda: world.counted(world.metrics.route_alerts, "delivered") >= 3 and len(target.open) == 4)
    world.runner.close()
    assert first.committed_offsets == {0: 0}
    target.on_event = lambda: None
    monkeypatch.setattr(placement, "_CALM_S", 0.0)
    second = Consumer(first.alerts, first.committed_offsets)
    second.metadata_of = first.metadata_of
    start(second, target.url)
    count = len(second.alerts)
    until(lambda: second.committed_offsets == {0: count})
    assert len(target.pages) == len(target.open) == 4
    second.alerts.extend([{**one, "state": "closed", "closed_at": one["opened_at"]} for one in second.alerts])
    until(lambda: second.committed_offsets == {0: 2 * count})
    assert target.open == []


def test_a_storm_is_not_told_before_kafka_knows_it_and_holds_up_nothing(
    target: Incidents, start: Callable[..., World]
) -> None:
    consumer = Consumer([*alerts(range(MANY)), alert("worse", severity="critical")])
    consumer.commit_error = KafkaError(KafkaError._TRANSPORT)
    world = start(consumer, target.url)
    until(lambda: world.counted(world.metrics.route_alerts, "delivered") == 1)
    assert len(target.pages) == 1
    consumer.commit_error = None
    until(lambda: consumer.committed_offsets == {0: MANY + 1})
    assert len(target.pages) == 2


def test_a_target_that_asks_for_pauses_gets_everything_and_is_left_alone_meanwhile(
    target: Incidents, start: Callable[..., World]
) -> None:
    statuses = iter([202, 202, 429, 429, 202, 429])
    asked: list[int] = []

    def answer() -> int:
        asked.append(next(statuses, 202))
        return asked[-1]

    target.answer = answer
    consumer = Consumer(alerts(range(15)))
    world = start(consumer, target.url, retry_for_ms=0)
    until(lambda: consumer.committed_offsets == {0: 15})
    assert (len(target.open), world.dead) == (15, [])
    pauses = [
        after - at for at, after, status in zip(target.at_s, target.at_s[1:], asked, strict=False) if status == 429
    ]
    assert len(pauses) == 3
    assert min(pauses) >= 1.0


def test_the_end_of_an_alert_is_told_however_old_it_is(target: Incidents, start: Callable[..., World]) -> None:
    consumer = Consumer(alerts(range(1)))
    start(consumer, target.url)
    until(lambda: len(target.open) == 1)
    consumer.age_ms = 90_000_000
    consumer.alerts.extend([*alerts(range(1), "closed"), alert("old")])
    until(lambda: consumer.committed_offsets == {0: 3})
    assert (target.open, len(target.pages)) == ([], 1)


def test_a_webhook_gets_the_body_of_a_group_and_how_many_are_open(start: Callable[..., World]) -> None:
    server = HttpServer()
    consumer = Consumer([*alerts(range(60)), alert("elsewhere", attributes={"region": "south"})])
    start(consumer, server.url, kind="webhook")
    until(lambda: consumer.committed_offsets == {0: 61})
    consumer.alerts.extend(alerts(range(60), "closed"))
    until(lambda: consumer.committed_offsets == {0: 121})
    server.close()
    bodies = [json.loads(server.received.get_nowait().body) for _ in range(server.received.qsize())]
    assert bodies[0]["count"] == len(bodies[0]["alerts"]) == bodies[0]["storm"]["open"] == 61
    assert bodies[0]["group"] == {"rule": "above", "severity": "warning"}, "what all have in common"
    assert bodies[-1]["group"] == {"rule": "above", "severity": "warning", "region": "north"}
    assert (bodies[-1]["storm"]["name"], bodies[-1]["storm"]["open"]) == (bodies[0]["storm"]["name"], 1)
    assert {one["state"] for one in bodies[-1]["alerts"]} == {"closed"}
    assert bodies[-1]["status"] == "opened", "one alert of the storm is open"


def test_without_a_limit_each_alert_is_told_by_itself(target: Incidents, start: Callable[..., World]) -> None:
    consumer = Consumer(alerts(range(60)))
    start(consumer, target.url, storm_limit=0)
    until(lambda: consumer.committed_offsets == {0: 60})
    assert len(target.open) == 60
