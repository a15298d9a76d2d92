"""The verdict on commands convicts what the promise excludes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from isotherm.connector.commands import records
from isotherm.connector.commands.records import CommandOutcome, DeviceCommand
from isotherm.proofs.commands.verdict import Received, judge, received

AT_MS = 1_767_225_600_000
KEY = ("act-1", "c1")


def command(*, qos: int = 1, expects_answer: bool = False) -> DeviceCommand:
    return DeviceCommand(*KEY, "set", b"21", None, "test", AT_MS, AT_MS + 60_000, qos, expects_answer)


def outcome(name: str, key: tuple[str, str] = KEY) -> CommandOutcome:
    return CommandOutcome(*key, name, "set", "test", AT_MS, AT_MS + 60_000, AT_MS + 1_000)


LOG = Received(1, frozenset(("21",)), 0)
ACCEPTED, DELIVERED = outcome(records.ACCEPTED), outcome(records.DELIVERED)


def test_one_final_outcome_that_the_log_has_is_right() -> None:
    verdict = judge({KEY: command()}, [ACCEPTED, DELIVERED], {KEY: LOG})
    assert (verdict.problems, verdict.outcomes) == ([], {records.DELIVERED: 1})


@pytest.mark.parametrize("name", [records.EXPIRED, records.UNCONFIRMED, records.DEVICE_UNKNOWN, records.REFUSED])
def test_a_command_that_no_device_has_may_have_ended_otherwise(name: str) -> None:
    assert judge({KEY: command()}, [outcome(name)], {}).problems == []


@pytest.mark.parametrize(
    ("of", "outcomes", "log", "told"),
    [
        (command(), [ACCEPTED], LOG, "0 final outcomes"),
        (command(), [DELIVERED, outcome(records.EXPIRED)], LOG, "2 final outcomes"),
        (command(), [DELIVERED, DELIVERED], LOG, "2 final outcomes"),
        (command(), [DELIVERED], None, "the device's log lacks it"),
        (command(), [outcome(records.ANSWERED)], LOG, "the device has not answered"),
        (command(), [outcome(records.EXPIRED)], LOG, "expired, and the device has it"),
        (command(), [outcome(records.DEVICE_UNKNOWN)], LOG, "device_unknown, and the device has it"),
        (command(expects_answer=True), [DELIVERED], LOG, "no final outcome where an answer is expected"),
        (command(qos=2), [DELIVERED], LOG._replace(times=2, qos=2), "2 times at the device, at QoS 2"),
        (command(), [DELIVERED], LOG._replace(payloads=frozenset(("22",))), "another payload"),
        (command(), [DELIVERED, outcome(records.EXPIRED, ("act-2", "c1"))], LOG, "nobody has issued"),
    ],
)
def test_what_the_promise_excludes_is_convicted(
    of: DeviceCommand, outcomes: list[CommandOutcome], log: Received | None, told: str
) -> None:
    verdict = judge({KEY: of}, outcomes, {} if log is None else {KEY: log})
    assert len(verdict.problems) == 1
    assert told in verdict.problems[0]


def test_a_device_that_has_what_nobody_issued_is_convicted() -> None:
    assert "nobody has issued" in judge({}, [], {KEY: LOG}).problems[0]


def test_qos_1_may_repeat_also_where_more_was_wished() -> None:
    verdict = judge({KEY: command(qos=2)}, [DELIVERED], {KEY: LOG._replace(times=3)})
    assert (verdict.problems, verdict.repeated) == ([], 1)


def test_ledgers_are_collected_by_command() -> None:
    got = {"event": "received", "device_id": "act-1", "command_id": "c1", "payload": "21", "qos": 1}
    events: list[Mapping[str, Any]] = [
        got,
        {"event": "subscribed", "device_id": "act-1"},
        got,
        {**got, "event": "answered"},
    ]
    assert received(events) == {KEY: Received(2, frozenset(("21",)), 1)}
