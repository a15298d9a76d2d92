"""`isotherm-console commands` on a real Kafka: each command has one final outcome, whatever is killed."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest
from command_delivery import SCRIPTS, Delivery, Id, Issued, Log, Writer, now_ms, until_settled
from confluent_kafka import Message
from console_world import WAIT_S, Process, World, until

from isotherm.cli import records
from isotherm.connector.commands.records import (
    ACCEPTED,
    ANSWERED,
    COMMANDS,
    DELIVERED,
    DEVICE_UNKNOWN,
    EXPIRED,
    REFUSED,
    STEPS,
    DeviceCommand,
)
from isotherm.servicekit.kafka import clients
from isotherm.stack.servers.kafka import Kafka

pytest_plugins = ("console_fixtures",)
pytestmark = pytest.mark.integration

DEVICES, ROUNDS, KILLS = 300, 5, 4
QUICK = {"grace_ms": 500, "dead_letter_topic": "commands.dead-letters"}


@pytest.fixture
def name() -> str:
    """What begins the ids of this test's devices."""
    return f"c{uuid.uuid4().hex[:8]}"


@pytest.fixture
def log(world: World) -> Iterator[Log]:
    with closing(Log(world)) as made:
        yield made


def provision(world: World, *devices: str) -> None:
    """Let devices be known: only their keys count."""
    producer = clients.producer(world.kafka, "test")
    for device in devices:
        producer.produce("devices", key=device, value=b"known")
    assert producer.flush(WAIT_S) == 0


def command(device: str, ids: str, lasting_ms: int = 60_000, **fields: object) -> DeviceCommand:
    at_ms = now_ms()
    one = DeviceCommand(device, ids, "setpoint", b"21.5", None, "test", at_ms, at_ms + lasting_ms)
    return one._replace(**fields)  # type: ignore[arg-type]  # of each field its own type


def issue(writer: Writer, world: World, name: str, rounds: int) -> dict[Id, Issued]:
    """Issue commands of every fate."""
    outcomes = itertools.cycle(SCRIPTS)
    issued: dict[Id, Issued] = {}
    fates = {f"{name}-{number}": next(outcomes) for number in range(DEVICES)}
    provision(world, *(device for device, outcome in fates.items() if outcome != DEVICE_UNKNOWN))
    for turn in range(rounds):
        for device, outcome in fates.items():
            lasting_ms = 600_000 if outcome in ("delivered", "answered", "refused") else 15_000
            one = command(device, f"{turn}", lasting_ms, expects_answer=outcome == "answered")
            issued[device, one.command_id] = Issued(one, outcome)
            writer.command(one)
    writer.flush()
    return issued


def test_each_command_has_one_final_outcome_through_kills(world: World, log: Log, name: str) -> None:
    process = world.commands(name, **QUICK)
    until("it settles", lambda: _is_settling(process), process.log)
    writer = Writer(world)
    issued = issue(writer, world, name, ROUNDS)
    assert len(issued) >= 1_000
    with Delivery(world, issued) as delivery:
        for turn in range(KILLS):
            # Killed at some progress, each time a later one.
            least = len(issued) * (turn + 1) // (2 * KILLS)
            until("some are settled", lambda least=least: _settled(log, issued) >= least, process.log)  # type: ignore[misc]  # mypy does not infer a lambda with a default
            process.kill()
            process.start()
        told = until_settled(log, issued, process.log, delivery.sent)
    assert told >= {DELIVERED, ANSWERED, REFUSED, EXPIRED}
    # All that were issued again are known, also to a process that has not finished them itself.
    for again in issued.values():
        writer.command(again.command)
    # One for each partition at least, which comes behind them.
    marks = [command(f"{name}-mark-{number}", "mark", qos=3) for number in range(32)]
    for one in marks:
        writer.command(one)
    writer.flush()
    until_settled(log, {(one.device_id, "mark"): Issued(one, REFUSED) for one in marks}, process.log)
    until_settled(log, issued, process.log, delivery.sent)
    assert process.stop() == 0


def _settled(log: Log, issued: Mapping[Id, Issued]) -> int:
    log.read()
    return sum(bool(outcomes) for outcomes in log.finals(issued).values())


