"""Traces a reading through the suite, on demand: by reading topics and committed offsets, and nothing in advance."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isotherm.console.cluster.state import ClusterState
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.offsets import ConnectorOffsets
from isotherm.console.dead_letters.queue import queue_names
from isotherm.console.devices import alerts as alert_topic
from isotherm.console.devices import windows as window_topic
from isotherm.console.devices.browser import DeviceBrowser
from isotherm.console.errors import NotFoundError
from isotherm.console.records.decoding import decoded
from isotherm.console.records.record import Record
from isotherm.console.records.topics import Topics
from isotherm.console.settings import SearchSettings
from isotherm.console.trace import fates, model, readback, windows
from isotherm.console.trace.fates import FateFinder
from isotherm.console.trace.locate import Locator
from isotherm.console.trace.model import Question, State, Step, StoredReading, TopicPartitionOffset, Trace
from isotherm.console.trace.publishes import PublishFinder, StoredPublish
from isotherm.console.trace.readback import Readbacks
from isotherm.console.trace.scan import Scanner
from isotherm.console.trace.settled import Settlements, refused_by
from isotherm.console.trace.windows import Published, WindowFinder
from isotherm.servicekit.avro import Decoder, SchemaRegistry

_AGGREGATOR = "aggregator"
"""The name in the aggregator's dead letters, whatever its own name is."""


class Tracer:
    """Answers questions about readings."""

    def __init__(
        self,
        topics: Topics,
        devices: DeviceBrowser,
        control: ConnectorControl,
        cluster: ClusterState,
        offsets: ConnectorOffsets,
        schemas: SchemaRegistry,
        now_ms: Callable[[], int],
        search: SearchSettings,
        readbacks: Readbacks,
    ) -> None:
        self._readbacks = readbacks
        self._topics, self._devices, self._control, self._cluster = topics, devices, control, cluster
        self._offsets, self._now_ms, self._search = offsets, now_ms, search
        self._decode_reading = Decoder(schemas, model.SCHEMA)
        self._decode_window = Decoder(schemas, window_topic.SCHEMA)
        self._decode_alert = Decoder(schemas, alert_topic.SCHEMA)
        self._decode = Decoder(schemas)

    def trace(self, question: Question) -> Trace:
        """Return the life of the reading that a question is about; of the device's newest one if it says nothing else.

        Raises NotFoundError, UnavailableError.
        """
        scanner = Scanner(self._topics, self._search)
        locator = Locator(scanner, self._decode_reading)
        of, is_exact = locator.find(self._completed(question))
        following = _Following(
            scanner,
            FateFinder(scanner, self._decode_reading, self._decode_alert),
            WindowFinder(scanner, self._decode_window),
            Settlements(self._control, self._cluster, self._offsets),
            queue_names(self._topics, self._control.dead_letter_topics()),
            decoded(self._decode, dict),
            self._now_ms(),
        )
        found = (fates.received(of), *fates.stored(of, locator.copies(of)), *following.steps(of))
        steps, problem = readback.read_back(
            found, following.settled, self._cluster.running(self._now_ms()), self._readbacks
        )
        notes = scanner.notes if problem is None else (*scanner.notes, problem)
        return Trace(of.reading, is_exact, tuple(steps), tuple(notes))

    def publishes(
        self, client_id: str, at_ms: int, within_ms: int, packet_id: int | None
    ) -> tuple[list[StoredPublish], Sequence[str]]:
        """Return the records of an MQTT client's publishes around a time, as `PublishFinder.find`, and notes.

        Raises UnavailableError.
        """
        scanner = Scanner(self._topics, self._search)
        queues = queue_names(self._topics, self._control.dead_letter_topics())
        found = PublishFinder(scanner, queues).find(client_id, at_ms, within_ms, packet_id)
        return found, scanner.notes

    def _completed(self, question: Question) -> Question:
        """Ask for the newest reading by its time, which the topic of device states tells."""
        if question.record is not None or question.at_ms is not None or question.sequence is not None:
            return question
        device = self._devices.device(question.device_id)
        newest = [one for one in (device.latest if device else ()) if question.metric in ("", one.metric)]
        if not newest:
            raise NotFoundError(f"no newest reading of {question.device_id} is known; say its time or its sequence")
        last = max(newest, key=lambda one: one.at_ms)
        return replace(question, metric=last.metric, at_ms=last.at_ms, sequence=last.sequence)


@dataclass(frozen=True)
class _Following:
    """Follows one stored reading. Each part of it has the time that is set for a search."""

    scanner: Scanner
    finder: FateFinder
    windows: WindowFinder
    settlements: Settlements
    queues: Sequence[str]
    value: Callable[[Record], Mapping[str, Any] | None]
    now_ms: int
    settled: dict[TopicPartitionOffset, Record] = field(default_factory=dict)
    """The records that connectors were asked about."""

    def steps(self, of: StoredReading) -> Iterator[Step]:
        """Yield what became of the reading."""
        refusals = self._refusals(of.record)
        yield from refusals
        rows: list[list[Published]] = []
        if _may_be_aggregated(of) and not any(step.hop == _AGGREGATOR for step in refusals):
            late, rows = yield from self._aggregated(of)
            for one in rows:
                yield from windows.steps_of(one, is_late=late is not None)
        yield from self.finder.alerts(of)
        yield from self._settled(of.record, refusals)
        for row in (row for one in rows for row in windows.first_and_last(one)):
            refusals = self._refusals(row)
            yield from refusals
            yield from self._settled(row, refusals)

    def _settled(self, record: Record, refusals: Sequence[Step]) -> Iterator[Step]:
        self.settled[TopicPartitionOffset.of(record)] = record
        yield from self.settlements.of(record, self.value(record), refused_by(refusals), self.now_ms)

    def _refusals(self, record: Record) -> list[Step]:
        self.scanner.begin()
        return list(map(fates.dead_letter_step, self.finder.dead_letters(record, self.queues)))

    def _aggregated(self, of: StoredReading) -> Generator[Step, None, tuple[Record | None, list[list[Published]]]]:
        """Yield the step of a late reading, or of one that is in no window; return its late copy and its rows."""
        self.scanner.begin()
        cut = len(self.scanner.notes)
        late, rows = self._late_and_rows(of)
        if late is not None:
            yield fates.late_step(late)
        elif not rows and cut == len(self.scanner.notes):
            text = "no published window has it up to now, and it is neither late nor refused"
            yield Step(_AGGREGATOR, State.UNPUBLISHED, None, None, text)
        return late, rows

    def _late_and_rows(self, of: StoredReading) -> tuple[Record | None, list[list[Published]]]:
        appended_ms = of.record.timestamp_ms
        soon_ms = appended_ms + fates.SOON_MS
        late = self.finder.late(of, appended_ms - fates.SKEW_MS, soon_ms)
        if late is None:
            rows = self.windows.rows(of.reading, appended_ms, is_late=False)
            # The row may be a correction for others, and this reading judged as late after an outage.
            if rows and not any(windows.is_correction(one[0]) for one in rows):
                return None, rows
            late = self.finder.late(of, soon_ms)
            if late is None:
                return None, rows
        return late, self.windows.rows(of.reading, late.timestamp_ms, is_late=True)


def _may_be_aggregated(of: StoredReading) -> bool:
    """Whether the aggregator reads the topic of a reading, or may do so because nobody has declared the topic."""
    return of.record.topic in model.AGGREGATED_TOPICS or of.record.topic not in model.READING_TOPICS
