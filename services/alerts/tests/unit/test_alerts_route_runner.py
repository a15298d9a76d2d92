"""A route between a fake consumer and a real server: what is repeated, given up, committed, and what blocks nothing."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from prometheus_client import Counter
from pydantic import TypeAdapter
from route_targets import HttpServer, alert

from isotherm.alerts.metrics import Metrics
from isotherm.alerts.notifications import route_runner
from isotherm.alerts.notifications.alert_reader import AlertReader
from isotherm.alerts.notifications.http_target import HttpTarget
from isotherm.alerts.notifications.route_runner import RouteClients, RouteRunner
from isotherm.alerts.routes.kinds import Route
from isotherm.alerts.routes.matching import RouteFilter
from isotherm.alerts.routes.silences import Silence, SilenceTable
from isotherm.connector.errors.dead_letters import DeadLetterRecord
from isotherm.servicekit.health import Health

LIMIT_S = 20.0


def until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < limit
        threading.Event().wait(0.01)


class Consumer:
    """One partition, or more, of alerts; offsets as Kafka would hold them."""

    def __init__(self, alerts: list[dict[str, Any]], committed: dict[int, int] | None = None) -> None:
        self.alerts, self.committed_offsets = alerts, dict(committed or {0: 0})
        self.given = [TopicPartition("alerts", 0)]
        self.partitions: dict[int, tuple[int, int]] = {0: (0, len(alerts))}
        self.error: KafkaError | None = None
        self.commit_error: KafkaError | None = None
        self.position: int | None = None
        self.paused = False
        self.age_ms = 0
        self.metadata = ""
        self.metadata_of: dict[int, str] = {}
        self._assign: Callable[..., None] | None = None

    def subscribe(self, topics: list[str], on_assign: Callable[..., None], **_others: Any) -> None:
        self._assign = on_assign

    def poll(self, timeout_s: float) -> Any:
        if self._assign is not None:
            assign, self._assign = self._assign, None
            assign(self, self.given)
        if self.error is not None:
            error, self.error = self.error, None
            return _message(b"", 0, error=error)
        if self.paused or self.position is None or self.position >= len(self.alerts):
            threading.Event().wait(min(timeout_s, 0.01))
            return None
        self.position += 1
        at_ms = time.time_ns() // 1_000_000 - self.age_ms
        return _message(str(self.position - 1).encode(), self.position - 1, at_ms=at_ms)

    def consume(self, most: int, timeout_s: float) -> list[Any]:
        found = (self.poll(0) for _ in range(most))
        return [one for one in iter(lambda: next(found, None), None) if one is not None]

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.position = next((one.offset for one in partitions if one.partition == 0), None)

    def assignment(self) -> list[TopicPartition]:
        return []

    def pause(self, _partitions: object) -> None:
        self.paused = True

    def resume(self, _partitions: object) -> None:
        self.paused = False

    def list_topics(self, topic: str, **_others: Any) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=self.partitions)})

    def committed(self, asked: list[TopicPartition], **_others: Any) -> list[TopicPartition]:
        offsets, metadata = self.committed_offsets, self.metadata_of
        numbers = [one.partition for one in asked]
        return [TopicPartition("alerts", one, offsets.get(one, -1001), metadata.get(one, "")) for one in numbers]

    def get_watermark_offsets(self, one: TopicPartition, **_others: Any) -> tuple[int, int]:
        return self.partitions[one.partition]

    def commit(self, offsets: list[TopicPartition], **_others: Any) -> None:
        if self.commit_error is not None:
            raise KafkaException(self.commit_error)
        self.committed_offsets.update({one.partition: one.offset for one in offsets})
        self.metadata_of.update({one.partition: str(one.metadata) for one in offsets})
        self.metadata = str(offsets[0].metadata)

    def close(self) -> None:
        """Nothing is held."""


def _message(value: bytes, offset: int, at_ms: int = 0, error: KafkaError | None = None) -> Any:
    fields: dict[str, Any] = {
        "error": error, "value": value, "topic": "alerts", "partition": 0, "offset": offset, "key": b"", "headers": [],
        "timestamp": (1, at_ms),
    }  # fmt: skip
    return SimpleNamespace(**{name: (lambda found=found: found) for name, found in fields.items()})


class World:
    """A route that reads from fake consumers, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, consumers: list[Consumer], url: str, **fields: Any) -> None:
        self.opened, self.dead = 0, list[DeadLetterRecord]()
        self.health, self.metrics = Health(), Metrics()
        self.health.ready()
        self.consumers = consumers
        given = {"group_by": ["alert"], "retry_for_ms": 60_000, **fields}
        route: Any = TypeAdapter(Route).validate_python({"kind": "webhook", "name": "ops", "url": url, **given})
        self.route = route

        def consumer() -> Any:
            self.opened += 1
            return consumers[min(self.opened, len(consumers)) - 1]

        unused: Any = None
        dead_letters: Any = SimpleNamespace(send=self.dead.extend)
        self.silences = SilenceTable()

        def history() -> Any:
            return Consumer(consumers[0].alerts)

        clients = RouteClients(consumer, history, lambda: dead_letters, lambda: HttpTarget(self.route))
        self.runner = RouteRunner(
            self.route, "g", "alerts", unused, clients, lambda _device: {}, self.silences, self.metrics, self.health
        )
        monkeypatch.setattr(
            self.runner, "_decode", lambda value: SimpleNamespace(record=consumers[0].alerts[int(value)])
        )

    def counted(self, counter: Counter, outcome: str) -> float:
        value: float = counter.labels("ops", outcome)._value.get()
        return value


