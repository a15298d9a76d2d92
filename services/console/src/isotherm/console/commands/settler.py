"""The loop that settles: reads commands and steps, keeps the state of its partitions, and stores what they change.

It sleeps until a record comes or a deadline is due. After any failure it forgets its state and reads it back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AdminClient,
    OffsetSpec,
)

from isotherm.connector.commands.records import STEPS, CommandStep
from isotherm.console.commands.acceptance import Limits, UnsettleableError
from isotherm.console.commands.assignment import (
    INPUTS,
    AssignmentError,
    TopicsMissingError,
    count_partitions,
    numbers_of,
)
from isotherm.console.commands.batch import Batch, Encoders
from isotherm.console.commands.decoding import CommandDecoder, dead_letter
from isotherm.console.commands.metrics import CommandMetrics
from isotherm.console.commands.restoring import Restorer
from isotherm.console.commands.settlement import Change, PartitionSettlement, Source
from isotherm.console.commands.transactions import TransactionalWriter, TransactionFailedError
from isotherm.console.records.partitions import partition_of
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, WireFormatError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.kafka.consuming import consume_available
from isotherm.servicekit.kafka.errors import reason_of
from isotherm.servicekit.kafka.group_offsets import committed_offsets
from isotherm.servicekit.kafka.offsets import list_offsets
from isotherm.servicekit.lifecycle import Stop
from isotherm.servicekit.throttling.sparse_log import SparseLog

_log = logs.logger(__name__)
_log_event = SparseLog(_log, "the consumer reports an error")

PART = "settling"
_BATCH = 500
_LONGEST_POLL_S = 1.0
"""Nothing wakes librdkafka's poll when the process is to stop, so this bounds how late it notices."""
_OFFSETS_PAUSE_S = 1.0
"""How long offsets wait without a record to write: records that change nothing are ignored again when read again, and a
transaction of offsets alone, right behind another one, takes librdkafka half a second."""
_AWAY = (KafkaException, RegistryUnavailableError, TransactionFailedError, TopicsMissingError)


class Ends(NamedTuple):
    """The end of a partition's steps as Kafka told it."""

    offset: int
    asked_ms: int


class Ports(NamedTuple):
    """What the settler works with."""

    consumer: Consumer
    """A read_committed member of the group that reports the ends of partitions, with the assignor `range`."""
    admin: AdminClient
    restorer: Restorer
    writer: TransactionalWriter
    decoder: CommandDecoder
    encoders: Encoders
    is_known: Callable[[], Callable[[str], bool] | None]
    """Returns what tells whether a device is known; None while the devices are not read."""
    now_ms: Callable[[], int]


def check_places(settlements: Mapping[int, PartitionSettlement], partitions: int) -> None:
    """Raise AssignmentError where steps of an open command go to another partition than the command is on."""
    for number, settlement in settlements.items():
        for device_id in settlement.devices:
            if partition_of(device_id.encode(), partitions) != number:
                raise AssignmentError(
                    f"{device_id!r} has open commands on partition {number}, and its steps go to another one: "
                    f"partitions were added. Wait until no command is open before partitions are added"
                )


class StoppedError(Exception):
    """The process is to stop."""


class ConsumerFailedError(Exception):
    """The consumer cannot go on."""


