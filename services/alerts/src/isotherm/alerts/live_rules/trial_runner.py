"""Tries rules over past readings, in a thread of its own, one at a time, and writes what came of it to their topic."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from isotherm.alerts.engine.reading import Reading
from isotherm.alerts.input.decoding import ReadingDecoder
from isotherm.alerts.live_rules.dry_run import DryRun
from isotherm.alerts.live_rules.group_mean_follower import READER as MEANS
from isotherm.alerts.live_rules.group_mean_follower import mean_of
from isotherm.alerts.live_rules.rule_records import (
    OUTCOME_PREFIX,
    SCHEMA,
    TrialRequest,
    TrialResult,
    outcome_record,
)
from isotherm.alerts.rules.catalog import rule_of
from isotherm.alerts.rules.comparisons import OffGroupMeanRule
from isotherm.alerts.rules.rule_sources import FILE, RuleSources
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, SchemaRegistry, WireFormatError
from isotherm.servicekit.kafka.consuming import consume_available

MAX_WAITING = 16
"""Most requests that wait. A further one is answered with a problem."""
MAX_READINGS = 200_000
"""Most readings of one trial. Of more, the newest of each partition are tried."""
MAX_TRIAL_S = 20.0
"""Longest time that one trial reads."""
MAX_HOURS = 168
_REQUEST_S = 10.0
_EXPIRES_S = 60.0
"""A request that nobody has answered for so long is dropped: who asked has gone."""
_LOOK_S = 0.2
_JOIN_S = 2.0
_BATCH = 1_000
_HOUR_MS = 3_600_000

_log = logs.logger(__name__)


@dataclass(frozen=True)
class TrialClients:
    """What the thread makes when it needs it."""

    make_consumer: Callable[[], Consumer]
    """Makes a consumer that reports the ends of partitions."""
    make_producer: Callable[[], Producer]
    """Makes a producer whose records are given up after some seconds."""
    registry: SchemaRegistry


class TrialRunner:
    """Answers requests while `is_in_charge`: one replica of the service does. Thread-safe."""

    def __init__(
        self,
        topic: str,
        input_topics: list[str],
        groups_topic: str,
        clients: TrialClients,
        sources: RuleSources,
        make_run: Callable[[Any], DryRun],
        is_in_charge: Callable[[], bool],
        name: str,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Take what trials need.

        Args:
            topic: the topic of rules, to which outcomes are written.
            input_topics: with the readings, or windows, of the last days.
            groups_topic: with the means of groups of the last days.
            clients: makes the clients of Kafka.
            sources: the rules in force, beside which a rule has to stand.
            make_run: makes the dry run of a rule.
            is_in_charge: whether this replica answers requests.
            name: the service's name, for the outcomes.
            now_ms: the clock, epoch ms.
        """
        self._topic, self._inputs, self._groups, self._clients = topic, input_topics, groups_topic, clients
        self._sources, self._make_run, self._is_in_charge = sources, make_run, is_in_charge
        self._name, self._now_ms = name, now_ms
        self._lock = threading.Lock()
        self._wake, self._ended = threading.Event(), threading.Event()
        self._waiting: dict[str, TrialRequest] = {}
        self._outcomes: deque[tuple[str, dict[str, Any]]] = deque(maxlen=1_000)
        self._encode: Callable[[Any], bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="rule-trials", daemon=True)

    def start(self) -> None:
        """Start to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop to answer."""
        self._ended.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def request(self, request: TrialRequest) -> None:
        """Take a request, unless it is too old to be waited for."""
        if self._now_ms() - request.requested_ms > _EXPIRES_S * 1000:
            return
        with self._lock:
            if len(self._waiting) < MAX_WAITING or request.trial_id in self._waiting:
                self._waiting[request.trial_id] = request
            else:
                self._put_outcome(request.trial_id, request.definition, "too many rules are tried at once", None)
        self._wake.set()

    def forget(self, trial_id: str) -> None:
        """Forget a request that was answered."""
        with self._lock:
            self._waiting.pop(trial_id, None)

    def report_problem(self, rule_id: str, problem: str) -> None:
        """Write to the topic why a rule of it is not in force."""
        if rule_id != FILE:  # Replicas may have different files.
            with self._lock:
                self._put_outcome(rule_id, "", problem, None)
            self._wake.set()

    def _put_outcome(self, about: str, definition: str, problem: str | None, result: TrialResult | None) -> None:
        record = outcome_record(about, definition, problem, result, self._name, self._now_ms())
        self._outcomes.append((OUTCOME_PREFIX + about, record))

    def _run(self) -> None:
        producer: Producer | None = None
        while not self._ended.is_set():
            # While something waits for another replica, or for Kafka, it is looked at again soon.
            self._wake.wait(_LOOK_S if self._waiting or self._outcomes else None)
            self._wake.clear()
            try:
                self._answer_next()
                if self._outcomes:
                    producer = producer or self._clients.make_producer()
                    self._write(producer)
            except Exception as error:
                _log.warning("what came of a rule's trial is not written yet", reason=str(error))
                self._ended.wait(1.0)

    def _answer_next(self) -> None:
        with self._lock:
            limit_ms = self._now_ms() - int(_EXPIRES_S * 1000)
            self._waiting = {key: one for key, one in self._waiting.items() if one.requested_ms >= limit_ms}
            request = next(iter(self._waiting.values()), None)
        if request is None or not self._is_in_charge():
            return
        problem, result = self._try(request)
        with self._lock:
            if self._waiting.pop(request.trial_id, None) is not None:
                self._put_outcome(request.trial_id, request.definition, problem or None, result)
            if self._waiting:
                self._wake.set()

    def _try(self, request: TrialRequest) -> tuple[str, TrialResult | None]:
        if not 0 <= request.hours <= MAX_HOURS:
            return f"hours = {request.hours} is not allowed: 0 to {MAX_HOURS}", None
        try:
            rule = rule_of(request.definition)
        except ValueError as error:
            return str(error), None
        problem = self._sources.problem_of(rule.key, request.definition)
        if problem or not request.hours:
            return problem, None
        try:
            run = self._make_run(rule)
            consumer = self._clients.make_consumer()
            from_ms, deadline_s = self._now_ms() - request.hours * _HOUR_MS, time.monotonic() + MAX_TRIAL_S
            try:
                has_means = not isinstance(rule, OffGroupMeanRule) or self._read_means(
                    consumer, run, from_ms - rule.max_age_ms, deadline_s
                )
                return "", self._read(consumer, run, from_ms, deadline_s, is_complete=has_means)
            finally:
                consumer.close()
        except Exception as error:
            _log.warning("a rule could not be tried", rule=rule.key, reason=repr(error))
            return f"the readings cannot be read: {error}", None

    def _read_means(self, consumer: Consumer, run: DryRun, from_ms: int, deadline_s: float) -> bool:
        """Read the means of groups since `from_ms` (epoch ms); return whether that are all of them.

        Raises KafkaException and RegistryUnavailableError.
        """
        spans, is_complete = self._spans(consumer, [self._groups], from_ms)
        decode = Decoder(self._clients.registry, MEANS)
        for start, end in spans:
            for message in self._messages(consumer, start, end, deadline_s):
                try:
                    record = decode(message.value() or b"").record
                except WireFormatError:
                    continue  # The follower of the topic counts it.
                is_complete = run.means.put(*mean_of(record)) and is_complete
        return is_complete

    def _read(
        self, consumer: Consumer, run: DryRun, from_ms: int, deadline_s: float, *, is_complete: bool
    ) -> TrialResult:
        """Run over the readings since `from_ms` (epoch ms). Raises KafkaException and RegistryUnavailableError."""
        spans, is_whole = self._spans(consumer, self._inputs, from_ms)
        is_complete = is_complete and is_whole
        decode = ReadingDecoder(self._clients.registry)
        windows: list[Reading] = []
        for start, end in spans:
            for message in self._messages(consumer, start, end, deadline_s):
                try:
                    reading = decode(message.value(), message.timestamp()[1])
                except WireFormatError:
                    continue  # The stream makes a dead-letter record of it.
                if reading.sequence < 0:
                    windows.append(reading)  # The windows of one device are in all partitions.
                else:
                    run.apply(reading)
        for reading in sorted(windows, key=lambda one: one.position):
            run.apply(reading)
        return run.result(is_complete=is_complete and time.monotonic() < deadline_s)

    @staticmethod
    def _spans(
        consumer: Consumer, topics: Sequence[str], from_ms: int
    ) -> tuple[list[tuple[TopicPartition, int]], bool]:
        """Return where each partition begins and ends, with an equal share of MAX_READINGS; and whether that is all."""
        partitions = [
            (topic, number)
            for topic in topics
            for number in consumer.list_topics(topic, timeout=_REQUEST_S).topics[topic].partitions
        ]
        found = consumer.offsets_for_times([TopicPartition(*one, from_ms) for one in partitions], timeout=_REQUEST_S)
        share, is_complete, spans = max(MAX_READINGS // max(len(partitions), 1), 1), True, []
        for tp in found:
            _first, end = consumer.get_watermark_offsets(TopicPartition(tp.topic, tp.partition), timeout=_REQUEST_S)
            if tp.error is not None:
                raise KafkaException(tp.error)
            start = end if tp.offset < 0 else tp.offset
            if end - start > share:
                start, is_complete = end - share, False
            if start < end:
                spans.append((TopicPartition(tp.topic, tp.partition, start), end))
        return spans, is_complete

    def _messages(self, consumer: Consumer, start: TopicPartition, end: int, deadline_s: float) -> Iterator[Message]:
        """Yield the records of a partition from `start` to before the offset `end`. Raises KafkaException."""
        consumer.assign([start])
        while time.monotonic() < deadline_s and not self._ended.is_set():
            for message in consume_available(consumer, _BATCH, _LOOK_S):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return
                if error is not None:
                    raise KafkaException(error)
                if (message.offset() or 0) >= end:
                    return
                yield message
                if (message.offset() or 0) + 1 >= end:
                    return

    def _write(self, producer: Producer) -> None:
        """Write the outcomes. Raises KafkaException when Kafka does not take one; then it is written again."""
        if self._encode is None:
            self._encode = self._clients.registry.encoder(self._topic, SCHEMA)
        while self._outcomes and not self._ended.is_set():
            key, record = self._outcomes[0]
            failures: list[KafkaError] = []
            producer.produce(self._topic, key=key, value=self._encode(record), on_delivery=partial(_note, failures))
            if producer.flush(_REQUEST_S) or failures:
                raise KafkaException(failures[0] if failures else KafkaError(KafkaError._TIMED_OUT))
            with self._lock:
                if self._outcomes and self._outcomes[0][1] is record:
                    self._outcomes.popleft()


def _note(failures: list[KafkaError], error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        failures.append(error)
