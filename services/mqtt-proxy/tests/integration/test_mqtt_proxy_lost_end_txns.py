"""Devices publish at QoS 2 while the end of one transaction after the other is lost or late (ADR 0016)."""

from __future__ import annotations

import itertools
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka_gate import KafkaGate, Loss
from mqtt_devices import PUBREC, DeviceGroup, Wire, publish_packet
from mqtt_world import ROUTES, Proxy, opened

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.faults]

POISON_TOPIC = "temperature"


@pytest.fixture
def proxy(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Proxy]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


@pytest.fixture
def gate(proxy: Proxy, kafka: Kafka) -> Iterator[KafkaGate]:
    made = KafkaGate(kafka.bootstrap_servers)
    yield made
    made.close()


def lose_under_load(proxy: Proxy, gate: KafkaGate, *, losses: int) -> None:
    """So many EndTxn requests are lost, delivered late or unanswered, those of aborted transactions among them."""
    with proxy.topics.small_records(POISON_TOPIC):
        routes = f"{ROUTES}; INSERT INTO {POISON_TOPIC} SELECT v AS value, note FROM poison"
        proxy.start(kafka__bootstrap_servers=gate.bootstrap_servers, routes=routes)
        pid = proxy.pid
        group = DeviceGroup(proxy, proxy.device, devices=8, messages=6 * losses, qos=2)
        try:
            ways = itertools.cycle(itertools.product((False, True), Loss, (False, True)))
            for number, (poisoned, loss, at_once) in zip(range(losses), ways, strict=False):
                if poisoned:
                    poison = Wire(proxy, f"{proxy.device}-poison-{number}")
                    payload = json.dumps({"v": 1, "note": secrets.token_hex(4000)}).encode()
                    poison.send(publish_packet("poison", payload, 1))
                gate.lose_end_txn(loss)
                gate.wait_until_it_holds()
                if at_once:
                    gate.deliver_delayed()
                else:
                    gate.deliver_delayed_in_the_next_transaction()
                if poisoned:
                    poison.expect(PUBREC, 1)
            group.finish(600)
        finally:
            group.abandon()
    assert proxy.pid == pid, "the same process"
    assert proxy.topics.identities(proxy.device) == Counter(group.published)
    assert proxy.topics.raw(POISON_TOPIC, proxy.device) == []
    # The request that librdkafka sends again may be the next one to be lost: one producer for two of them.
    assert proxy.metric("recoveries_total") >= losses / 4
    assert proxy.metric('transactions_total{outcome="aborted"}') >= losses // 2
    replaced = proxy.metric("recoveries_total")
    print(f"{losses} lost; {replaced:.0f} replaced; late: {Counter(gate.late_answers)}")  # noqa: T201  # for the results


def test_lost_and_late_ends_of_transactions_under_load(proxy: Proxy, gate: KafkaGate) -> None:
    lose_under_load(proxy, gate, losses=16)


@pytest.mark.long
def test_two_hundred_lost_and_late_ends_of_transactions_under_load(proxy: Proxy, gate: KafkaGate) -> None:
    lose_under_load(proxy, gate, losses=200)


@pytest.mark.parametrize("kafka_decides", [False, True], ids=["not-committed", "committed"])
def test_a_session_that_ends_with_its_connection_learns_the_outcome_too(
    proxy: Proxy, gate: KafkaGate, kafka_decides: bool
) -> None:
    """Before ADR 0016 such a transaction left no trace in Kafka, and its connections were closed either way."""
    proxy.start(kafka__bootstrap_servers=gate.bootstrap_servers)
    wire = Wire(proxy, proxy.device, clean=True, version=5)
    gate.break_commit(kafka_decides=kafka_decides)
    wire.publish(proxy.device, 1.0, 1)
    if not kafka_decides:
        wire.expect_reason(PUBREC, 1, 0x83)
        wire.publish(proxy.device, 1.0, 2)
    wire.expect(PUBREC, 2 - kafka_decides)
    assert proxy.topics.values(proxy.device) == [1.0]
    assert proxy.metric("recoveries_total") == 1
    assert proxy.is_ready()
