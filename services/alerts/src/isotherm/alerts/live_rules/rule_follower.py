"""Follows the topic of rules, in a thread, from its beginning: rules take effect, requests to try one are passed on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from isotherm.alerts.live_rules.rule_records import OUTCOME, OUTCOME_PREFIX, RULE, SCHEMA, TRIAL, trial_of
from isotherm.alerts.live_rules.trial_runner import TrialRunner
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.rule_sources import RuleSources
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, SchemaRegistry, WireFormatError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.kafka.consuming import assign_from_start

_POLL_S = 0.5
_REQUEST_S = 10.0
_JOIN_S = 2.0
_MAX_OUTCOMES = 2_000

_log = logs.logger(__name__)


class RuleFollower:
    """Applies every record of the topic to `sources`. The rules stay as they are while Kafka or the registry is away.

    A record that cannot be used changes nothing: it is logged, counted, and answered with an outcome in the topic.
    """

    def __init__(
        self,
        topic: str,
        make_consumer: Callable[[], Consumer],
        registry: SchemaRegistry,
        sources: RuleSources,
        trials: TrialRunner,
        metrics: Metrics,
    ) -> None:
        """Take what the follower needs. `make_consumer` makes one that reports the ends of partitions."""
        self._topic, self._make_consumer = topic, make_consumer
        self._decode = Decoder(registry, SCHEMA)
        self._sources, self._trials, self._metrics = sources, trials, metrics
        self._outcomes: dict[str, str | None] = {}
        """What the topic says of a rule or trial, by its key."""
        self._current, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="rules", daemon=True)

    def start(self) -> None:
        """Start to follow the topic."""
        self._thread.start()

    def close(self) -> None:
        """Stop to follow the topic."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def is_current(self) -> bool:
        """Return whether every record that the topic held at the start was applied."""
        return self._current.is_set()

    def _run(self) -> None:
        backoff = Backoff(base_ms=200, cap_ms=10_000)
        while not self._ended.is_set():
            try:
                self._follow(backoff)
            except Exception as error:
                _log.warning("the topic of rules is read again", reason=str(error))
                self._ended.wait(backoff.next_ms() / 1000)

    def _follow(self, backoff: Backoff) -> None:
        """Read without end. Raises KafkaException and RegistryUnavailableError; then the topic is read again."""
        consumer = self._make_consumer()
        try:
            # It has one partition, which keeps the records of a rule in order.
            _first, end = consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=_REQUEST_S)
            assign_from_start(consumer, self._topic, [0], _REQUEST_S)
            # A former version of a rule must not come into force again, not for a moment.
            newest: dict[str, Message] | None = {}
            while not self._ended.is_set():
                message = consumer.poll(_POLL_S)
                if message is None:
                    continue
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if error is None and newest is None:
                    self._apply(message)
                elif error is None and newest is not None:
                    newest[_key_of(message)] = message
                # The end is reported only after a fetch that brought nothing; compaction may have removed the last one.
                if newest is not None and (error is not None or (message.offset() or 0) + 1 >= end):
                    self._apply_all(newest)
                    newest = None
                    backoff.reset()
        finally:
            consumer.close()

    def _apply_all(self, newest: dict[str, Message]) -> None:
        """Apply the newest record of each key; a rule whose removal was compacted away is removed."""
        for rule_id in self._sources.of_topic() - newest.keys():
            self._sources.put(rule_id, None)
        for message in newest.values():
            self._apply(message)
        self._current.set()
        for rule_id, problem in list(self._sources.problems.items()):
            self._report_once(rule_id, problem)

    def _apply(self, message: Message) -> None:
        key, value = _key_of(message), message.value()
        try:
            record = None if value is None else self._decode(value).record
        except WireFormatError as error:
            self._refuse(key, str(error))
            return
        about = key.removeprefix(OUTCOME_PREFIX)
        if record is None:
            self._outcomes.pop(about, None)
            if about == key and (key in self._sources.of_topic() or key in self._sources.problems):
                self._sources.put(key, None)
        elif record["role"] == OUTCOME:
            self._trials.forget(about)
            if about in self._outcomes or len(self._outcomes) < _MAX_OUTCOMES:
                self._outcomes[about] = record["problem"]
        elif record["role"] == TRIAL:
            self._trials.request(trial_of(record, message.timestamp()[1]))
        elif record["role"] == RULE:
            problem = self._sources.put(key, record["definition"])
            if problem:
                self._refuse(key, problem)
        else:
            self._refuse(key, f"role {record['role']!r} is not allowed; expected {RULE}, {TRIAL} or {OUTCOME}")

    def _refuse(self, rule_id: str, problem: str) -> None:
        self._metrics.rules_refused.labels("topic").inc()
        _log.error("a rule cannot be used, the former one stays", rule=rule_id, reason=problem)
        if self._current.is_set():
            self._report_once(rule_id, problem)

    def _report_once(self, rule_id: str, problem: str) -> None:
        # Once: every replica and every start comes to the same problem.
        if self._outcomes.get(rule_id) != problem:
            self._trials.report_problem(rule_id, problem)


def _key_of(message: Message) -> str:
    return (message.key() or b"").decode(errors="replace")
