"""What the followed topics bring, into the ledger and the pool of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import Message

from isotherm import kcql
from isotherm.console.dead_letters.record import QueuedRecord
from isotherm.console.reconciliation.decoding import RecordDecoder, place_of, stored_reading, value_of
from isotherm.console.reconciliation.follower import FollowedTopic
from isotherm.console.reconciliation.ledger import Ledger
from isotherm.console.reconciliation.readings import StoredReading
from isotherm.console.reconciliation.rows import RowPool
from isotherm.console.records.record import Record
from isotherm.console.settings import STATEMENT
from isotherm.console.trace.model import TopicPartitionOffset
from isotherm.kcql.dates import epoch_ms
from isotherm.servicekit.avro import WireFormatError

_SAMPLED_S = 1.0
"""Of the readings one a second is a candidate for reading its rows back; of the windows every one."""


class FollowedTopics(NamedTuple):
    """The names of the topics."""

    readings: Sequence[str]
    windows: str
    late: str
    dead_letters: str


class ReadingFilter:
    """Decodes the readings that windows are made of: those of which the aggregator's condition is true."""

    def __init__(self, decoder: RecordDecoder, where: str) -> None:
        self._decoder, self._accepts = decoder, _condition(where)

    def record(self, message: Message) -> Mapping[str, Any] | None:
        """Return the decoded reading in a message; None for one that no window has.

        Raises WireFormatError, RegistryUnavailableError.
        """
        if self._accepts is None:
            return self._decoder.reading(value_of(message))
        record = self._decoder.complete_reading(value_of(message))
        key = (message.key() or b"").decode(errors="replace")
        return record if self._accepts(key, record) else None

    def __call__(self, message: Message) -> StoredReading | None:
        """Return the reading in a message with its place, as `record` does."""
        record = self.record(message)
        return None if record is None else stored_reading(record, place_of(message))


class Recorder:
    """Uses messages of all followed topics."""

    def __init__(
        self, ledger: Ledger, pool: RowPool, decoder: RecordDecoder, readings: ReadingFilter, now_ms: Callable[[], int]
    ) -> None:
        self._ledger, self._pool, self._decoder, self._readings = ledger, pool, decoder, readings
        self._now_ms = now_ms
        self._sampled_s = 0.0

    def topics(self, names: FollowedTopics) -> dict[str, FollowedTopic]:
        """Return how the records of each topic are used."""
        return {
            **{name: FollowedTopic(partial(self._reading, name)) for name in names.readings},
            names.windows: FollowedTopic(self._window),
            names.late: FollowedTopic(self._late),
            names.dead_letters: FollowedTopic(self._refused, is_optional=True),
        }

    def _reading(self, topic: str, message: Message) -> None:
        # Once for each reading of the suite: no object is made that is not kept.
        record = self._readings.record(message)
        if record is None:
            return
        series, partition = (record["device_id"], record["metric"]), (topic, message.partition() or 0)
        event_ms = epoch_ms(record["event_time"])
        self._ledger.add_reading(series, event_ms, record["value"], partition, message.offset() or 0)
        now_s = time.monotonic()
        if now_s - self._sampled_s >= _SAMPLED_S:
            self._sampled_s = now_s
            self._pool.add(Record.of(message), self._now_ms())

    def _window(self, message: Message) -> None:
        self._ledger.add_row(self._decoder.row(message))
        self._pool.add(Record.of(message), self._now_ms())

    def _late(self, message: Message) -> None:
        self._ledger.add_late(stored_reading(self._decoder.reading(value_of(message)), place_of(message)))

    def _refused(self, message: Message) -> None:
        # What nobody can decode has never been taken for a reading.
        with suppress(WireFormatError):
            origin = QueuedRecord(**vars(Record.of(message))).failed_record
            if origin is not None:
                topic, partition, offset, _ = origin
                place = TopicPartitionOffset(topic, int(partition), int(offset))
                self._ledger.add_refused(stored_reading(self._decoder.reading(value_of(message)), place))


def _condition(where: str) -> Callable[[str, Mapping[str, Any]], bool] | None:
    if not where:
        return None
    (statement,) = kcql.parse(STATEMENT + where)
    accepts = kcql.compile_projection(statement).accepts
    assert accepts is not None

    def is_true(key: str, record: Mapping[str, Any]) -> bool:
        try:
            return accepts(kcql.Record(key, record))
        except kcql.ProjectionError:
            return False

    return is_true