def test_another_process_takes_over_from_one_that_is_killed(world: World, log: Log, name: str) -> None:
    first, second = world.commands(f"{name}-1", **QUICK), world.commands(f"{name}-2", **QUICK)
    writer = Writer(world)
    until("both settle", lambda: _is_settling(first) and _is_settling(second), lambda: first.log() + second.log())
    issued = issue(writer, world, name, ROUNDS)
    with Delivery(world, issued) as delivery:
        until("some are settled", lambda: _settled(log, issued) > len(issued) // 10, first.log)
        first.kill()
        told = until_settled(log, issued, second.log, delivery.sent)
    assert told >= {DELIVERED, ANSWERED, REFUSED, EXPIRED}
    assert second.stop() == 0


def test_a_process_that_was_frozen_settles_nothing_twice(world: World, log: Log, name: str) -> None:
    first, second = world.commands(f"{name}-1", **QUICK), world.commands(f"{name}-2", **QUICK)
    writer = Writer(world)
    until("both settle", lambda: _is_settling(first) and _is_settling(second), lambda: first.log() + second.log())
    issued = issue(writer, world, name, ROUNDS)
    with Delivery(world, issued) as delivery:
        until("some are settled", lambda: _settled(log, issued) > len(issued) // 10, first.log)
        first.freeze()
        try:
            until("the other one has all", lambda: _has_all(second), second.log)
            until("it settles too", lambda: _settled(log, issued) > len(issued) // 2, second.log)
        finally:
            first.thaw()
        until_settled(log, issued, lambda: first.log() + second.log(), delivery.sent)
    assert (first.stop(), second.stop()) == (0, 0)


def _has_all(process: Process) -> bool:
    told = [line for line in process.log().splitlines() if '"partitions"' in line]
    return '"partitions": [0, 1, 2, 3]' in told[-1]


def test_it_goes_on_by_itself_after_kafka_was_killed(world: World, kafka: Kafka, log: Log, name: str) -> None:
    process = world.commands(name, **QUICK)
    until("it settles", lambda: _is_settling(process), process.log)
    writer = Writer(world)
    issued = issue(writer, world, name, ROUNDS)
    with Delivery(world, issued) as delivery:
        until("some are settled", lambda: _settled(log, issued) > len(issued) // 10, process.log)
        kafka.kill()
        kafka.start()
        until_settled(log, issued, process.log, delivery.sent)
    assert process.stop() == 0


def _is_settling(process: Process) -> bool:
    return '"settling"' in process.log()


def test_refusals_and_duplicates(world: World, log: Log, name: str) -> None:
    process = world.commands(name, **QUICK)
    writer = Writer(world)
    provision(world, f"{name}-b")
    until("it settles", lambda: _is_settling(process), process.log)
    bad = command(f"{name}-a", "1", name="a/b")
    good = command(f"{name}-b", "1", 10_000)
    lost = command(f"{name}-nobody", "1", 10_000)
    past = command(f"{name}-b", "2", 0)
    for one in (bad, good, good, past, good, lost):
        writer.command(one)
    writer.flush()
    issued = {
        (bad.device_id, "1"): Issued(bad, REFUSED),
        (good.device_id, "1"): Issued(good, EXPIRED),
        (past.device_id, "2"): Issued(past, EXPIRED),
        (lost.device_id, "1"): Issued(lost, DEVICE_UNKNOWN),
    }
    assert DEVICE_UNKNOWN in until_settled(log, issued, process.log)
    told = [one for one in log.outcomes if one.device_id == good.device_id and one.command_id == "1"]
    assert [one.outcome for one in told] == [ACCEPTED, EXPIRED]
    assert process.stop() == 0


def dead_letters(world: World, topic: str) -> list[Message]:
    with closing(records.read(world.kafka, topic)) as found:
        return [one for one in found if one.error() is None]


def test_what_cannot_be_decoded_is_a_dead_letter_with_its_bytes(world: World, log: Log, name: str) -> None:
    topic = f"{name}.dead-letters"
    process = world.commands(name, grace_ms=500, dead_letter_topic=topic)
    writer = Writer(world)
    until("it settles", lambda: _is_settling(process), process.log)
    writer.bytes(COMMANDS, f"{name}-x", b"no avro")
    writer.bytes(STEPS, f"{name}-x", b"no step")
    writer.bytes(COMMANDS, f"{name}-y", None)
    one = command(f"{name}-x", "1", name="")
    writer.command(one)
    writer.flush()
    until_settled(log, {(one.device_id, "1"): Issued(one, REFUSED)}, process.log)
    until("they are there", lambda: len(dead_letters(world, topic)) == 3, process.log)
    found = {
        (dict(each.headers() or [])["__connect.errors.topic"], each.value()) for each in dead_letters(world, topic)
    }
    assert found == {(COMMANDS.encode(), b"no avro"), (STEPS.encode(), b"no step"), (COMMANDS.encode(), None)}
    assert {dict(each.headers() or [])["mark"] for each in dead_letters(world, topic)} == {b"7"}
    assert process.stop() == 0
