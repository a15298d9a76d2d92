"""The status of a standalone task: its counts from the process's metrics, and a registry that is not ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from confluent_kafka import Producer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from isotherm.connector.standalone.reporting import counts_of
from isotherm.connector.state.status import Heartbeat, State
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry


def test_counters_and_gauges_are_summed_over_their_labels() -> None:
    registry = CollectorRegistry()
    received = Counter("suite_part_received", "Received.", ["qos"], registry=registry)
    received.labels("0").inc(2)
    received.labels("1").inc(3)
    Gauge("suite_part_connections", "Open.", registry=registry).set(7)
    Counter("other_received", "Of somebody else.", registry=registry).inc()
    Histogram("suite_part_seconds", "No count.", registry=registry).observe(1.0)

    assert counts_of(registry, "suite_part_") == {"received": 5, "connections": 7}
    Gauge("suite_part_rows", "Rows.", registry=registry).set(float("nan"))
    assert counts_of(registry, "suite_part_") == {"received": 5, "connections": 7}, "nobody knows how many rows"


class Registry:
    """A registry that does not have the schema at the first request."""

    def __init__(self, failures: int = 1) -> None:
        self.requests, self._failures = 0, failures

    def encoder(self, topic: str, _schema: object) -> Callable[[dict[str, Any]], bytes]:
        """Return an encoder that keeps only the state."""
        self.requests += 1
        if self.requests <= self._failures:
            raise SchemaNotRegisteredError(topic)
        return lambda record: bytes(record["state"], "ascii")


class Told:
    """A producer that keeps what is produced."""

    def __init__(self) -> None:
        self.states: list[bytes] = []

    def poll(self, _timeout_s: float) -> None:
        """Report nothing."""

    flush = poll

    def produce(self, _topic: str, *, key: str, value: bytes) -> None:
        """Keep a value."""
        self.states.append(value)


def heartbeat_of(registry: Registry, told: Told, clock_ms: Callable[[], float]) -> Heartbeat:
    made = cast(Producer, told)
    return Heartbeat(lambda: made, cast(SchemaRegistry, registry), connector="a", task=0, clock_ms=clock_ms)


def test_a_schema_that_is_missing_is_looked_up_again_after_ten_seconds() -> None:
    now_ms, told, registry = 0.0, Told(), Registry()
    heartbeat = heartbeat_of(registry, told, lambda: now_ms)
    requests = []
    for now_ms in (0.0, 9_999.0, 10_000.0, 90_000.0):  # noqa: B007 - the clock reads it
        heartbeat.beat(State.RUNNING, dict, dict)
        requests.append(registry.requests)
    heartbeat.publish_final_state(State.UNASSIGNED, {})
    assert requests == [1, 1, 2, 2]
    assert told.states == [b"RUNNING", b"RUNNING", b"UNASSIGNED"]


def test_the_last_word_of_a_task_that_fails_at_once_is_said() -> None:
    told = Told()
    heartbeat_of(Registry(0), told, lambda: 0.0).publish_final_state(State.FAILED, {}, "trace")
    assert told.states == [b"FAILED"]


def test_a_producer_is_made_only_with_the_schema_and_after_a_failure_again() -> None:
    now_ms, told, registry, tries = 0.0, Told(), Registry(), list[int]()

    def make() -> Producer:
        tries.append(registry.requests)
        if len(tries) == 1:
            raise RegistryUnavailableError("away")
        return cast(Producer, told)

    heartbeat = Heartbeat(make, cast(SchemaRegistry, registry), connector="a", task=0, clock_ms=lambda: now_ms)
    for now_ms in (0.0, 30_000.0, 60_000.0, 90_000.0):  # noqa: B007 - the clock reads it
        heartbeat.beat(State.RUNNING, dict, dict)
    assert tries == [2, 3]
    assert told.states == [b"RUNNING", b"RUNNING"]