class Settler:
    """Settles the commands of the partitions that its consumer is assigned. One thread uses it."""

    def __init__(
        self,
        ports: Ports,
        limits_of: Callable[[int], Limits],
        dead_letter_topic: str,
        metrics: CommandMetrics,
        health: Health,
        timeout_s: float,
    ) -> None:
        """`limits_of` returns the limits of one of so many partitions."""
        self._ports, self._limits_of, self._dead_letter_topic = ports, limits_of, dead_letter_topic
        self._metrics, self._health, self._timeout_s = metrics, health, timeout_s
        self._assigned: list[TopicPartition] = []
        self._is_restored = True
        self._lost_s: float | None = time.monotonic()
        """Since when the process has no assignment, or not the state of its partitions, in monotonic seconds."""
        self._partitions = 1
        self._settlements: dict[int, PartitionSettlement] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._dues: dict[int, int] = {}
        """When the next deadline of each partition is due, after the last pass. It is replaced and never changed:
        other threads read it, and a settlement is used by one thread."""
        self._ends: dict[int, Ends] = {}
        """By partition the end of its steps that was asked for because deadlines are due, until they are decided."""
        self._read_until_ms: dict[tuple[str, int], int] = {}
        """The time stamps of the records read last, of partitions that are not known to be read to their end."""
        self._unstored: set[int] = set()
        """Partitions of which records were read that change nothing, and whose offsets are not stored yet."""
        self._stored_s = time.monotonic()
        self._forgotten = 0
        self._backoff = Backoff(cap_ms=5_000)

    def run(self, stop: Stop) -> None:
        """Settle until the stop. Raises AssignmentError and ConsumerFailedError."""
        consumer = self._ports.consumer
        self._health.not_ready(PART, "joining the group")
        consumer.subscribe(list(INPUTS), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        while not stop.is_set():
            self._health.beat()
            try:
                if not self._is_restored:
                    self._restore()
                self._settle()
            except StoppedError:
                return
            except _AWAY as failure:
                self._begin_again(failure)
                # Polled, so that the group is heard; a record that comes is read again.
                found = consumer.poll(self._backoff.next_ms() / 1_000)
                error = None if found is None else found.error()
                if error is not None and error.fatal():
                    raise ConsumerFailedError(error.str()) from failure

    def behind_s(self) -> float:
        """Return how long commands, steps or deadlines wait, in seconds; any thread may ask."""
        now_ms, lost_s = self._ports.now_ms(), self._lost_s
        waits_ms = [0.0 if lost_s is None else (time.monotonic() - lost_s) * 1_000]
        waits_ms.extend(now_ms - until_ms for until_ms in tuple(self._read_until_ms.values()))
        waits_ms.extend(now_ms - due_ms for due_ms in self._dues.values())
        return max(waits_ms) / 1_000

    # --- the group -----------------------------------------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        # Nothing is fetched before the state of the partitions is there.
        consumer.assign([])
        self._forget()
        self._assigned, self._is_restored = list(assigned), not assigned
        if assigned:
            self._health.not_ready(PART, "reading the state of its partitions")
        else:
            self._lost_s = None
            self._health.ready(PART)
            _log.info("no partitions for this process: it takes over when another one ends")

    def _on_revoke(self, consumer: Consumer, _revoked: list[TopicPartition]) -> None:
        self._leave("the group assigns its partitions again")
        consumer.unassign()

    def _on_lost(self, consumer: Consumer, _lost: list[TopicPartition]) -> None:
        self._leave("the group has lost this process: it has not heard of it for too long")
        consumer.unassign()

    def _leave(self, reason: str) -> None:
        _log.info("partitions given back", reason=reason)
        self._forget()
        self._assigned, self._is_restored, self._lost_s = [], True, self._lost_s or time.monotonic()
        self._health.not_ready(PART, reason)

    def _forget(self) -> None:
        self._settlements, self._positions, self._ends, self._read_until_ms = {}, {}, {}, {}
        self._unstored, self._dues = set(), {}
        self._metrics.open.set(0)
        self._metrics.remembered.set(0)

    def _begin_again(self, failure: Exception) -> None:
        """Forget the state of the partitions, so that it is read back as Kafka has it."""
        reason = reason_of(failure)
        if isinstance(failure, TransactionFailedError):
            self._metrics.aborted.inc()
        _log.warning("the state of commands is read again", reason=reason)
        self._forget()
        if self._assigned:
            self._health.not_ready(PART, reason)
            self._is_restored, self._lost_s = False, self._lost_s or time.monotonic()

    def _restore(self) -> None:
        """Read back the state of the assigned partitions, and begin to read behind it.

        Raises KafkaException, RegistryUnavailableError, AssignmentError.
        """
        ports, started_s = self._ports, time.monotonic()
        ports.consumer.assign([])
        self._partitions = count_partitions(ports.admin, self._timeout_s)
        numbers = numbers_of(self._assigned)
        # In this order: the transactions of former owners are decided, and so the offsets and the records are those
        # of the same transactions.
        ports.writer.take_over(numbers)
        self._health.beat()
        committed = committed_offsets(ports.consumer, self._assigned, timeout_s=self._timeout_s)
        settlements = ports.restorer.restore(numbers, self._limits_of(self._partitions), ports.now_ms())
        check_places(settlements, self._partitions)
        starts = self._starts(committed)
        ports.consumer.assign(starts)
        self._settlements = settlements
        self._positions = {(one.topic, one.partition): one.offset for one in starts}
        self._forgotten = sum(one.finished.forgotten_early for one in settlements.values())
        self._is_restored, self._lost_s, self._dues = True, None, self._next_dues()
        self._show_sizes()
        self._health.ready(PART)
        _log.info(
            "settling",
            partitions=numbers,
            open=sum(one.open_count for one in settlements.values()),
            restored_in_ms=round((time.monotonic() - started_s) * 1_000),
        )

    def _starts(self, committed: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return where to read on: the steps from their beginning where their topic was made again."""
        steps = [(STEPS, one.partition) for one in committed if one.topic == STEPS]
        ends = self._ends_of(steps)
        starts = []
        for one in committed:
            offset = max(0, one.offset)
            is_gone = one.topic == STEPS and offset > ends[STEPS, one.partition]
            starts.append(TopicPartition(one.topic, one.partition, 0 if is_gone else offset))
        return starts

    def _ends_of(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the ends of all records and not only of the decided ones. Raises KafkaException."""
        found = list_offsets(
            self._ports.admin,
            list(places),
            OffsetSpec.latest(),  # type: ignore[no-untyped-call]  # it has no annotations
            committed=False,
            timeout_s=self._timeout_s,
        )
        return {where: one.offset for where, one in found.items()}

    # --- settling ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Store what the next records and the time change. Raises what means that the state is to be read again."""
        messages = consume_available(self._ports.consumer, _BATCH, self._idle_s())
        batch, now_ms = Batch(self._ports.encoders), self._ports.now_ms()
        for message in messages:
            self._take(message, batch, now_ms)
        self._decide_due(batch)
        self._dues = self._next_dues()
        batch.touched |= self._unstored
        if not batch or (not batch.outputs and time.monotonic() - self._stored_s < _OFFSETS_PAUSE_S):
            self._unstored = batch.touched
            self._count(batch)
            return
        group = self._ports.consumer.consumer_group_metadata()
        self._ports.writer.write(batch.outputs, batch.offsets(self._positions), group)
        self._unstored, self._stored_s = set(), time.monotonic()
        self._backoff.reset()
        self._count(batch)
        self._show_sizes()

    def _count(self, batch: Batch) -> None:
        for change in batch.changes:
            self._metrics.count(change)
        for topic in batch.dead:
            self._metrics.dead_letters.labels(topic).inc()

    def _idle_s(self) -> float:
        """Return how long nothing has to be done unless a record comes, in seconds."""
        dues = [due_ms for number, due_ms in self._dues.items() if number not in self._ends]
        if not dues:
            return _LONGEST_POLL_S
        return min(_LONGEST_POLL_S, max(0.0, (min(dues) - self._ports.now_ms()) / 1_000))

    def _next_dues(self) -> dict[int, int]:
        """Return when the next deadline of each partition that has one is due, in epoch milliseconds."""
        found = ((number, one.next_due_ms) for number, one in self._settlements.items())
        return {number: due_ms for number, due_ms in found if due_ms is not None}

    def _take(self, message: Message, batch: Batch, now_ms: int) -> None:
        topic, number, error = message.topic() or "", message.partition() or 0, message.error()
        if error is not None:
            self._note_event(topic, number, message.offset() or 0, error)
            return
        settlement = self._settlements.get(number)
        if settlement is None:
            # It was fetched for an assignment that is over.
            return
        self._positions[topic, number] = (message.offset() or 0) + 1
        self._read_until_ms[topic, number] = message.timestamp()[1]
        batch.touch(number)
        try:
            change = self._change(message, settlement, now_ms)
        except (WireFormatError, UnsettleableError) as unusable:
            batch.add_dead_letter(number, topic, dead_letter(self._dead_letter_topic, message, unusable))
        else:
            batch.add(number, [change])

    def _change(self, message: Message, settlement: PartitionSettlement, now_ms: int) -> Change:
        found = self._ports.decoder.message(message)
        if isinstance(found, CommandStep):
            return settlement.take_step(found, now_ms)
        number, key = message.partition() or 0, message.key()
        source = Source(
            number,
            message.offset() or 0,
            message.timestamp()[1],
            key,
            is_in_place=partition_of(key or b"", self._partitions) == number,
        )
        return settlement.take_command(found, source, now_ms)

    def _note_event(self, topic: str, number: int, offset: int, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            if (topic, number) in self._positions:
                self._positions[topic, number] = max(self._positions[topic, number], offset)
            self._read_until_ms.pop((topic, number), None)
        elif error.fatal():
            raise ConsumerFailedError(error.str())
        else:
            _log_event(topic=topic, reason=error.str())

    def _decide_due(self, batch: Batch) -> None:
        """Decide what is due and certain: the steps were read to an end that Kafka told after the deadline."""
        self._ask_for_ends()
        is_known = self._ports.is_known()
        for number, settlement in self._settlements.items():
            ends = self._ends.get(number)
            read_until_ms = 0
            if ends is not None and self._positions[STEPS, number] >= ends.offset:
                read_until_ms = ends.asked_ms
                del self._ends[number]
            if read_until_ms or (settlement.is_waiting_for_devices and is_known is not None):
                batch.add(number, settlement.decide_due(read_until_ms, self._ports.now_ms(), is_known))

    def _ask_for_ends(self) -> None:
        """Ask Kafka for the ends of the steps of partitions with something due. Raises KafkaException."""
        now_ms = self._ports.now_ms()
        dues = self._next_dues()
        due = [number for number, due_ms in dues.items() if number not in self._ends and due_ms <= now_ms]
        if due:
            # The step that counts may be behind an open transaction.
            found = self._ends_of([(STEPS, number) for number in due])
            for number in due:
                if found[STEPS, number] < self._positions[STEPS, number]:
                    # The topic was made again: what it has by now was not read.
                    raise KafkaException(KafkaError(KafkaError.OFFSET_OUT_OF_RANGE, f"{STEPS} has lost records"))
            self._ends.update((number, Ends(found[STEPS, number], now_ms)) for number in due)

    def _show_sizes(self) -> None:
        settlements = self._settlements.values()
        self._metrics.open.set(sum(one.open_count for one in settlements))
        self._metrics.remembered.set(sum(len(one.finished) for one in settlements))
        forgotten = sum(one.finished.forgotten_early for one in settlements)
        self._metrics.forgotten.inc(max(0, forgotten - self._forgotten))
        self._forgotten = forgotten
