"""What the process that settles commands needs: of commands and steps, and of what it has written before a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pact import match

from isotherm.connector.commands.records import (
    ACCEPTED,
    ANSWERED,
    COMMAND_SCHEMA,
    COMMANDS,
    FINAL,
    OPEN,
    OPEN_SCHEMA,
    OUTCOME_SCHEMA,
    OUTCOMES,
    SENDING,
    STEP_SCHEMA,
    STEPS,
    CommandOutcome,
    CommandStep,
    DeviceCommand,
    OpenCommand,
)
from isotherm.console.commands.acceptance import Limits
from isotherm.console.commands.settlement import PartitionSettlement, Source
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario
from isotherm.contracts.pact.needs import Need, expect


def _is_accepted(harness: Harness, found: Message) -> object:
    """Accept a command."""
    command = DeviceCommand.of(harness.decode(found.value, COMMAND_SCHEMA))
    source = Source(0, 0, command.issued_ms, found.key.encode())
    change = PartitionSettlement(Limits()).take_command(command, source, command.issued_ms)
    expect("outcome", [one.outcome for one in change.outcomes], [ACCEPTED])
    return change


def _is_taken(harness: Harness, found: Message) -> object:
    """Let a step change the open command that it is about."""
    step = CommandStep.of(harness.decode(found.value, STEP_SCHEMA))
    expect("key", found.key, step.device_id)
    command = DeviceCommand(
        step.device_id, step.command_id, "setpoint", b"", None, "user", step.at_ms, step.at_ms + 60_000, 1, True
    )
    settlement = PartitionSettlement(Limits(), [OpenCommand(command, 0, 0, step.at_ms)])
    change = settlement.take_step(step, step.at_ms)
    expect("ignored", change.ignored, None)
    return change


def _is_restored(harness: Harness, found: Message) -> object:
    """Have an open command again after a restart."""
    one = OpenCommand.of(harness.decode(found.value, OPEN_SCHEMA))
    expect("key", found.key, one.key)
    settlement = PartitionSettlement(Limits(), [one])
    expect("open", settlement.open_count, 1)
    return one, settlement.next_due_ms


def _is_remembered(harness: Harness, found: Message) -> object:
    """Know a finished command again after a restart."""
    one = CommandOutcome.of(harness.decode(found.value, OUTCOME_SCHEMA))
    expect("final", one.outcome in FINAL, one.outcome != ACCEPTED)
    return one.device_id, one.command_id, one.outcome, one.updated_ms


def issued_need(provider: str, name: str) -> Need:
    """Return what is needed of a command that `provider` issues, in its scenario of that name."""
    value = {
        "device_id": scenario.DEVICE,
        "command_id": match.type("a-command"),
        "name": match.type("setpoint"),
        "issued_by": match.type("user"),
        "issued_at": match.integer(scenario.START_MS),
        "deadline": match.integer(scenario.START_MS + 60_000),
    }
    pinned = ("payload", "content_type", "qos", "expects_answer")
    return Need(
        "console", provider, name, COMMANDS, "DeviceCommand", 1, scenario.DEVICE, value, _is_accepted, pinned=pinned
    )


def step_need(provider: str, name: str, step: str, **more: Any) -> Need:
    """Return what is needed of a step that `provider` writes, in its scenario of that name."""
    value = {
        "device_id": scenario.DEVICE,
        "command_id": match.type("a-command"),
        "step": step,
        "service": provider,
        "at": match.integer(scenario.START_MS),
        "qos": match.integer(1),
        **more,
    }
    pinned = ("answer", "answer_content_type", "reason")
    return Need("console", provider, name, STEPS, "CommandStep", 1, scenario.DEVICE, value, _is_taken, pinned=pinned)


_COMMAND: Mapping[str, Any] = {
    "device_id": scenario.DEVICE,
    "command_id": match.type("a-command"),
    "deadline": match.integer(scenario.START_MS + 60_000),
}


OPEN_PINNED = (
    "partition",
    "offset",
    "name",
    "payload",
    "content_type",
    "issued_by",
    "issued_at",
    "qos",
    "expects_answer",
    "accepted_at",
    "service",
    "sent_at",
    "acknowledged_at",
)
"""The fields that a follower of open commands needs as the provider records them."""


def _open_need(name: str, **more: Any) -> Need:
    key = match.regex(f"{scenario.DEVICE}|a-command", regex=rf"^{scenario.DEVICE}\|[^|]+$")
    return Need(
        "console", "console", name, OPEN, "OpenCommand", 1, key, {**_COMMAND, **more}, _is_restored, pinned=OPEN_PINNED
    )


def _outcome_need(name: str, outcome: str) -> Need:
    value = {
        "device_id": scenario.DEVICE,
        "command_id": match.type("a-command"),
        "outcome": outcome,
        "updated_at": match.integer(scenario.START_MS),
    }
    return Need("console", "console", name, OUTCOMES, "CommandOutcome", 1, scenario.DEVICE, value, _is_remembered)


NEEDS = (
    issued_need("console", scenario.COMMAND_ISSUED),
    step_need("mqtt-proxy", scenario.STEP_SENDING, SENDING),
    step_need("mqtt-proxy", scenario.STEP_ANSWERED, ANSWERED),
    _open_need(scenario.COMMAND_OPENED),
    _open_need(scenario.COMMAND_SENT),
    _outcome_need(scenario.COMMAND_ACCEPTED, "accepted"),
    _outcome_need(scenario.COMMAND_ANSWERED, "answered"),
    _outcome_need(scenario.COMMAND_REFUSED, "refused"),
)
