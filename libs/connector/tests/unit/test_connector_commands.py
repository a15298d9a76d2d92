"""The records of commands survive Avro, and keys of open commands keep devices apart."""

from __future__ import annotations

import io
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.commands import records
from isotherm.connector.commands.records import CommandOutcome, CommandStep, DeviceCommand, OpenCommand, Progress

_TEXT = st.text(max_size=20)
_MS = st.integers(0, 253_402_300_799_999)
_MAYBE_TEXT, _MAYBE_MS = st.none() | _TEXT, st.none() | _MS
_COMMANDS = st.builds(
    DeviceCommand,
    device_id=_TEXT,
    command_id=_TEXT,
    name=_TEXT,
    payload=st.binary(max_size=20),
    content_type=_MAYBE_TEXT,
    issued_by=_TEXT,
    issued_ms=_MS,
    deadline_ms=_MS,
    qos=st.integers(0, 2),
    expects_answer=st.booleans(),
)
_PROGRESS = st.builds(Progress, service=_MAYBE_TEXT, sent_ms=_MAYBE_MS, acknowledged_ms=_MAYBE_MS)
_OPEN = st.builds(
    OpenCommand,
    command=_COMMANDS,
    partition=st.integers(0, 9),
    offset=st.integers(0, 2**40),
    accepted_ms=_MS,
    progress=_PROGRESS,
)
_STEPS = st.builds(
    CommandStep,
    device_id=_TEXT,
    command_id=_TEXT,
    step=st.sampled_from((records.SENDING, records.ACKNOWLEDGED, records.ANSWERED, records.REFUSED)),
    service=_TEXT,
    worker=_TEXT,
    at_ms=_MS,
    qos=st.integers(0, 2),
    answer=st.binary(max_size=20),
    answer_content_type=_MAYBE_TEXT,
    reason=_MAYBE_TEXT,
)
_OUTCOMES = st.builds(
    CommandOutcome,
    device_id=_TEXT,
    command_id=_TEXT,
    outcome=st.sampled_from((records.ACCEPTED, *sorted(records.FINAL))),
    name=_TEXT,
    issued_by=_TEXT,
    issued_ms=_MS,
    deadline_ms=_MS,
    updated_ms=_MS,
    reason=_MAYBE_TEXT,
    accepted_ms=_MAYBE_MS,
    progress=_PROGRESS,
    answered_ms=_MAYBE_MS,
    answer=st.binary(max_size=20),
    answer_content_type=_MAYBE_TEXT,
)


def _through_avro(schema: Any, record: dict[str, Any]) -> Any:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, record, strict=True)
    buffer.seek(0)
    return fastavro.schemaless_reader(buffer, schema, None)


@given(_COMMANDS)
def test_a_command_survives_avro(command: DeviceCommand) -> None:
    assert DeviceCommand.of(_through_avro(records.COMMAND_SCHEMA, command.record())) == command


@given(_OPEN)
def test_an_open_command_survives_avro(command: OpenCommand) -> None:
    assert OpenCommand.of(_through_avro(records.OPEN_SCHEMA, command.record())) == command


@given(_STEPS)
def test_a_step_survives_avro(step: CommandStep) -> None:
    assert CommandStep.of(_through_avro(records.STEP_SCHEMA, step.record())) == step


@given(_OUTCOMES)
def test_an_outcome_survives_avro(outcome: CommandOutcome) -> None:
    assert CommandOutcome.of(_through_avro(records.OUTCOME_SCHEMA, outcome.record())) == outcome


@given(st.tuples(_TEXT, _TEXT), st.tuples(_TEXT, _TEXT))
def test_no_two_open_commands_have_one_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (records.open_key(*one) == records.open_key(*other)) == (one == other)
