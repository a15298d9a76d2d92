"""Observation over faulty paths, of frozen and restarted servers, over every transport, and of discovered resources."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from coap_world import BOTH, PRE_SHARED_KEY, Record, World, messages_in, opened, sent, stop

from isotherm.simulators.ledger import events
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

pytestmark = pytest.mark.integration

MESSAGES = "INSERT INTO coap_sensor_topic SELECT * FROM {0}"
IMPATIENT = "observation.answer_timeout_ms=1000"
PSK = {"connect.coap.username": "device-1", "connect.coap.password": PRE_SHARED_KEY}


@pytest.fixture
def world(kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[World]:
    with opened(kafka, registry, tmp_path, free_port) as made:
        yield made


def observe_numbers(records: Sequence[Record]) -> list[int]:
    return [r.value["observe"] for r in records if r.topic == "coap_sensor_topic"]


def interrupted(world: World, times: int, _seen: Sequence[Record]) -> bool:
    return world.metric("interruptions_total") >= times


def has(count: int, seen: Sequence[Record]) -> bool:
    return len(seen) >= count


# A lost confirmable notification delays all others for seconds (NSTART is 1) but is retransmitted: few are missed.
@pytest.mark.parametrize(("more", "enough"), [((), 240), (("--confirmable",), 12)], ids=["NON", "CON"])
def test_over_a_path_that_loses_duplicates_and_reorders_the_newest_wins_and_the_gap_is_exact(
    world: World, more: tuple[str, ...], enough: int
) -> None:
    reader = world.reader("coap_sensor_topic")
    server_port = world.free_port()
    simulator = world.simulator("--rate", "60", "--max-age", "60", *more, port=server_port)
    relay = world.relay(server_port, "--drop", "0.2", "--duplicate", "0.1", "--reorder", "0.2", "--seed", "7")
    ingest = world.ingest(MESSAGES.format("sensors"))
    reader.until(lambda seen: len(seen) >= enough)
    assert stop(simulator) == 0
    missed = world.metric("missed_notifications_total")
    assert world.metric("registrations_total", kind="register") == 1
    assert world.metric("interruptions_total") == 0
    superseded = world.metric("notifications_total", outcome="superseded")
    repeated = world.metric("notifications_total", outcome="repeated")
    assert stop(ingest) == 0
    assert stop(relay) == 0
    records = reader.rest()

    numbers = observe_numbers(records)
    assert all(later > earlier for earlier, later in itertools.pairwise(numbers))
    assert missed == numbers[-1] - numbers[0] + 1 - len(numbers)
    assert more or (missed > 30 and superseded > 10)
    assert repeated > 0
    by_number = {e["observe"]: e["event_time_ms"] for e in events(world.ledger) if e["event"] == "notified"}
    stored = dict(zip(numbers, (time_ms for _, time_ms, _ in messages_in(records)), strict=True))
    assert stored == {number: by_number[number] for number in numbers}
    counts = next(e["down"] for e in events(world.folder / "relay.jsonl") if e["event"] == "end")
    assert min(counts["dropped"], counts["duplicated"], counts["reordered"]) > 0


def test_a_frozen_server_becomes_stale_and_is_observed_again_when_it_continues(world: World) -> None:
    reader = world.reader("coap_sensor_topic")
    simulator = world.simulator("--rate", "40")
    ingest = world.ingest(MESSAGES.format("sensors"), IMPATIENT)
    reader.until(lambda seen: len(seen) >= 20)
    simulator.send_signal(signal.SIGSTOP)
    reader.until(lambda _: world.metric("interruptions_total") >= 1)
    assert world.metric("stale") == 1
    assert world.metric("went_stale_total") == 1
    assert any("no answer within" in problem for problem in world.ready().values())
    simulator.send_signal(signal.SIGCONT)
    thawed_ms = time.time_ns() // 1_000_000
    records = reader.until(lambda seen: [ms > thawed_ms for _, ms, _ in messages_in(seen)].count(True) >= 40)
    reader.until(lambda _: not world.ready())

    assert world.metric("stale") == 0
    assert stop(ingest) == 0
    assert max(Counter(messages_in(records)).values()) == 1
    times = [time_ms for _, time_ms, _ in messages_in(records)]
    assert times == sorted(times)


def test_a_restart_that_one_observer_notices_makes_the_others_ask_at_once(world: World) -> None:
    reader = world.reader("coap_sensor_topic")
    server = world.libcoap()
    # `time` has a Max-Age of a second, `example_data` of a minute; alone, it would notice the restart only then.
    world.ingest(f"{MESSAGES.format('time')}; {MESSAGES.format('example_data')}")
    reader.until(lambda seen: {r.value["uri_path"] for r in seen} == {"time", "example_data"})
    server.kill()
    server.wait()
    reader.until(lambda _: world.metric("interruptions_total") >= 1)
    world.libcoap()
    slow = f"coap://{world.authority}/example_data"
    reader.until(lambda _: world.metric("registrations_total", resource=slow) >= 2)
    world.put("example_data", b"after the restart", 0)
    reader.until(lambda seen: any(r.value["payload"] == "after the restart" for r in seen))


def test_many_resources_on_several_servers_are_discovered_from_one_statement(world: World) -> None:
    ports = [world.port, world.free_port()]
    reader = world.reader("coap_sensor_topic", ports=ports)
    first, _ = (world.simulator("--rate", "100", "--resources", "20", "--max-age", "5", port=port) for port in ports)
    ingest = world.ingest(
        MESSAGES.format("`sensors/*`"),
        uri=", ".join(f"coap://localhost:{port}" for port in ports),
        keys={"connect.coap.discovery.rt": "temp*", "connect.coap.discovery.interval.ms": "500"},
    )
    expected = {(port, f"sensors/{number}") for port in ports for number in range(20)}
    reader.until(lambda seen: {(r.value["uri_port"], r.value["uri_path"]) for r in seen} == expected)
    assert world.metric("discovered_resources") == 40

    # The first server restarts with fewer resources: the service stops observing the others, and no problem remains.
    first.kill()
    first.wait()
    world.simulator("--rate", "100", "--resources", "5", "--max-age", "5", port=world.port)
    reader.until(lambda _: world.metric("discovered_resources") == 25 and not world.ready())
    assert stop(ingest) == 0


def test_notifications_of_many_blocks_arrive_complete(world: World) -> None:
    reader = world.reader("coap_sensor_topic")
    world.simulator("--rate", "5", "--padding", "5000")
    ingest = world.ingest(MESSAGES.format("sensors"))
    records = reader.until(lambda seen: len(seen) >= 10)
    assert stop(ingest) == 0
    assert min(len(r.value["payload"]) for r in records) > 5000
    assert set(messages_in(records)) <= set(sent(world.ledger))


def test_over_tcp_every_state_arrives_and_a_restart_is_survived(world: World) -> None:
    reader = world.reader("coap_sensor_topic", "thermostat.data")
    simulator = world.simulator("--rate", "40", "--tcp", "--resources", "2")
    kcql = "; ".join(BOTH.format(source) for source in ("sensors", "sensors/0", "sensors/1"))
    ingest = world.ingest(kcql, uri=f"coap+tcp://{world.authority}")
    reader.until(lambda seen: len(seen) >= 60)
    simulator.kill()
    simulator.wait()
    reader.until(lambda _: world.metric("interruptions_total") >= 3)
    restarted_ms = time.time_ns() // 1_000_000
    again = world.simulator("--rate", "40", "--tcp", "--resources", "2")
    reader.until(lambda seen: [ms > restarted_ms for _, ms, _ in messages_in(seen)].count(True) >= 40)
    reader.until(lambda _: not world.ready())
    assert stop(ingest) == 0
    assert stop(again) == 0
    records = reader.rest()

    assert max(Counter(messages_in(records)).values()) == 1
    after = [s for s in sent(world.ledger) if s[1] > restarted_ms]
    stored = {m for m in messages_in(records) if m[1] > restarted_ms}
    assert stored <= set(after)
    assert {r.value["type"] for r in records if r.topic == "coap_sensor_topic"} == {None}


def test_over_dtls_libcoap_is_observed_and_again_after_its_restart(world: World) -> None:
    reader = world.reader("coap_sensor_topic")
    server = world.libcoap_dtls()
    ingest = world.ingest(MESSAGES.format("time"), IMPATIENT, uri=f"coaps://{world.authority}", keys=PSK)
    before = len(reader.until(lambda seen: len(seen) >= 3))
    server.kill()
    server.wait()
    reader.until(lambda _: world.metric("interruptions_total") >= 1)
    world.libcoap_dtls()
    records = reader.until(lambda seen: len(seen) >= before + 3)
    reader.until(lambda _: not world.ready())

    assert stop(ingest) == 0
    assert records[-1].value["is_notification"]
    assert records[-1].headers["coap.uri"] == f"coaps://{world.authority}/time"
    assert PRE_SHARED_KEY not in (world.folder / "ingest.log").read_text()


def test_over_dtls_every_state_of_the_simulator_arrives(world: World) -> None:
    port = world.free_port()
    reader = world.reader("coap_sensor_topic", ports=[port + 1])
    simulator = world.simulator("--rate", "40", "--dtls-psk", f"device-1:{PRE_SHARED_KEY}", port=port)
    ingest = world.ingest(MESSAGES.format("sensors"), uri=f"coaps://127.0.0.1:{port + 1}", keys=PSK)
    reader.until(lambda seen: len(seen) >= 80)
    assert stop(ingest) == 0
    assert stop(simulator) == 0
    assert messages_in(reader.rest()) == sent(world.ledger)


def test_a_wrong_key_shows_as_no_answer_and_nothing_is_stored(world: World) -> None:
    reader = world.reader("coap_sensor_topic")
    world.libcoap_dtls()
    ingest = world.ingest(
        MESSAGES.format("time"),
        IMPATIENT,
        uri=f"coaps://{world.authority}",
        keys={**PSK, "connect.coap.password": "wrong"},
    )
    reader.until(lambda _: world.metric("registrations_total") >= 2)
    assert world.ready()
    assert stop(ingest) == 0
    assert reader.rest() == []


@pytest.mark.faults
@pytest.mark.long
@pytest.mark.parametrize("peer", ["simulator", "libcoap", "libcoap-dtls"])
def test_observation_resumes_within_max_age_and_15_s_after_each_of_five_restarts(world: World, peer: str) -> None:
    reader = world.reader("coap_sensor_topic")
    start = {
        "simulator": lambda: world.simulator("--rate", "20"),
        "libcoap": world.libcoap,
        "libcoap-dtls": world.libcoap_dtls,
    }[peer]
    scheme, keys = ("coaps", PSK) if peer == "libcoap-dtls" else ("coap", {})
    defaults = [
        "observation.silence_grace_min_ms=5000",
        "observation.silence_grace_max_ms=15000",
        "observation.answer_timeout_ms=5000",
        "observation.retry_cap_ms=10000",
    ]
    source = "sensors" if peer == "simulator" else "time"
    server = start()
    ingest = world.ingest(MESSAGES.format(source), *defaults, uri=f"{scheme}://{world.authority}", keys=keys)
    reader.until(lambda seen: len(seen) >= 3)
    outages_s = []
    for restart in range(1, 6):
        server.kill()
        server.wait()
        # The server stays down until the service notices, so that the recovery time is the service's own.
        reader.until(partial(interrupted, world, restart))
        server = start()
        back, before = time.monotonic(), len(reader.rest())
        reader.until(partial(has, before + 3))
        outages_s.append(round(time.monotonic() - back, 1))
    assert stop(ingest) == 0
    bodies = [json.dumps(r.value["payload"]) for r in reader.rest()]
    assert max(outages_s) <= 1 + 15, outages_s
    assert max(Counter(bodies).values()) <= (1 if peer == "simulator" else 6)
