"""The records of a publish, with what the metrics count of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isotherm.mqtt_proxy.ingest.producer_record import RECORD_BYTES, ProducerRecord

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from isotherm.servicekit.tracing.ingest_traces import IngestTrace


@dataclass(slots=True)
class TranslatedPublish:
    """The records of a publish, with what the metrics count of it.

    `readings` holds the number of readings and raw payloads by Kafka topic. `dead_letters` holds the reasons of the
    dead letters among the records; `unstored` the reasons of those that are only counted, because the rate of dead
    letters is exceeded. `filtered` holds the number of readings that the condition of a route leaves out, by the
    route's target. `answers` is the number of answers to commands among the records. `bytes` is the memory that the
    records take until Kafka has them. `trace` ends with the answer.
    """

    records: list[ProducerRecord] = field(default_factory=list)
    readings: list[tuple[str, int]] = field(default_factory=list)
    dead_letters: list[str] = field(default_factory=list)
    unstored: tuple[str, ...] = ()
    filtered: list[tuple[str, int]] = field(default_factory=list)
    bytes: int = 0
    dropped: bool = False
    answers: int = 0
    trace: IngestTrace | None = None

    @property
    def invalid_reason(self) -> str | None:
        """The first reason for which the publish is invalid; None for a valid one."""
        return self.dead_letters[0] if self.dead_letters else self.unstored[0] if self.unstored else None

    @property
    def trace_id(self) -> str | None:
        """The identifier of the trace; None without one."""
        return None if self.trace is None else self.trace.id

    def add_answer(self, record: ProducerRecord) -> None:
        """Add the record of an answer to a command."""
        self.records.append(record)
        self.answers += 1
        self.bytes += RECORD_BYTES + len(record.key or "") + len(record.value or b"")

    def end_trace(self, error: str | None = None) -> None:
        """End the trace, if there is one: Kafka has the records, or why it has not."""
        if self.trace is not None:
            self.trace.end(error)
