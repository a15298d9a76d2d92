"""The limit on publishes in flight: when clients wait, and when they continue."""

from __future__ import annotations

from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.ingest.inflight_gate import InflightGate
from isotherm.mqtt_proxy.metrics import Metrics


class Client:
    """A client that counts its resumptions."""

    def __init__(self) -> None:
        self.resumed = 0

    def close(self, reason: Reason, detail: str) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def resume(self) -> None:
        self.resumed += 1


def is_congested(gate: InflightGate) -> bool:
    return gate.is_congested


def test_parked_clients_resume_at_half_of_both_bounds() -> None:
    metrics = Metrics()
    gate, client, ended = InflightGate(10, 1_000, metrics), Client(), Client()
    gate.acquire(9, 100)
    assert not is_congested(gate)
    gate.acquire(1, 800)
    assert is_congested(gate)
    gate.acquire(1, 0)
    assert metrics.congestions == 1, "one congestion, however many publishes met it"
    for waiting in (client, ended):
        gate.park(waiting)
    gate.forget(ended)
    assert gate.parked == 1
    gate.release(6, 0)
    assert is_congested(gate), "too many bytes"
    gate.release(1, 400)
    assert (is_congested(gate), client.resumed, ended.resumed, gate.parked) == (False, 1, 0, 0)
    assert (gate.records, gate.bytes) == (4, 500)


def test_half_of_the_records_is_enough_to_resume_and_more_is_not() -> None:
    gate = InflightGate(10, 1_000, Metrics())
    gate.acquire(10, 10)
    gate.release(4, 4)
    assert is_congested(gate)
    gate.release(1, 1)
    assert not is_congested(gate)


def test_bytes_alone_congest_the_gate() -> None:
    metrics = Metrics()
    gate = InflightGate(10, 1_000, metrics)
    gate.acquire(1, 1_000)
    assert is_congested(gate)
    assert metrics.congestions == 1
    gate.release(1, 1_000)
    assert not is_congested(gate)
