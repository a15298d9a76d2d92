"""Routes beside a running service: a storm, targets that hang or refuse, a new route, and a process that is killed."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alerts_world import Topics, Worker, until
from route_targets import HttpServer, RawServer, hang

from isotherm.simulators.scripted_day import temperature
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

DEVICES = 10_000
REORDER_MS = 2_000
"""Less than three intervals: no silence begins before readings that are out of order can have come."""
SILENCED, ACKNOWLEDGED = 100, 5
"""How many of them a silence mutes, and of how many the alert is acknowledged."""
SINGLE, THROTTLED = 10, 5
"""How many single incidents a route makes before a storm is one, and how many of its posts are answered 429."""


class Targets:
    """The servers of the routes."""

    def __init__(self) -> None:
        self.calm, self.each, self.refusing = HttpServer(), HttpServer(), HttpServer()
        self.incidents = HttpServer({"Retry-After": "1"})
        for _ in range(THROTTLED):
            self.incidents.answers.put(429)
        self.hung = RawServer(hang)
        for _ in range(DEVICES):
            self.refusing.answers.put(400)

    def routes(self) -> list[dict[str, Any]]:
        """The settings of the routes."""
        by_region = {"kind": "webhook", "group_by": ["rule", "region"], "group_wait_ms": 90_000, "max_alerts": 10}
        return [
            by_region | {"name": "calm", "url": self.calm.url, "group_interval_ms": 3_600_000},
            by_region | {"name": "refusing", "url": self.refusing.url},
            by_region
            | {
                "name": "hung",
                "url": f"http://127.0.0.1:{self.hung.port}/",
                "timeout_ms": 500,
                "group_wait_ms": 0,
                "retry_for_ms": 3_600_000,
            },
            {
                "kind": "webhook",
                "name": "each",
                "url": self.each.url,
                "group_by": ["alert"],
                # What a killed process has told may come again, and counts.
                "storm_limit": 0,
                "filter": {"severities": ["critical"]},
            },
            {
                "kind": "pagerduty",
                "name": "incidents",
                "secret_routing_key": "k",
                "url": self.incidents.url,
                "filter": {"rules": ["silent"]},
                "retry_for_ms": 0,
                "storm_limit": SINGLE,
            },
        ]

    def close(self) -> None:
        """Free the ports."""
        for server in (self.calm, self.each, self.refusing, self.incidents, self.hung):
            server.close()


@pytest.fixture
def targets() -> Iterator[Targets]:
    made = Targets()
    yield made
    made.close()


@pytest.fixture
def topics(kafka: Kafka, registry: Registry) -> Topics:
    made = Topics(kafka.bootstrap_servers, registry.url)
    made.declare()
    return made


@pytest.fixture
def start(
    topics: Topics, targets: Targets, tmp_path: Path, free_port: Callable[[], int]
) -> Iterator[Callable[[], Worker]]:
    workers: list[Worker] = []

    def start_worker() -> Worker:
        rules = [{"kind": "silent", "interval_ms": 1_000, "intervals": 3, "min_ms": 1_000}]
        settings = {"rules": rules, "routes": targets.routes(), "max_publish_delay_ms": 0, "reorder_ms": REORDER_MS}
        workers.append(Worker(topics, tmp_path, free_port(), **settings))
        return workers[-1].start()

    yield start_worker
    for worker in workers:
        worker.kill()


def critical(device_id: str) -> dict[str, Any]:
    """An alert as an earlier release of the service has written it."""
    now_ms = time.time_ns() // 1_000_000
    return {
        "alert_id": f"{device_id}/above/temperature/{now_ms}",
        "device_id": device_id,
        "rule": "above",
        "severity": "critical",
        "state": "opened",
        "opened_at": now_ms,
        "updated_at": now_ms,
        "closed_at": None,
        "metric": "temperature",
        "value": 31.0,
        "threshold": 30.0,
        "message": "hot",
    }


def put_silences(topics: Topics, worker: Worker, silences: dict[str, dict[str, Any]]) -> None:
    """Write records of silences, by id, and return when the service has read them."""
    now_ms = time.time_ns() // 1_000_000
    common: dict[str, Any] = {
        "kind": "silence", "alert_id": None, "devices": [], "rules": [], "groups": {}, "starts_at": now_ms - 60_000,
        "ends_at": now_ms + 3_600_000, "comment": "", "created_by": "ada", "created_at": now_ms, "ended_by": None,
        "ended_at": None,
    }  # fmt: skip
    before = worker.counted("silence_records_refused_total")
    for silence_id, fields in silences.items():
        topics.put("isotherm.silences", silence_id, {"silence_id": silence_id, **common, **fields})
    # The follower reads one partition in order: what is counted behind the records has read them.
    bad = {"silence_id": f"{topics.name}-bad", **common, "groups": {"room": ["none"]}}
    topics.put("isotherm.silences", f"{topics.name}-bad", bad)
    until("the silences are read", lambda: worker.counted("silence_records_refused_total") > before)
    topics.put("isotherm.silences", f"{topics.name}-bad", None)


def told(server: HttpServer) -> set[str]:
    """The devices of the alerts that a server has got, one in each post."""
    devices = set()
    while not server.received.empty():
        devices.add(str(json.loads(server.received.get().body)["device_id"]))
    return devices


@pytest.mark.long
def test_ten_thousand_silences_are_one_notification_a_route_without_those_that_somebody_has_silenced(
    topics: Topics, targets: Targets, start: Callable[[], Worker]
) -> None:
    topics.publish(topics.alerts, [critical("history")])
    names = [f"{topics.name}-{number:05}" for number in range(DEVICES)]
    about: dict[str, Any] = {"home": None, "room": None, "region": "north", "model": None, "thresholds": {}}
    topics.publish(topics.devices, [{"device_id": name, **about} for name in names])
    worker = start()
    topics.publish(topics.alerts, [critical("now")])
    until("the alert after the start is told", lambda: told(targets.each) == {"now"})
    # A silence begins three intervals after the reading, so the ids of the alerts are known before.
    now_ms = time.time_ns() // 1_000_000
    ids = {f"{topics.name}-ack-{name}": f"{name}/silent/{now_ms + 3_000}" for name in names[:ACKNOWLEDGED]}
    acknowledged = {key: {"kind": "acknowledgement", "alert_id": one, "ends_at": None} for key, one in ids.items()}
    silenced = {topics.name: {"devices": [f"{topics.name}-099??"], "groups": {"region": ["north"]}}}
    put_silences(topics, worker, acknowledged | silenced)
    topics.publish(topics.input, [temperature(name, 20, now_ms, 1) for name in names])
    heard = DEVICES - SILENCED - ACKNOWLEDGED
    until("every silence is an alert", lambda: worker.counted("alerts_total") >= DEVICES)
    until("the calm route is told", lambda: not targets.calm.received.empty() or not worker.is_ready())
    until("the refused ones are dead letters", lambda: len(topics.messages(topics.dead)) >= heard)

    silences = [one for one in topics.distinct_alerts().values() if one["rule"] == "silent"]
    assert {one["device_id"] for one in silences} == set(names)
    posts = [json.loads(targets.calm.received.get().body) for _ in range(targets.calm.received.qsize())]
    by_rule = {post["group"]["rule"]: post for post in posts}
    assert len(posts) == len(by_rule)
    storm = by_rule["silent"]
    assert (storm["status"], storm["count"], storm["group"]["region"]) == ("opened", heard, "north")
    assert len(topics.messages(topics.dead)) == heard + 1  # the alert `now` is a group of its own
    assert targets.hung.connections > 1
    assert told(targets.each) == set()
    events: list[dict[str, Any]] = []

    def alerts_of_incidents() -> Counter[str]:
        while not targets.incidents.received.empty():
            events.append(json.loads(targets.incidents.received.get().body))
        taken = {json.dumps(event, sort_keys=True): event for event in events}.values()
        return sum((Counter({one["dedup_key"]: one["payload"]["custom_details"]["count"]}) for one in taken), Counter())

    until("every alert is an incident or the storm's", lambda: alerts_of_incidents().total() >= heard)
    of_storm, *of_singles = sorted(alerts_of_incidents().values(), reverse=True)
    assert of_storm >= heard - SINGLE
    assert of_singles == [1] * (heard - of_storm)
    assert len(events) <= SINGLE + THROTTLED + 10, "the storm's incident is updated each minute at most"
    assert {event["event_action"] for event in events} == {"trigger"}
    assert worker.is_ready()
    for silence_id in acknowledged | silenced:
        topics.put("isotherm.silences", silence_id, None)


def test_what_a_silence_muted_is_told_when_it_is_ended_and_by_a_process_that_was_not_there(
    topics: Topics, targets: Targets, start: Callable[[], Worker]
) -> None:
    worker = start()
    names = {kind: f"{topics.name}-{kind}" for kind in ("open", "closed", "other")}
    silence = {"devices": [names["open"], names["closed"]], "starts_at": time.time_ns() // 1_000_000 - 60_000}
    put_silences(topics, worker, {topics.name: silence})
    alerts = [critical(names[kind]) for kind in ("open", "closed", "other")]
    topics.publish(topics.alerts, alerts)
    topics.publish(topics.alerts, [alerts[1] | {"state": "closed", "closed_at": alerts[1]["opened_at"] + 1}])
    seen: list[str] = []

    def is_told(name: str) -> Callable[[], bool]:
        def ask() -> bool:
            seen.extend(told(targets.each))
            return name in seen

        return ask

    until("the other one is told", is_told(names["other"]))
    until("the muted ones are settled", lambda: worker.counted("route_alerts_total") >= 3 * 4)
    worker.kill()
    second, ended = start(), {"ended_by": "bob", "ended_at": time.time_ns() // 1_000_000}
    put_silences(topics, second, {topics.name: silence | ended})
    until("the open one is told", is_told(names["open"]))
    assert names["closed"] not in seen
    topics.put("isotherm.silences", topics.name, None)


def test_a_route_goes_on_in_another_process_when_its_own_is_killed(
    topics: Topics, targets: Targets, start: Callable[[], Worker]
) -> None:
    first = start()
    second = start()
    topics.publish(topics.alerts, [critical(f"before-{number}") for number in range(20)])
    seen: set[str] = set()

    def are_told(names: set[str]) -> Callable[[], bool]:
        def ask() -> bool:
            seen.update(told(targets.each))
            return names <= seen

        return ask

    until("all are told", are_told({f"before-{number}" for number in range(20)}))
    first.kill()
    topics.publish(topics.alerts, [critical(f"after-{number}") for number in range(20)])
    until("the other process tells them", are_told({f"after-{number}" for number in range(20)}))
    assert second.is_ready()
