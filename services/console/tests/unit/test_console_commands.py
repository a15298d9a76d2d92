"""The parts around settling: partitions that go together, known devices, what one transaction has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Message, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client import CollectorRegistry

from isotherm.connector.commands.records import COMMANDS, OPEN, OUTCOMES, STEPS, CommandOutcome, DeviceCommand
from isotherm.connector.errors.dead_letters import Headers
from isotherm.console.commands.acceptance import Limits
from isotherm.console.commands.assignment import AssignmentError, TopicsMissingError, count_partitions, numbers_of
from isotherm.console.commands.batch import Batch, Encoders
from isotherm.console.commands.decoding import dead_letter
from isotherm.console.commands.known_devices import KnownDevices
from isotherm.console.commands.metrics import CommandMetrics
from isotherm.console.commands.settlement import PartitionSettlement, Source
from isotherm.console.commands.settler import check_places
from isotherm.console.commands_service import limits_of_partition
from isotherm.console.records.partitions import partition_of
from isotherm.console.settings import CommandSettings

NOW = 1_767_225_600_000


def admin(**partitions: int) -> AdminClient:
    names = {"commands": COMMANDS, "steps": STEPS, "outcomes": OUTCOMES, "opened": OPEN}
    topics = {
        names[name]: SimpleNamespace(partitions=dict.fromkeys(range(count))) for name, count in partitions.items()
    }
    return cast(AdminClient, SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(topics=topics)))


def test_topics_whose_partitions_go_together_have_as_many() -> None:
    assert count_partitions(admin(commands=3, steps=3, outcomes=3, opened=1), 1) == 3
    with pytest.raises(TopicsMissingError, match=STEPS):
        count_partitions(admin(commands=3, outcomes=3, opened=1), 1)
    for counts in ((4, 3, 3, 1), (3, 4, 3, 1), (3, 3, 4, 1), (3, 3, 3, 2)):
        with pytest.raises(AssignmentError):
            count_partitions(admin(**dict(zip(("commands", "steps", "outcomes", "opened"), counts, strict=True))), 1)


def test_a_member_has_the_same_numbers_of_both_topics() -> None:
    both = [TopicPartition(topic, number) for number in (2, 0) for topic in (STEPS, COMMANDS)]
    assert numbers_of(both) == [0, 2]
    with pytest.raises(AssignmentError, match="0, 2"):
        numbers_of(both[:-1])


def record(topic: str, key: bytes, value: bytes | None = b"v") -> Message:
    return Message(topic=topic, partition=0, offset=0, key=key, value=value)


def use(devices: KnownDevices, topic: str, key: bytes, value: bytes | None = b"v") -> None:
    handler = devices.handlers()[topic]
    handler.use(record(topic, key, value), value)


def test_a_device_is_known_by_one_of_two_topics_until_it_is_removed() -> None:
    devices = KnownDevices(10)
    assert "d" not in devices
    use(devices, "devices", b"d")
    use(devices, "devices.latest", b"d")
    use(devices, "devices", b"d", None)
    assert "d" in devices
    assert devices.count == 1
    use(devices, "devices.latest", b"d", None)
    assert "d" not in devices


def test_with_too_many_devices_every_device_counts_as_known() -> None:
    devices = KnownDevices(1)
    use(devices, "devices", b"a")
    use(devices, "devices", b"a")
    assert "other" not in devices
    use(devices, "devices", b"b")
    assert "other" in devices


def text(record: Any) -> bytes:
    return str(record.get("outcome", "open")).encode()


def batch() -> Batch:
    return Batch(Encoders(text, text))


def test_a_batch_has_the_records_of_changes_in_their_order_and_both_offsets() -> None:
    made, settlement = batch(), PartitionSettlement(Limits())
    assert not made
    command = DeviceCommand("d", "c", "n", b"", None, "u", NOW, NOW + 10)
    made.add(1, [settlement.take_command(command, Source(1, 5, NOW, b"d"), NOW)])
    made.add(1, settlement.decide_due(NOW + 60_000, NOW + 60_000, lambda _device: True))
    assert [one[:3] for one in made.outputs] == [
        (OPEN, b"d|c", b"open"),
        (OUTCOMES, b"d", b"accepted"),
        (OPEN, b"d|c", None),
        (OUTCOMES, b"d", b"expired"),
    ]
    offsets = made.offsets({(COMMANDS, 1): 6, (STEPS, 1): 3, (COMMANDS, 2): 1, (STEPS, 2): 1})
    assert [(one.topic, one.partition, one.offset) for one in offsets] == [(COMMANDS, 1, 6), (STEPS, 1, 3)]


def test_a_record_that_changes_nothing_moves_the_offsets() -> None:
    made, settlement = batch(), PartitionSettlement(Limits())
    command = DeviceCommand("d", "c", "n", b"", None, "u", NOW, NOW + 10)
    settlement.take_command(command, Source(1, 5, NOW, b"d"), NOW)
    made.add(1, [settlement.take_command(command, Source(1, 6, NOW, b"d"), NOW)])
    assert made
    assert made.outputs == []


def test_a_dead_letter_has_its_record_unchanged_and_the_reason() -> None:
    headers: Headers = [("mine", b"1"), ("__connect.errors.topic", b"former")]
    message = Message(topic=COMMANDS, partition=3, offset=9, key=b"k", value=b"\xff", headers=headers)
    letter = dead_letter("dlq", message, ValueError("no good"))
    told = dict(letter.headers)
    assert letter[:3] == ("dlq", b"k", b"\xff")
    assert told["mine"] == b"1"
    assert (told["__connect.errors.topic"], told["__connect.errors.offset"]) == (COMMANDS.encode(), b"9")
    assert told["__connect.errors.exception.message"] == b"no good"


def test_each_partition_has_an_even_share_of_what_is_bounded_in_all() -> None:
    limits = limits_of_partition(CommandSettings(max_open=10, max_remembered=3, grace_ms=7), 4)
    assert (limits.max_open, limits.max_remembered, limits.grace_ms) == (2, 1, 7)


def test_metrics_count_outcomes_and_the_time_to_the_final_one() -> None:
    registry = CollectorRegistry()
    metrics, settlement = CommandMetrics(registry), PartitionSettlement(Limits())
    command = DeviceCommand("d", "c", "n", b"", None, "u", NOW, NOW + 10)
    source = Source(1, 5, NOW, b"d")
    metrics.count(settlement.take_command(command, source, NOW))
    metrics.count(settlement.take_command(command, source, NOW))
    for change in settlement.decide_due(NOW + 2_500, NOW + 2_500, lambda _device: True):
        metrics.count(change)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"isotherm_commands_{name}", labels)

    assert value("outcomes_total", outcome="accepted") == 1
    assert value("outcomes_total", outcome="expired") == 1
    assert value("outcomes_total", outcome="delivered") == 0
    assert value("ignored_total", kind="duplicate") == 1
    assert value("seconds_sum", outcome="expired") == 2.5


def test_a_clock_that_is_ahead_gives_no_negative_time() -> None:
    registry = CollectorRegistry()
    CommandMetrics(registry).count(
        PartitionSettlement(Limits()).take_command(
            DeviceCommand("d", "c", "n", b"", None, "u", NOW + 5_000, NOW), Source(1, 5, NOW, b"d"), NOW
        )
    )
    assert registry.get_sample_value("isotherm_commands_seconds_sum", {"outcome": "expired"}) == 0


def test_outcomes_survive_their_record() -> None:
    settlement = PartitionSettlement(Limits())
    command = DeviceCommand("d", "c", "a/b", b"", None, "u", NOW, NOW + 10)
    (told,) = settlement.take_command(command, Source(1, 5, NOW, b"d"), NOW).outcomes
    assert CommandOutcome.of(told.record()) == told


def test_open_commands_whose_steps_go_elsewhere_are_not_settled() -> None:
    settlement = PartitionSettlement(Limits())
    number = partition_of(b"dev-1", 4)
    command = DeviceCommand("dev-1", "c1", "set", b"", None, "user", 0, 60_000)
    settlement.take_command(command, Source(number, 0, 0, b"dev-1"), 0)
    check_places({number: settlement}, 4)
    with pytest.raises(AssignmentError, match="partitions were added"):
        check_places({number + 4: settlement}, 8 if partition_of(b"dev-1", 8) == number else 4)
