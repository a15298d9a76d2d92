"""The status of a standalone task: its counts from the process's metrics, and a registry that is not ready."""

from __future__ import annotations

from typing import cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from isotherm.connector.standalone.reporting import counts_of
from isotherm.connector.state.status import DeferredHeartbeat, Heartbeat, State
from isotherm.servicekit.avro import SchemaNotRegisteredError


def test_counters_and_gauges_are_summed_over_their_labels() -> None:
    registry = CollectorRegistry()
    received = Counter("suite_part_received", "Received.", ["qos"], registry=registry)
    received.labels("0").inc(2)
    received.labels("1").inc(3)
    Gauge("suite_part_connections", "Open.", registry=registry).set(7)
    Counter("other_received", "Of somebody else.", registry=registry).inc()
    Histogram("suite_part_seconds", "No count.", registry=registry).observe(1.0)

    assert counts_of(registry, "suite_part_") == {"received": 5, "connections": 7}


class Told:
    """A heartbeat that keeps its calls."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def beat(self, state: State, _counts: object, _lag: object) -> None:
        """One beat."""
        self.states.append(state)

    publish_final_state = beat


def test_a_heartbeat_that_cannot_be_made_is_tried_again_after_half_a_minute() -> None:
    now_ms, told, tries = 0.0, Told(), 0

    def make() -> Heartbeat:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise SchemaNotRegisteredError("isotherm.status")
        return cast(Heartbeat, told)

    heartbeat = DeferredHeartbeat(make, lambda: now_ms)
    for now_ms in (0.0, 29_999.0, 30_000.0, 90_000.0):  # noqa: B007 - the clock reads it
        heartbeat.beat(State.RUNNING, dict, dict)
    heartbeat.publish_final_state(State.UNASSIGNED, {})
    assert tries == 2
    assert told.states == ["RUNNING", "RUNNING", "UNASSIGNED"]


def test_the_last_word_of_a_task_that_fails_at_once_is_said() -> None:
    told = Told()
    DeferredHeartbeat(lambda: cast(Heartbeat, told)).publish_final_state(State.FAILED, {}, "trace")
    assert told.states == ["FAILED"]
