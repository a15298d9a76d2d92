"""What the process that settles commands writes: open commands, and outcomes."""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.connector.commands.records import (
    ACKNOWLEDGED,
    ANSWERED,
    OPEN,
    OPEN_SCHEMA,
    OUTCOME_SCHEMA,
    OUTCOMES,
    CommandStep,
    DeviceCommand,
)
from isotherm.console import commands_service
from isotherm.console.commands.acceptance import Limits
from isotherm.console.commands.batch import Batch, Encoders
from isotherm.console.commands.settlement import PartitionSettlement, Source
from isotherm.console.commands.transactions import TransactionalWriter
from isotherm.console.settings import ConsoleSettings
from isotherm.contracts import seam
from isotherm.contracts.harness import Harness, Message
from isotherm.contracts.pact import scenario

_SENT_MS, _ANSWERED_MS = scenario.START_MS + 40, scenario.START_MS + 250


def messages(harness: Harness) -> Mapping[str, Message]:
    """Accept a command and settle it with the device's answer; refuse another one."""
    registry = harness.registry
    batch = Batch(Encoders(registry.encoder(OPEN, OPEN_SCHEMA), registry.encoder(OUTCOMES, OUTCOME_SCHEMA)))
    settlement = PartitionSettlement(Limits())
    command = DeviceCommand(
        scenario.DEVICE,
        scenario.COMMAND_ID,
        "setpoint",
        b'{"celsius": 21.5}',
        "application/json",
        "user",
        scenario.START_MS,
        scenario.START_MS + 60_000,
        expects_answer=True,
    )
    source = Source(1, 41, scenario.START_MS, scenario.DEVICE.encode())
    changes = [
        settlement.take_command(command, source, scenario.START_MS + 20),
        settlement.take_step(_step(ACKNOWLEDGED, _SENT_MS), _SENT_MS),
        settlement.take_step(_step(ANSWERED, _ANSWERED_MS, b'{"ok": true}', "application/json"), _ANSWERED_MS),
        settlement.take_command(command._replace(command_id="refused", name="a/b"), source, _ANSWERED_MS),
    ]
    batch.add(1, changes)
    with seam.recorded_kafka(harness) as found:
        writer = TransactionalWriter(lambda name: commands_service.transactional_producer(ConsoleSettings(), name))
        writer.take_over([1])
        writer.write(batch.outputs, [], None)
    opened, accepted, sent, _tombstone, answered, refused = found
    return {
        scenario.COMMAND_OPENED: opened,
        scenario.COMMAND_ACCEPTED: accepted,
        scenario.ACCEPTANCE_SHOWN: accepted,
        scenario.COMMAND_SENT: sent,
        scenario.COMMAND_ANSWERED: answered,
        scenario.ANSWER_SHOWN: answered,
        scenario.COMMAND_REFUSED: refused,
    }


def _step(word: str, at_ms: int, answer: bytes = b"", content_type: str | None = None) -> CommandStep:
    return CommandStep(
        scenario.DEVICE, scenario.COMMAND_ID, word, "mqtt-proxy", seam.WORKER, at_ms, 1, answer, content_type
    )
