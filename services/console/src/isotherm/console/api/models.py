"""What the additions take and give, as their OpenAPI document describes it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from isotherm.connector.offsets import replay
from isotherm.console.dead_letters.queue import RecordPosition
from isotherm.console.errors import BadRequestError

PartitionNumber = Annotated[int, Field(ge=0, lt=2**31)]
OffsetNumber = Annotated[int, Field(ge=0, lt=2**63)]


class Answer(BaseModel):
    """What is told does not change."""

    model_config = ConfigDict(frozen=True)


class Task(Answer):
    """One task: what it does, counted and has not read yet."""

    id: int
    state: str
    worker_id: str
    trace: str | None
    counts: dict[str, int] = Field(description="Cumulative, as the worker counts.")
    lag: dict[str, int] = Field(description="Records not read yet, by topic-partition.")
    updated_at: int = Field(description="When the worker said so, epoch milliseconds; 0 when it never did.")


class ConnectorOverview(Answer):
    """One connector: what is wanted, what is, and its tasks."""

    name: str
    connector_class: str
    type: str
    mode: str
    worker_group: str
    target_state: str
    state: str
    lag: int
    tasks: list[Task]


class Worker(Answer):
    """One distributed worker, as it speaks of itself."""

    worker_id: str
    worker_group: str
    state: str
    counts: dict[str, int]
    classes: list[str]
    updated_at: int


class LagSampleAnswer(Answer):
    """A connector's lag at one time."""

    at: int
    lag: int


class ReplayRequest(BaseModel):
    """A replay that is asked for."""

    model_config = ConfigDict(extra="forbid")

    to: str = Field(description=f"RecordPosition its tasks go on: {replay.EXPECTED}.")
    topic: str | None = Field(None, description="One of the connector's topics; all when left out.")
    partition: PartitionNumber | None = Field(None, description="One partition of `topic`.")
    dry_run: bool = Field(False, description="Say what would be done, and do nothing.")


class Move(Answer):
    """One partition's new position."""

    topic: str
    partition: int
    before: int | None
    after: int
    records_to_read: int = Field(description="Places between the new position and the end.")


class DeadLetterQueueAnswer(Answer):
    """A dead-letter topic."""

    topic: str
    most_open: int = Field(description="Letters that are open at most: places that hold no record count too.")


class ListedDeadLetter(Answer):
    """A dead letter as a list has it: long texts are cut, and end with `…` then."""

    partition: int
    offset: int
    timestamp: int
    connector: str
    task: str
    stage: str
    exception: str
    message: str
    trace: str
    origin_topic: str
    origin_partition: str
    origin_offset: str
    is_replayable: bool
    key: str | None = Field(description="Decoded for reading.")
    value: Any = Field(description="Decoded for reading.")
    format: str = Field(description="How the value was decoded: avro, json, text, binary or null.")
    headers: dict[str, str]
    is_cut: bool = Field(description="Whether something is not shown as a whole here; the single letter has it all.")


class DeadLetterAnswer(ListedDeadLetter):
    """A dead letter as a whole."""

    key_base64: str | None
    value_base64: str | None


class Position(BaseModel):
    """Where a letter is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: PartitionNumber
    offset: OffsetNumber


class RecordSelection(BaseModel):
    """Which letters are meant."""

    model_config = ConfigDict(extra="forbid")

    all: bool = Field(False, description="Every letter that is open now.")
    letters: list[Position] = Field(default_factory=list, max_length=10_000)

    def places(self) -> set[RecordPosition] | None:
        """The chosen letters, None for all. Raises BadRequestError when neither or both are said."""
        if self.all == bool(self.letters):
            raise BadRequestError("say either all or letters")
        return None if self.all else {RecordPosition(one.partition, one.offset) for one in self.letters}


class HandledAnswer(Answer):
    """What became of the letters."""

    done: int
    left: int = Field(description="Letters that stay open: they were never in a topic, so they cannot be replayed.")


class KcqlText(BaseModel):
    """KCQL to be explained."""

    model_config = ConfigDict(extra="forbid")

    kcql: str = Field(max_length=100_000)


class ConfigText(BaseModel):
    """A configuration as somebody writes it."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(max_length=100_000, description="Properties or JSON.")
    name: str = Field("", description="The connector's name, where the text has none.")


class ConfigCheckAnswer(Answer):
    """What is to be said of a configuration."""

    problems: list[str]
    notices: list[str] = Field(description="What is accepted but deserves a word, such as unknown keys.")


class KcqlExplanation(Answer):
    """What statements do, in words, or why they are refused, with a caret under the place."""

    statements: list[str]
    error: str | None