@pytest.fixture
def server() -> Iterator[HttpServer]:
    made = HttpServer()
    yield made
    made.close()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(consumers: list[Consumer], url: str, **fields: Any) -> World:
        made.append(World(monkeypatch, consumers, url, **fields))
        made[-1].runner.start()
        return made[-1]

    yield make
    for one in made:
        one.runner.close()


def test_what_fails_is_repeated_with_the_same_key_until_it_is_taken(
    server: HttpServer, world: Callable[..., World]
) -> None:
    for status in (503, 429):
        server.answers.put(status)
    consumer = Consumer([alert()])
    made = world([consumer], server.url)
    keys = [server.received.get(timeout=LIMIT_S).headers["Idempotency-Key"] for _ in range(3)]
    assert keys == ["dev-1/above/temperature/1/opened"] * 3
    until(lambda: consumer.committed_offsets == {0: 1})
    assert made.counted(made.metrics.notifications, "repeated") == 2
    assert made.counted(made.metrics.notifications, "delivered") == 1
    assert made.dead == []


def test_what_is_refused_is_buried_and_the_next_alert_is_told(server: HttpServer, world: Callable[..., World]) -> None:
    server.answers.put(400)
    consumer = Consumer([alert("bad"), alert("good")])
    made = world([consumer], server.url)
    until(lambda: consumer.committed_offsets == {0: 2})
    (dead,) = made.dead
    assert dead.value == b"0"
    assert ("__connect.errors.exception.message", b"answered 400") in dead.headers
    assert made.counted(made.metrics.route_alerts, "dead-lettered") == 1
    assert made.counted(made.metrics.route_alerts, "delivered") == 1


def test_what_is_repeated_for_too_long_is_buried(server: HttpServer, world: Callable[..., World]) -> None:
    for _ in range(100):
        server.answers.put(503)
    made = world([Consumer([alert()])], server.url, retry_for_ms=0)
    until(lambda: len(made.dead) == 1)
    assert made.counted(made.metrics.notifications, "repeated") == 0


def test_one_notification_that_is_not_taken_holds_up_no_other(server: HttpServer, world: Callable[..., World]) -> None:
    consumer = Consumer([alert("first"), alert("second")])
    server.answers.put(503)
    world([consumer], server.url)
    until(lambda: consumer.committed_offsets == {0: 2})
    told = [server.received.get(timeout=LIMIT_S).headers["Idempotency-Key"] for _ in range(3)]
    assert told[:2] == [f"{name}/above/temperature/1/opened" for name in ("first", "second")]
    assert told[2] == told[0]


def test_a_template_that_fails_at_an_alert_costs_only_that_alert(
    server: HttpServer, world: Callable[..., World]
) -> None:
    template = "{% if alert.device_id == 'odd' %}{{ 1 // 0 }}{% endif %}{{ alert.device_id }}"
    consumer = Consumer([alert("odd"), alert("even")])
    made = world([consumer], server.url, template=template, content_type="text/plain")
    assert server.received.get(timeout=LIMIT_S).body == b"even"
    until(lambda: consumer.committed_offsets == {0: 2})
    assert [one.value for one in made.dead] == [b"0"]


