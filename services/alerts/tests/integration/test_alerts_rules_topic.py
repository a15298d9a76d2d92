"""Rules that change while the service runs: by the topic, by the file, and around a kill."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alerts_world import Topics, Worker, until

from isotherm.simulators.scripted_day import temperature
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

FILE = '[[rules]]\nkind = "above"\nmetric = "temperature"\nname = "filed"\nthreshold = {}\n'
ABOVE: dict[str, Any] = {"kind": "above", "metric": "temperature", "name": "hot", "threshold": 30}
HOT = "temperature.hot"


class World:
    """A service with a file and a topic of rules."""

    def __init__(self, topics: Topics, worker: Worker, file: Path) -> None:
        self.topics, self.worker, self.file = topics, worker, file
        self._sequence = 0

    def read(self, device_id: str, *values: float) -> None:
        """Publish values of a device, one a second until now."""
        now_ms = time.time_ns() // 1_000_000
        times = [now_ms - 1_000 * (len(values) - index - 1) for index in range(len(values))]
        found = []
        for value, at_ms in zip(values, times, strict=True):
            self._sequence += 1
            found.append(temperature(device_id, value, at_ms, self._sequence))
        self.topics.publish(self.topics.input, found)

    def put(self, key: str, definition: dict[str, Any] | str | None, role: str = "rule", hours: int = 0) -> None:
        """Write a record of the topic of rules; None removes it."""
        now_ms = time.time_ns() // 1_000_000
        text = definition if isinstance(definition, str) else json.dumps(definition)
        record = {
            "rule_id": key,
            "role": role,
            "definition": text,
            "created_by": "test",
            "created_at": now_ms,
            "updated_by": "test",
            "updated_at": now_ms,
            "hours": hours,
            "problem": None,
            "fired": 0,
            "devices": 0,
            "readings": 0,
            "from": None,
            "until": None,
            "is_complete": True,
        }
        self.topics.put(self.topics.rules, key, None if definition is None else record)

    def states(self, device_id: str, rule: str = "hot") -> list[str]:
        """The states of a device's alerts of a rule, in their order."""
        return [one["state"] for one in self.topics.alerts_of(device_id, rule)]

    def outcome(self, about: str) -> dict[str, Any]:
        """Wait for what the service says of a record."""
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            found[:] = [one for one in self.topics.records(self.topics.rules) if one["rule_id"] == f"outcome/{about}"]
            return bool(found)

        until(f"{about} has an outcome", is_there)
        return found[-1]


