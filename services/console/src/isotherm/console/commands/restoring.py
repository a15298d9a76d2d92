"""Reads back what is stored of the commands of some partitions: the open ones, and those finished lately."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    OffsetSpec,
)

from isotherm.connector.commands.records import FINAL, OPEN, OUTCOMES, CommandOutcome, OpenCommand
from isotherm.console.commands.acceptance import Limits
from isotherm.console.commands.decoding import CommandDecoder
from isotherm.console.commands.settlement import PartitionSettlement
from isotherm.servicekit.avro import WireFormatError
from isotherm.servicekit.kafka.consuming import consume_available
from isotherm.servicekit.kafka.offsets import list_offsets

_BATCH = 1_000
_POLL_S = 0.5
_PATIENCE_S = 10.0
"""How long nothing may come. An open transaction of another process holds readers up until Kafka ends it."""
_OFFSETS_EACH = 4
"""A command has two outcomes, each of which may be followed by the end of its transaction."""

Where = tuple[str, int]


class Restorer:
    """Makes the settlements of partitions of what is stored."""

    def __init__(
        self,
        admin: AdminClient,
        make_reader: Callable[[], Consumer],
        decoder: CommandDecoder,
        on_unreadable: Callable[[str], None],
        on_pass: Callable[[], None],
        timeout_s: float,
    ) -> None:
        """`make_reader` makes a read_committed consumer that reports the ends of partitions.

        `on_pass` is called all the time while records are read; what it raises ends the reading.
        """
        self._admin, self._make_reader, self._decoder = admin, make_reader, decoder
        self._on_unreadable, self._on_pass, self._timeout_s = on_unreadable, on_pass, timeout_s

    def restore(self, numbers: Sequence[int], limits: Limits, now_ms: int) -> dict[int, PartitionSettlement]:
        """Return the state of partitions as former owners have left it; their transactions must be decided.

        Raises KafkaException, RegistryUnavailableError.
        """
        opened = self._read_open(frozenset(numbers))
        made = {number: PartitionSettlement(limits, opened.get(number, {}).values()) for number in numbers}
        self._read_finished(made, limits, now_ms)
        return made

    def _read_open(self, numbers: frozenset[int]) -> dict[int, dict[str, OpenCommand]]:
        found: dict[int, dict[str, OpenCommand]] = {number: {} for number in numbers}
        partition_of: dict[str, int] = {}
        where = OPEN, 0
        # The end of all records and not only of the decided ones: an undecided one may be of these partitions.
        (end,) = self._offsets([where], OffsetSpec.latest()).values()  # type: ignore[no-untyped-call]  # no annotations
        for message in self._read({where: (0, end)}):
            key, value = (message.key() or b"").decode(errors="replace"), message.value()
            if key in partition_of:
                found[partition_of.pop(key)].pop(key, None)
            if value is None:
                continue
            try:
                one = OpenCommand.of(self._decoder.opened(value))
            except WireFormatError:
                self._on_unreadable(OPEN)
                continue
            if one.partition in numbers:
                found[one.partition][key], partition_of[key] = one, one.partition
        return found

    def _read_finished(self, made: Mapping[int, PartitionSettlement], limits: Limits, now_ms: int) -> None:
        places = [(OUTCOMES, number) for number in made]
        ends = self._offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]  # no annotations
        since = self._offsets(places, OffsetSpec.for_timestamp(now_ms - limits.remember_ms))
        most = limits.max_remembered * _OFFSETS_EACH
        spans = {
            where: (max(since[where] if since[where] >= 0 else end, end - most), end) for where, end in ends.items()
        }
        for message in self._read(spans):
            try:
                one = CommandOutcome.of(self._decoder.outcome(message.value() or b""))
            except WireFormatError:
                self._on_unreadable(OUTCOMES)
                continue
            if one.outcome in FINAL:
                made[message.partition() or 0].finished.add(one.device_id, one.command_id, one.updated_ms)

    def _offsets(self, places: Sequence[Where], spec: OffsetSpec) -> dict[Where, int]:
        found = list_offsets(self._admin, places, spec, committed=False, timeout_s=self._timeout_s)
        return {where: one.offset for where, one in found.items()}

    def _read(self, spans: Mapping[Where, tuple[int, int]]) -> Iterator[Message]:
        """Yield the committed messages of partitions from an offset on until all before an end are decided."""
        waiting = {where: end for where, (start, end) in spans.items() if start < end}
        if not waiting:
            return
        with closing(self._make_reader()) as reader:
            reader.list_topics(timeout=self._timeout_s)
            reader.assign([TopicPartition(*where, spans[where][0]) for where in waiting])
            deadline_s = time.monotonic() + _PATIENCE_S
            while waiting:
                self._on_pass()
                batch = consume_available(reader, _BATCH, _POLL_S)
                for message in batch:
                    error, where = message.error(), (message.topic() or "", message.partition() or 0)
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    offset = message.offset() or 0
                    if error is None:
                        deadline_s = time.monotonic() + _PATIENCE_S
                        yield message
                    # The end of a partition is the offset behind its last decided record.
                    if where in waiting and offset + (error is None) >= waiting[where]:
                        del waiting[where]
                if time.monotonic() > deadline_s:
                    reason = f"{', '.join(sorted({topic for topic, _ in waiting}))}: not read to the end in time"
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason))