def test_filtered_resolved_and_old_alerts_are_settled_without_a_post(
    server: HttpServer, world: Callable[..., World]
) -> None:
    consumer = Consumer([alert(severity="info"), alert(state="closed"), alert("told")])
    made = world([consumer], server.url, filter={"severities": ["warning"]}, send_resolved=False)
    until(lambda: consumer.committed_offsets == {0: 3})
    assert server.received.get(timeout=LIMIT_S).headers["Idempotency-Key"] == "told/above/temperature/1/opened"
    assert server.received.empty()
    assert made.counted(made.metrics.route_alerts, "filtered") == 2
    old = Consumer([alert()])
    old.age_ms = 86_400_001
    late = world([old], server.url)
    until(lambda: old.committed_offsets == {0: 1})
    assert late.counted(late.metrics.route_alerts, "expired") == 1
    assert server.received.empty()


def test_a_new_route_begins_at_the_end_and_an_added_partition_at_its_beginning(
    server: HttpServer, world: Callable[..., World]
) -> None:
    new = Consumer([alert(str(number)) for number in range(5)], committed={7: 0})
    new.partitions = {0: (1, 5), 1: (3, 9)}
    made = world([new], server.url)
    until(lambda: new.committed_offsets == {0: 5, 1: 9, 7: 0})
    grown = Consumer([alert()], committed={0: 1})
    grown.partitions = {0: (0, 1), 1: (3, 9)}
    world([grown], server.url)
    until(lambda: grown.committed_offsets == {0: 1, 1: 3})
    assert made.counted(made.metrics.notifications, "delivered") == 0
    assert server.received.empty()


def test_a_member_without_partition_0_stands_by(server: HttpServer, world: Callable[..., World]) -> None:
    other = Consumer([alert()], committed={})
    other.given = [TopicPartition("alerts", 3)]
    made = world([other], server.url)
    until(lambda: made.health.problems() == {} and other._assign is None)
    assert (other.position, other.committed_offsets) == (None, {0: 0})


@pytest.mark.parametrize("code", [KafkaError.REQUEST_TIMED_OUT, KafkaError._WAIT_COORD, KafkaError.ILLEGAL_GENERATION])
def test_a_failed_commit_ends_nothing(server: HttpServer, world: Callable[..., World], code: int) -> None:
    consumer = Consumer([alert(str(number)) for number in range(3)])
    consumer.commit_error = KafkaError(code)
    made = world([consumer], server.url)
    until(lambda: made.counted(made.metrics.notifications, "delivered") == 3)
    assert (made.opened, made.health.problems()) == (1, {})


def test_a_route_that_kafka_refuses_says_so_and_begins_anew(server: HttpServer, world: Callable[..., World]) -> None:
    first, second = Consumer([]), Consumer([])
    first.error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    go_on = threading.Event()
    told: list[dict[str, str]] = []
    made: list[World] = []

    def consumer() -> Any:
        told.append(made[0].health.problems())
        assert go_on.wait(LIMIT_S)
        return second

    made.append(world([first], server.url))
    made[0].runner._clients = made[0].runner._clients._replace(consumer=consumer)
    until(lambda: bool(told) or "route ops" in made[0].health.problems())
    go_on.set()
    until(lambda: made[0].health.problems() == {})
    assert second._assign is None


def test_an_answer_is_its_status_whatever_its_body_is(world: Callable[..., World]) -> None:
    for headers, body in (({"Content-Encoding": "gzip"}, b"ok"), ({}, b"x" * 1_000_000)):
        server = HttpServer(headers, body)
        consumer = Consumer([alert(str(number)) for number in range(3)])
        made = world([consumer], server.url)
        until(lambda consumer=consumer: consumer.committed_offsets == {0: 3})  # type: ignore[misc]  # bound per turn
        assert made.counted(made.metrics.notifications, "repeated") == 0
        server.close()