@pytest.fixture(scope="module")
def world(
    kafka: Kafka, registry: Registry, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[World]:
    topics = Topics(kafka.bootstrap_servers, registry.url)
    topics.declare()
    folder = tmp_path_factory.mktemp("rules")
    file = folder / "rules.toml"
    file.write_text(FILE.format(90))
    worker = Worker(topics, folder, free_port(), rules_file=str(file), reorder_ms=100)
    worker.start()
    yield World(topics, worker, file)
    worker.stop()


def test_a_rule_of_the_topic_takes_effect_and_its_removal_closes_its_alert(world: World) -> None:
    world.read("topic-1", 20, 40)
    world.put(HOT, ABOVE)
    until("the rule is in force", lambda: world.worker.counted("rules") == 2)
    until("an alert opens", lambda: _read_until_open(world, "topic-1"))
    changed = ABOVE | {"threshold": 35, "severity": "critical", "text": "{device}: {value:.0f} {unit}"}
    world.put(HOT, changed)
    until("the change has closed it", lambda: world.states("topic-1") == ["opened", "closed"])
    assert world.topics.alerts_of("topic-1", "hot")[-1]["message"] == "the rule was changed"
    until("another one opens", lambda: _read_until_open(world, "topic-1", opened=2))
    newest = world.topics.alerts_of("topic-1", "hot")[-1]
    assert (newest["severity"], newest["message"]) == ("critical", "topic-1: 41 Cel")
    world.put(HOT, None)
    # No further reading comes: the service looks for alerts of the removed rule.
    until("the removal has closed it", lambda: world.states("topic-1")[-1] == "closed")
    assert world.topics.alerts_of("topic-1", "hot")[-1]["message"] == "the rule was removed"
    world.topics.distinct_alerts()


def _read_until_open(world: World, device_id: str, opened: int = 1) -> bool:
    """Read on: a change takes effect between two readings."""
    world.read(device_id, 41)
    return world.states(device_id).count("opened") >= opened


def test_a_bad_rule_changes_nothing_and_says_why(world: World) -> None:
    world.put("temperature.cold", {"kind": "below", "metric": "temperature", "name": "cold", "threshold": 5})
    until("the rule is in force", lambda: world.worker.counted("rules") == 2)
    for bad, why in (
        ({"kind": "below", "metric": "temperature", "name": "cold", "threshold": "x"}, "threshold = 'x'"),
        ("no JSON", "Expecting value"),
        ({"kind": "below", "metric": "temperature", "threshold": 5}, "make 'temperature.below'"),
        ({"kind": "below", "metric": "temperature", "name": "cold", "threshold": 5, "text": "{x}"}, "{x} is not"),
    ):
        refused = world.worker.counted("rules_refused_total")
        world.put("temperature.cold", bad)
        until("it is counted", lambda refused=refused: world.worker.counted("rules_refused_total") > refused)  # type: ignore[misc]  # mypy infers no lambda's default
        until("it is told", lambda why=why: why in world.outcome("temperature.cold")["problem"])  # type: ignore[misc]  # as above
    world.read("bad-1", 20, 4)
    until("the former rule judges", lambda: world.states("bad-1", "cold") == ["opened"])
    world.put("temperature.cold", None)
    until("it is removed", lambda: world.worker.counted("rules") == 1)


def test_the_file_is_read_again_and_a_bad_one_changes_nothing(world: World) -> None:
    refused = world.worker.counted("rules_refused_total")
    world.file.write_text("[[rules]]\nkind = 'warm'\n")
    until("the file is refused", lambda: world.worker.counted("rules_refused_total") > refused)
    world.file.write_text(FILE.format(50))

    def fires() -> bool:
        world.read("file-1", 60)
        return world.states("file-1", "filed") == ["opened"]

    until("the new threshold counts", fires)
    assert world.worker.is_ready()


def test_a_trial_counts_what_would_have_fired(world: World) -> None:
    world.read("trial-1", 20, 71, 20, 72)
    world.read("trial-2", 20, 21)
    until("everything is read", lambda: world.topics.unread() == 0)
    rule = {"kind": "above", "metric": "temperature", "name": "tried", "threshold": 70}
    world.put("trial/a", rule, role="trial", hours=1)
    found = world.outcome("trial/a")
    assert (found["problem"], found["fired"], found["devices"], found["is_complete"]) == (None, 2, 1, True)
    assert found["readings"] >= 6
    world.put("trial/b", rule | {"threshold": None}, role="trial")
    assert "threshold" in world.outcome("trial/b")["problem"]
    assert world.states("trial-1", "tried") == []


def test_a_trial_compares_with_the_means_that_groups_had(world: World) -> None:
    """While no rule in force compares with means, so that the service has none."""
    world.read("trial-mean", 20, 20, 20)
    until("everything is read", lambda: world.topics.unread() == 0)
    at_ms = time.time_ns() // 1_000_000
    window = {
        "attribute": "region", "group": "trial", "metric": "temperature", "window_start": at_ms - 120_000,
        "window_end": at_ms - 60_000, "device_count": 4, "count": 9, "mean": 50.0, "min": 1.0, "max": 90.0,
        "revision": 1,
    }  # fmt: skip
    world.topics.put(world.topics.groups, "region|trial|temperature", window)
    device: dict[str, Any] = {
        "device_id": "trial-mean",
        "home": None,
        "region": "trial",
        "room": None,
        "model": None,
        "thresholds": {},
    }
    world.topics.publish(world.topics.devices, [device])
    numbers = itertools.count()
    rule = {"kind": "off-group-mean", "metric": "temperature", "group": "region", "threshold": 10}

    def fires() -> bool:
        # The service has to read the device's region first.
        trial = f"trial/mean-{next(numbers)}"
        world.put(trial, rule, role="trial", hours=1)
        found = world.outcome(trial)
        return (found["problem"], found["fired"], found["devices"]) == (None, 1, 1)

    until("the readings are far from the mean", fires)


def test_a_change_around_kills_opens_and_closes_each_alert_once(world: World) -> None:
    for round_ in range(3):
        device_id = f"killed-{round_}"
        world.put(HOT, ABOVE | {"threshold": 30 + round_})
        until("an alert opens", lambda device_id=device_id: _read_until_open(world, device_id))  # type: ignore[misc]  # mypy infers no lambda's default
        world.put(HOT, ABOVE | {"threshold": 20 + round_})
        world.worker.kill()
        world.read(device_id, 41, 10)
        world.worker.start()
        until("it is closed", lambda device_id=device_id: world.states(device_id)[-1] == "closed")  # type: ignore[misc]  # as above
        closed = [one for one in world.topics.alerts_of(device_id, "hot") if one["state"] == "closed"]
        assert closed[0]["message"] == "the rule was changed"
    found = world.topics.distinct_alerts()
    opened = {alert_id for alert_id, state in found if state == "opened" and "/hot/" in alert_id}
    assert opened <= {alert_id for alert_id, state in found if state == "closed"}
