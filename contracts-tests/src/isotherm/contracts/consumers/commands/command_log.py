"""What the console needs to show commands to devices: what was issued, and what became of it."""

from __future__ import annotations

from typing import Any

from pact import match

from isotherm.connector.commands.records import (
    ACCEPTED,
    ANSWERED,
    COMMAND_SCHEMA,
    COMMANDS,
    OUTCOME_SCHEMA,
    OUTCOMES,
    CommandOutcome,
    DeviceCommand,
)
from isotherm.console.devices.command_log import CommandView
from isotherm.contracts.consumers.console import fresh_console
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, Process, expect


def _shown(harness: Harness, view: CommandView) -> object:
    """What the application says of a command, in every place."""
    console = fresh_console(harness)
    if view.command is not None:
        console.commands.log.take_command(view.command)
    for outcome in (view.accepted, view.final):
        if outcome is not None:
            console.commands.log.take_outcome(outcome)
    device = view.key[0].replace("|", "%7C")
    listed = console.http.get(f"/isotherm/devices/{device}/commands").json()["commands"]
    (only,) = listed
    expect("one command", only, console.http.get(f"/isotherm/devices/{device}/commands/{view.key[1]}").json())
    return only


def _is_command(harness: Harness, found: Message) -> object:
    command = DeviceCommand.of(harness.decode(found.value, COMMAND_SCHEMA))
    expect("device", command.device_id, found.key)
    return _shown(harness, CommandView(command))


def _is_accepted(harness: Harness, found: Message) -> object:
    outcome = CommandOutcome.of(harness.decode(found.value, OUTCOME_SCHEMA))
    expect("device", outcome.device_id, found.key)
    return _shown(harness, CommandView(accepted=outcome))


def _is_final(harness: Harness, found: Message) -> object:
    outcome = CommandOutcome.of(harness.decode(found.value, OUTCOME_SCHEMA))
    expect("device", outcome.device_id, found.key)
    shown = _shown(harness, CommandView(final=outcome))
    assert isinstance(shown, dict)
    expect("is final", shown["is_final"], True)
    return shown


def _outcome(name: str, is_it: Process, **value: Any) -> Need:
    given = {
        "device_id": scenario.DEVICE,
        "command_id": match.type("a-command"),
        "name": match.type("setpoint"),
        "issued_by": match.type("user"),
        "issued_at": match.integer(scenario.START_MS),
        "deadline": match.integer(scenario.START_MS + 60_000),
        "reason": None,
        "accepted_at": match.integer(scenario.START_MS),
        "updated_at": match.integer(scenario.START_MS),
    }
    pinned = ("service", "sent_at", "acknowledged_at", "answered_at", "answer", "answer_content_type")
    return Need(
        "console", "console", name, OUTCOMES, "CommandOutcome", 1, scenario.DEVICE, given | value, is_it, pinned=pinned
    )


NEEDS = (
    Need(
        "console",
        "console",
        scenario.COMMAND_SHOWN,
        COMMANDS,
        "DeviceCommand",
        1,
        scenario.OTHER_DEVICE,
        {
            "device_id": scenario.OTHER_DEVICE,
            "command_id": match.type("a-command"),
            "name": match.type("reboot"),
            "issued_by": match.type("user"),
            "issued_at": match.integer(scenario.START_MS),
            "deadline": match.integer(scenario.START_MS + 60_000),
        },
        _is_command,
        pinned=("payload", "content_type", "qos", "expects_answer"),
    ),
    _outcome(scenario.ACCEPTANCE_SHOWN, _is_accepted, outcome=ACCEPTED),
    _outcome(scenario.ANSWER_SHOWN, _is_final, outcome=ANSWERED),
)