def test_many_notifications_for_a_slow_target_leave_kafka_its_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that does not poll loses its partitions, and what it tells meanwhile is told again for ever."""
    monkeypatch.setattr(route_runner, "_TURN_S", 0.0)
    consumer = Consumer([alert(str(number)) for number in range(9)])
    made = World(monkeypatch, [consumer], "http://127.0.0.1:9")
    happened: list[str] = []
    poll = consumer.poll

    def noted(wait_s: float) -> Any:
        happened.append("poll")
        return poll(wait_s)

    monkeypatch.setattr(consumer, "poll", noted)
    slow: Any = SimpleNamespace(send=lambda _one: happened.append("send"), close=lambda: None)
    monkeypatch.setattr(made.runner, "_clients", made.runner._clients._replace(target=lambda: slow))
    made.runner.start()
    until(lambda: consumer.committed_offsets == {0: 9})
    made.runner.close()
    assert happened.count("send") == 9
    assert all(one != other or one == "poll" for one, other in itertools.pairwise(happened))


def test_how_far_silences_are_dealt_with_is_committed_although_nothing_happens() -> None:
    """Else a restart would tell again what the end of a silence has told long ago."""
    consumer = Consumer([])
    unread: Any = consumer
    reader = AlertReader(unread, "alerts", "ops")
    assert reader.read(0.0) == []
    reader.checked_ms += 60_001
    reader.commit()
    assert consumer.metadata == f"silences-checked-ms={reader.checked_ms}"
    assert consumer.committed_offsets == {0: 0}


def test_a_silence_mutes_and_is_counted(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Consumer([alert("muted"), alert("told", rule="silent")])
    made = World(monkeypatch, [consumer], server.url)
    made.silences.put("s", Silence(RouteFilter(rules=["above"]), None, 0, None), 0)
    made.runner.start()
    until(lambda: consumer.committed_offsets == {0: 2})
    made.runner.close()
    assert server.received.get(timeout=LIMIT_S).headers["Idempotency-Key"] == "told/above/temperature/1/opened"
    assert server.received.empty()
    assert made.counted(made.metrics.route_alerts, "silenced") == 1


def test_the_end_of_an_alert_is_told_with_the_attributes_of_its_opening(server: HttpServer, monkeypatch: Any) -> None:
    """Alertmanager knows an alert by its labels: with others it would never resolve the first one."""
    kept = {"region": "north"}
    told = [alert("new", attributes=kept), alert("new", "closed", attributes=kept), alert("old", attributes=None)]
    consumer = Consumer(told)
    made = World(monkeypatch, [consumer], server.url, group_by=["region"], group_wait_ms=0, group_interval_ms=0)
    made.runner._attributes = lambda _device: {"home": None, "region": "south", "model": None}
    made.runner.start()
    until(lambda: consumer.committed_offsets == {0: 3})
    made.runner.close()
    by_region: dict[str, list[tuple[str, str]]] = {}
    while not server.received.empty():
        post = json.loads(server.received.get().body)
        seen = by_region.setdefault(post["group"]["region"], [])
        seen += [(one["device_id"], one["state"]) for one in post["alerts"]]
    assert by_region["north"][-1] == ("new", "closed")
    assert by_region["south"] == [("old", "opened")]


def test_a_partition_whose_commit_is_refused_is_committed_again() -> None:
    """librdkafka raises only what concerns all partitions; the others are in its answer."""
    refused = [KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE)]
    kept: list[list[int]] = []

    def commit(offsets: list[TopicPartition], **_others: Any) -> list[Any]:
        kept.append([one.partition for one in offsets])
        error = refused.pop() if refused else None
        return [SimpleNamespace(partition=one.partition, error=error if one.partition else None) for one in offsets]

    consumer: Any = SimpleNamespace(subscribe=lambda *_some, **_others: None, commit=commit)
    reader = AlertReader(consumer, "alerts", "ops", 20)
    reader._tracker.start({0: 0, 1: 0})
    reader.starts = {0: 0, 1: 0}
    for number in range(2):
        reader._tracker.read(number, 0)
        reader.settle(number, 0)
    reader.storms.is_changed = True
    done = [(reader.commit(at_once=True), reader.storms.is_changed) for _ in range(2)]
    assert done == [(False, True), (True, False)]
    assert kept == [[0, 1], [0, 1]]
