"""Thousands of alerts at once, on a route that tells each by itself: what its target, a real server, holds open."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from route_targets import OPENED, HttpServer, Incidents, alert
from test_alerts_route_runner import Consumer, World, until

from isotherm.alerts.input.dead_letters import SourceRecord
from isotherm.alerts.notifications.delivery import Delivery
from isotherm.alerts.notifications.grouping import AlertGroups, PendingAlert
from isotherm.alerts.notifications.route_runner import RouteRunner
from isotherm.alerts.notifications.storms import placement
from isotherm.alerts.notifications.storms.placement import Storms
from isotherm.alerts.notifications.targets import NotDeliveredError
from isotherm.alerts.routes.matching import RouteFilter
from isotherm.alerts.routes.silences import Silence, SilenceTable

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


def silenced(start_s: int, end_s: int) -> SilenceTable:
    """A silence of everything, in seconds after the time at which alerts open."""
    table, opened_ms = SilenceTable(), int(OPENED.timestamp() * 1000)
    table.put("s", Silence(RouteFilter(), None, opened_ms + start_s * 1000, opened_ms + end_s * 1000), opened_ms)
    return table


def past(runner: RouteRunner, storms: Storms, records: list[tuple[PendingAlert, int]]) -> None:
    """Let a restarted route read records with the seconds after the opening at which they were stored."""
    for pending, stored_s in records:
        at_ms = int(OPENED.timestamp() * 1000) + stored_s * 1000
        message: Any = SimpleNamespace(pending=pending, timestamp=partial(tuple, (1, at_ms)))
        found = runner._past_of(storms, message)
        if found is not None:
            storms.note_past(found)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> RouteRunner:
    """One that does not run."""
    given: Any = {"kind": "pagerduty", "secret_routing_key": "k"}
    made = World(monkeypatch, [Consumer([])], "http://127.0.0.1:9", **given).runner
    monkeypatch.setattr(made, "_pending_of", lambda message: message.pending)
    return made


def pending(number: int, offset: int, state: str = "opened") -> PendingAlert:
    return PendingAlert(alert(f"d{number}", state), SourceRecord("alerts", 1, offset, b"", b"", []))


def placed_before(limit: int, found: list[PendingAlert], *, is_in_turn: bool) -> Storms:
    """What a route knows after a restart, when an earlier run has placed some alerts."""
    storms, restarted = Storms(limit), Storms(limit)
    for one in found:
        storms.arrive(one, 0.0, is_in_turn=is_in_turn)
    for one in found:
        storms.place(one, 0.0, 1, is_in_turn=is_in_turn)
    assert storms.is_changed, "Kafka has to know it before it is told"
    restarted.restore({1: storms.stored(1)}, 0.0, 1)
    return restarted


def test_a_storm_of_the_end_of_a_silence_is_stored_and_ends_after_a_restart(
    runner: RouteRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [pending(number, number) for number in range(30)]
    restarted = placed_before(20, found, is_in_turn=False)
    monkeypatch.setattr(runner, "_silences", silenced(-1, 5))
    past(runner, restarted, [(one, 0) for one in found])
    places = [restarted.place(pending(number, 100 + number, "closed"), 400.0, 400_000) for number in range(30)]
    assert {len(one) for one in places} == {2}, "by itself and with the storm: it may have been told before either"
    assert {one[0] for one in places} == {None}
    assert [storm.open for one in places if (storm := one[1]) is not None] == 30 * [set()]


def test_an_end_within_a_silence_that_was_told_is_told_after_a_restart_too(
    runner: RouteRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [pending(number, number) for number in range(5)]
    restarted = placed_before(2, found, is_in_turn=True)
    # The clocks of the devices run ahead: their alerts open after the silence has begun, and are stored before.
    monkeypatch.setattr(runner, "_silences", silenced(-1, 900))
    ends = [(pending(number, 50 + number, "closed"), 60) for number in range(5)]
    past(runner, restarted, [*((one, -10) for one in found), *ends])
    restarted.drop_ended(1_000.0, {1: 100})
    assert len(restarted) == 0


def test_the_pause_of_a_target_that_gets_too_many_grows_whichever_notification_is_tried(
    runner: RouteRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def throttle(_notification: object) -> None:
        raise NotDeliveredError("answered 429", is_throttled=True)

    target: Any = SimpleNamespace(send=throttle)
    monkeypatch.setattr(runner._throttled, "next_ms", iter((7_000.0, 50_000.0)).__next__)
    groups, waits = AlertGroups(runner._route), []
    for number in range(2):
        groups.add(pending(number, number), 0.0, None)
    unused: Any = None
    for taken in groups.take_due(0.0):
        assert not runner._attempt(Delivery(taken, 0, 10**9, 0.0), target, unused)
        waits.append(runner._resume_s - time.monotonic())
    assert waits[0] > 6.0
    assert waits[1] > 49.0
