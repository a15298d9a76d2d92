"""Follows the topic of rules, in a thread, from its beginning: rules take effect, requests to try one are passed on."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer, Message

from isotherm.alerts.input.topic_follower import TopicFollower
from isotherm.alerts.live_rules.rule_records import OUTCOME, OUTCOME_PREFIX, RULE, SCHEMA, TRIAL, trial_of
from isotherm.alerts.live_rules.trial_runner import TrialRunner
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.rule_sources import RuleSources
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, SchemaRegistry, WireFormatError

_MAX_OUTCOMES = 2_000

_log = logs.logger(__name__)


class RuleFollower(TopicFollower):
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
        super().__init__(topic, "rules", make_consumer, self._take_in, on_begin=self._begin, on_end=self._apply_newest)
        self._decode = Decoder(registry, SCHEMA)
        self._sources, self._trials, self._metrics = sources, trials, metrics
        self._outcomes: dict[str, str | None] = {}
        """What the topic says of a rule or trial, by its key."""
        self._newest: dict[str, Message] | None = None
        """The newest record of each key while the topic is read to its end; None afterwards."""

    def _begin(self) -> None:
        # A former version of a rule must not come into force again, not for a moment.
        self._newest = {}

    def _take_in(self, message: Message) -> None:
        if self._newest is None:
            self._apply(message)
        else:
            self._newest[_key_of(message)] = message

    def _apply_newest(self) -> None:
        """Apply the newest record of each key; a rule whose removal was compacted away is removed."""
        newest = self._newest or {}
        for rule_id in self._sources.of_topic() - newest.keys():
            self._sources.put(rule_id, None)
        for message in newest.values():
            self._apply(message)
        self._newest = None
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
        if self._newest is None:
            self._report_once(rule_id, problem)

    def _report_once(self, rule_id: str, problem: str) -> None:
        # Once: every replica and every start comes to the same problem.
        if self._outcomes.get(rule_id) != problem:
            self._trials.report_problem(rule_id, problem)


def _key_of(message: Message) -> str:
    return (message.key() or b"").decode(errors="replace")
