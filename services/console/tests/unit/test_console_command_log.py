"""What the console keeps of commands: bounded in every way, and never another command's outcome."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.commands.records import (
    ACCEPTED,
    ANSWERED,
    DELIVERED,
    EXPIRED,
    SAME_ID_MS,
    CommandOutcome,
    DeviceCommand,
    Progress,
)
from isotherm.console.devices.command_log import CommandLog, CommandView, Key

DEVICES, IDS = ("a", "b", "c"), ("1", "2", "3", "4")
NO_BOUND = 10_000


def log(commands: int = NO_BOUND, of_device: int = NO_BOUND, size_bytes: int = NO_BOUND) -> CommandLog:
    return CommandLog(max_commands=commands, max_device_commands=of_device, max_bytes=size_bytes)


def command(device: str = "a", command_id: str = "1", issued_ms: int = 1_000, payload: bytes = b"on") -> DeviceCommand:
    return DeviceCommand(device, command_id, "power", payload, None, "ada", issued_ms, issued_ms + 60_000)


def outcome(
    word: str, device: str = "a", command_id: str = "1", issued_ms: int = 1_000, answer: bytes = b""
) -> CommandOutcome:
    return CommandOutcome(
        device,
        command_id,
        word,
        "power",
        "ada",
        issued_ms,
        issued_ms + 60_000,
        issued_ms + 10,
        progress=Progress("mqtt-proxy", issued_ms + 5),
        answer=answer,
    )


COMMANDS = st.builds(
    command, st.sampled_from(DEVICES), st.sampled_from(IDS), st.integers(0, 3 * SAME_ID_MS), st.binary(max_size=40)
)
OUTCOMES = st.builds(
    outcome,
    st.sampled_from((ACCEPTED, DELIVERED, ANSWERED, EXPIRED)),
    st.sampled_from(DEVICES),
    st.sampled_from(IDS),
    st.integers(0, 3 * SAME_ID_MS),
    st.binary(max_size=40),
)


@given(st.lists(COMMANDS | OUTCOMES, max_size=200), st.integers(1, 6), st.integers(1, 3), st.integers(0, 120))
def test_its_bounds_hold_and_its_counts_are_right(
    taken: list[DeviceCommand | CommandOutcome], commands: int, of_device: int, size_bytes: int
) -> None:
    kept = log(commands, of_device, size_bytes)
    for one in taken:
        if isinstance(one, DeviceCommand):
            kept.take_command(one)
        else:
            kept.take_outcome(one)
        views = [view for device in DEVICES for view in kept.of_device(device)]
        assert len(views) == len(kept) <= commands
        assert all(len(kept.of_device(device)) <= of_device for device in DEVICES)
        assert sum(view.size_bytes for view in views) == kept.size_bytes <= size_bytes
        for view in views:
            about = [part for part in view if part is not None]
            assert {(part.device_id, part.command_id, part.issued_ms) for part in about} == {
                (*view.key, view.issued_ms)
            }
            assert kept.get(view.key) == view
        for device in DEVICES:
            times = [view.issued_ms for view in kept.of_device(device)]
            assert times == sorted(times, reverse=True)


@given(st.permutations([command(), outcome(ACCEPTED), outcome(ANSWERED, answer=b"done")]))
def test_the_order_in_which_topics_are_read_does_not_matter(parts: list[DeviceCommand | CommandOutcome]) -> None:
    kept = log()
    for one in (*parts, *parts):
        if isinstance(one, DeviceCommand):
            kept.take_command(one)
        else:
            kept.take_outcome(one)
    assert kept.get(("a", "1")) == CommandView(command(), outcome(ACCEPTED), outcome(ANSWERED, answer=b"done"))
    assert kept.size_bytes == len(b"on" + b"done")


def test_the_oldest_go_first_whatever_is_read_first() -> None:
    kept = log(commands=2)
    for issued_ms in (3_000, 1_000, 2_000):
        kept.take_command(command(command_id=str(issued_ms), issued_ms=issued_ms))
    assert [one.issued_ms for one in kept.of_device("a")] == [3_000, 2_000]
    assert kept.dropped == 1


def test_a_busy_device_takes_no_place_of_others() -> None:
    kept = log(commands=4, of_device=2)
    kept.take_command(command("b", issued_ms=1))
    for n in range(10):
        kept.take_command(command(command_id=str(n), issued_ms=1_000 + n))
    assert [one.key[1] for one in kept.of_device("a")] == ["9", "8"]
    assert len(kept.of_device("b")) == 1


def test_the_first_final_outcome_counts() -> None:
    kept, told = log(), list[Key]()
    kept.on_final = told.append
    for word in (ACCEPTED, DELIVERED, EXPIRED):
        kept.take_outcome(outcome(word))
    view = kept.get(("a", "1"))
    assert view is not None
    assert view.newest == outcome(DELIVERED)
    assert told == [("a", "1")]


def test_an_id_stands_for_the_same_command_for_an_hour_after_its_end() -> None:
    kept = log()
    kept.take_command(command())
    kept.take_command(command(issued_ms=2_000, payload=b"off"))
    assert [one.command for one in kept.of_device("a")] == [command()], "it is open"
    final = outcome(DELIVERED)
    kept.take_outcome(final)
    kept.take_command(command(issued_ms=final.updated_ms + SAME_ID_MS - 1))
    assert kept.get(("a", "1")) == CommandView(command(), None, final)
    later = command(issued_ms=final.updated_ms + SAME_ID_MS, payload=b"off")
    kept.take_command(later)
    assert kept.get(("a", "1")) == CommandView(later)
    kept.take_outcome(outcome(ACCEPTED, issued_ms=later.issued_ms))
    kept.take_outcome(outcome(EXPIRED))
    assert kept.get(("a", "1")) == CommandView(later, outcome(ACCEPTED, issued_ms=later.issued_ms)), (
        "an outcome of the earlier command is none of this one"
    )


def test_what_settles_decides_which_of_two_records_the_command_is() -> None:
    kept = log()
    kept.take_command(command(issued_ms=2_000))
    kept.take_outcome(outcome(ACCEPTED, issued_ms=1_000))
    assert kept.get(("a", "1")) == CommandView(None, outcome(ACCEPTED, issued_ms=1_000))
    kept.take_command(command(issued_ms=2_000))
    assert kept.get(("a", "1")) == CommandView(None, outcome(ACCEPTED, issued_ms=1_000))
    kept.take_command(command(issued_ms=1_000))
    assert kept.get(("a", "1")) == CommandView(command(), outcome(ACCEPTED, issued_ms=1_000))
