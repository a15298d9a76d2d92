"""Decodes the records that settling reads, and makes dead letters of those that cannot be settled."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Message

from isotherm.connector.commands.records import (
    COMMAND_SCHEMA,
    COMMANDS,
    OPEN_SCHEMA,
    OUTCOME_SCHEMA,
    STEP_SCHEMA,
    CommandStep,
    DeviceCommand,
)
from isotherm.connector.errors.dead_letters import Headers, dead_letter_headers
from isotherm.console.commands.acceptance import UnsettleableError, require_identity
from isotherm.console.commands.settlement import STEPS
from isotherm.console.commands.transactions import Output
from isotherm.servicekit.avro import Decoder, SchemaRegistry, WireFormatError

_NAME = "console-commands"


class CommandDecoder:
    """Decodes values; every method raises RegistryUnavailableError for one to retry later."""

    def __init__(self, schemas: SchemaRegistry) -> None:
        self._command, self._step = Decoder(schemas, COMMAND_SCHEMA), Decoder(schemas, STEP_SCHEMA)
        self._opened, self._outcome = Decoder(schemas, OPEN_SCHEMA), Decoder(schemas, OUTCOME_SCHEMA)

    def message(self, message: Message) -> DeviceCommand | CommandStep:
        """Return what a message of one of the two input topics has.

        Raises WireFormatError, UnsettleableError.
        """
        value = message.value()
        if value is None:
            raise WireFormatError("the record has no value")
        if message.topic() == COMMANDS:
            command = DeviceCommand.of(self._command(value).record)
            require_identity(command)
            return command
        step = CommandStep.of(self._step(value).record)
        if step.step not in STEPS:
            raise UnsettleableError(f"{step.step[:100]!r} is no step of a delivery")
        return step

    def opened(self, value: bytes) -> Any:
        """Return an OpenCommand record. Raises WireFormatError."""
        return self._opened(value).record

    def outcome(self, value: bytes) -> Any:
        """Return a CommandOutcome record. Raises WireFormatError."""
        return self._outcome(value).record


def dead_letter(topic: str, message: Message, error: Exception) -> Output:
    """Return the dead letter of a message: its own key, value and headers, and the reason."""
    original: Headers = list(message.headers() or [])  # type: ignore[arg-type]  # always pairs when read
    headers = dead_letter_headers(
        error,
        stage="VALUE_CONVERTER" if isinstance(error, WireFormatError) else "TASK_PUT",
        connector=_NAME,
        class_name="isotherm.console.commands",
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        original=original,
    )
    return Output(topic, message.key(), message.value(), headers)
