"""The open commands that a process knows, within their bounds."""

from __future__ import annotations

from mqtt_open_commands import open_command

from isotherm.connector.commands.follower import Change
from isotherm.connector.commands.records import Progress
from isotherm.mqtt_proxy.commands.open_commands import OpenCommands


def test_the_newest_record_counts_and_what_is_known_stays() -> None:
    commands = OpenCommands(10, 10_000_000)
    later, first = open_command("2", 2), open_command("1", 1)
    for one in (later, first):
        commands.apply(Change(one.key, one))
    assert [one.open.command.command_id for one in commands.of_device("attic")] == ["1", "2"]
    tracked = commands.get(first.key)
    assert tracked is not None
    assert not tracked.is_begun
    tracked.is_acknowledged = True
    newer = first._replace(progress=Progress("mqtt-proxy", 5))
    assert commands.apply(Change(first.key, newer)) is tracked
    assert (tracked.is_begun, tracked.is_acknowledged, tracked.open) == (True, True, newer)
    again = first._replace(offset=9)
    renewed = commands.apply(Change(first.key, again))
    assert renewed is not None
    assert (renewed is tracked, renewed.is_acknowledged) == (False, False), "the id was issued again"
    for one in (first, later, later):
        assert commands.apply(Change(one.key, None)) is None
    assert (len(commands), commands.bytes, list(commands.of_device("attic"))) == (0, 0, [])


def test_what_had_no_room_is_read_again_and_nothing_overtakes_it() -> None:
    commands = OpenCommands(2, 10_000_000)
    opened = [open_command(str(number), number) for number in range(4)]
    assert [commands.apply(Change(one.key, one)) is not None for one in opened[:3]] == [True, True, False]
    assert commands.is_overflowing
    commands.apply(Change(opened[0].key, None))
    assert commands.apply(Change(opened[3].key, opened[3])) is None, "it would overtake the one before"
    assert commands.is_worth_reading_again
    commands.begin_again()
    assert commands.apply(Change(opened[2].key, opened[2])) is not None
    assert not commands.is_worth_reading_again


def test_their_memory_is_bounded() -> None:
    commands = OpenCommands(1_000, 10_000)
    for number in range(20):
        one = open_command(str(number), number, payload=b"x" * 1_000)
        commands.apply(Change(one.key, one))
    assert commands.is_overflowing
    assert 5_000 < commands.bytes <= 10_000
