"""Records of the topic of rules: what takes effect, what is answered, by whom, and what is read of the input."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

import isotherm.schemas
from isotherm.alerts.live_rules.dry_run import DryRun
from isotherm.alerts.live_rules.group_mean_follower import GroupMeanFollower
from isotherm.alerts.live_rules.rule_follower import RuleFollower
from isotherm.alerts.live_rules.rule_records import TrialRequest
from isotherm.alerts.live_rules.trial_runner import MAX_WAITING, TrialClients, TrialRunner
from isotherm.alerts.metrics import Metrics
from isotherm.alerts.rules.group_means import GroupMeans
from isotherm.alerts.rules.rule_sources import RuleSources
from isotherm.servicekit.avro import WriterSchema, encoder, parse

NOW = 1_800_000_000_000
HOT: dict[str, Any] = {"kind": "above", "metric": "t", "threshold": 10, "name": "hot"}
IDS = {"AlertRule": 1, "TemperatureGroup": 2}
SCHEMAS = {name: isotherm.schemas.schema(name, 1) for name in IDS}
ENCODE = {name: encoder(schema, IDS[name]) for name, schema in SCHEMAS.items()}


class Registry:
    """The schemas of the two topics."""

    def schema(self, schema_id: int) -> Any:
        name = {number: name for name, number in IDS.items()}[schema_id]
        return WriterSchema(schema_id, SCHEMAS[name], parse(SCHEMAS[name]))

    def encoder(self, _topic: str, schema: Any) -> Callable[[Any], bytes]:
        return ENCODE[schema["name"]]


class Record:
    """A record as the client gives it."""

    def __init__(self, key: str, value: bytes | None, offset: int = 0, code: int | None = None) -> None:
        self._key, self._value, self._offset, self._code = key, value, offset, code

    def key(self) -> bytes:
        return self._key.encode()

    def value(self) -> bytes | None:
        return self._value

    def offset(self) -> int:
        return self._offset

    def partition(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return 1, NOW

    def error(self) -> Any:
        return None if self._code is None else SimpleNamespace(code=lambda: self._code)


def rule_record(key: str, role: str = "rule", definition: Any = None, **more: Any) -> bytes:
    record = {
        "rule_id": key, "role": role, "definition": json.dumps(definition or HOT), "created_by": "u",
        "created_at": NOW, "updated_by": "u", "updated_at": NOW, "hours": 0, "problem": None, "fired": 0, "devices": 0,
        "readings": 0, "from": None, "until": None, "is_complete": True,
    }  # fmt: skip
    return ENCODE["AlertRule"](record | more)


class Trials:
    """Keeps what the follower says."""

    def __init__(self) -> None:
        self.requests: list[TrialRequest] = []
        self.forgotten: list[str] = []
        self.told: list[tuple[str, str]] = []

    def request(self, request: TrialRequest) -> None:
        self.requests.append(request)

    def forget(self, trial_id: str) -> None:
        self.forgotten.append(trial_id)

    def report_problem(self, rule_id: str, problem: str) -> None:
        self.told.append((rule_id, problem))


class Consumer:
    """Gives records, then ends the follower."""

    def __init__(self, records: Sequence[Record], end: int, stop: Callable[[], None]) -> None:
        self._records, self._end, self._stop = list(records), end, stop
        self.books: list[frozenset[str]] = []

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        return 0, self._end

    def list_topics(self, topic: str, **_: Any) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None})})

    def consume(self, _most: int, _s: float) -> list[Record]:
        return []

    def assign(self, _: Any) -> None: ...

    def close(self) -> None: ...

    def poll(self, _s: float) -> Record | None:
        if self._records:
            return self._records.pop(0)
        self._stop()
        return None


def followed(sources: RuleSources, records: Sequence[Record], end: int) -> tuple[RuleFollower, Trials, Metrics]:
    """Let a follower read a topic."""
    trials, metrics = Trials(), Metrics()
    consumer = Consumer(records, end, lambda: follower._ended.set())
    follower = RuleFollower(
        "isotherm.rules", lambda: cast(Any, consumer), cast(Any, Registry()), sources, cast(Any, trials), metrics
    )
    follower._run()
    return follower, trials, metrics


def refused(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("isotherm_alerts_rules_refused_total", {"source": "topic"}) or 0.0


def test_only_the_newest_record_of_a_rule_comes_into_force_when_the_topic_is_read() -> None:
    sources = RuleSources([], {})
    sources.put("t.hot", json.dumps(HOT | {"threshold": 3}))
    sources.put("t.gone", json.dumps(HOT | {"name": "gone"}))
    seen: list[float] = []
    put = sources.put

    def noted(rule_id: str, definition: str | None) -> str:
        problem = put(rule_id, definition)
        seen.append(sources.book.defaults["t.hot"]["threshold"])
        return problem

    sources.put = noted  # type: ignore[method-assign]  # to see each step
    records = [
        Record("t.hot", rule_record("t.hot", definition=HOT | {"threshold": 1}), 0),
        Record("t.hot", rule_record("t.hot", definition=HOT | {"threshold": 3}), 1),
    ]
    follower, _, _ = followed(sources, records, 2)
    assert follower.is_current()
    # No former version was in force, and the rule whose tombstone is gone from the topic is not either.
    assert (set(seen), set(sources.book.rules)) == ({3.0}, {"t.hot"})


def test_an_empty_topic_is_read_to_its_end() -> None:
    follower, _, _ = followed(RuleSources([], {}), [Record("", None, 0, KafkaError._PARTITION_EOF)], 0)
    assert follower.is_current()


def test_a_record_that_cannot_be_used_is_counted_and_told_once() -> None:
    sources = RuleSources([], {})
    bad = rule_record("t.hot", definition=HOT | {"threshold": "x"})
    records = [
        Record("t.hot", rule_record("t.hot"), 0),
        Record("t.hot", bad, 1),
        Record("t.cold", b"no frame", 2),
        Record("t.warm", rule_record("t.warm", role="other"), 3),
    ]
    _, trials, metrics = followed(sources, records, 1)
    assert [rule for rule, _ in trials.told] == ["t.hot", "t.cold", "t.warm"]
    assert (refused(metrics), set(sources.book.rules)) == (3, {"t.hot"})
    # Another process finds the outcome in the topic, and says nothing.
    outcome = rule_record("outcome/t.hot", role="outcome", problem=trials.told[0][1])
    again = [Record("t.hot", bad, 0), Record("outcome/t.hot", outcome, 1)]
    _, trials, metrics = followed(RuleSources([], {}), again, 2)
    assert (trials.told, refused(metrics)) == ([], 1)


def test_requests_are_passed_on_and_answers_end_them() -> None:
    records = [
        Record("trial/1", rule_record("trial/1", role="trial", hours=24), 0),
        Record("outcome/trial/1", rule_record("outcome/trial/1", role="outcome"), 1),
        Record("trial/1", None, 2),
        Record("outcome/trial/1", None, 3),
    ]
    _, trials, _ = followed(RuleSources([], {}), records, 0)
    assert [(one.trial_id, one.hours, one.requested_ms) for one in trials.requests] == [("trial/1", 24, NOW)]
    assert trials.forgotten == ["trial/1"]


class Runner:
    """A runner without its thread."""

    def __init__(self, *, in_charge: bool = True, **clients: Any) -> None:
        self.in_charge, self.now_ms = in_charge, NOW
        made = TrialClients(clients.get("consumer", lambda: None), clients.get("producer", lambda: None), Registry())  # type: ignore[arg-type]  # the parts that are used
        self.runner = TrialRunner(
            "isotherm.rules", ["in"], "groups", made, RuleSources([], {}), lambda _: cast(DryRun, None),
            lambda: self.in_charge, "a", now_ms=lambda: self.now_ms,
        )  # fmt: skip

    def ask(self, trial_id: str, definition: Any = None, hours: int = 0, at_ms: int = NOW) -> None:
        self.runner.request(TrialRequest(trial_id, json.dumps(definition or HOT), hours, "u", at_ms))

    def answers(self) -> dict[str, str | None]:
        return {key: record["problem"] for key, record in self.runner._outcomes}


def test_a_check_is_answered_by_the_replica_in_charge() -> None:
    world = Runner(in_charge=False)
    world.ask("trial/1")
    world.ask("trial/2", HOT | {"text": "{x}"})
    world.ask("trial/3", hours=169)
    world.runner._answer_next()
    assert world.answers() == {}
    world.in_charge = True
    for _ in range(4):
        world.runner._answer_next()
    answers = world.answers()
    assert answers["outcome/trial/1"] is None
    assert "{x} is not allowed" in (answers["outcome/trial/2"] or "")
    assert "169 is not allowed" in (answers["outcome/trial/3"] or "")


def test_requests_are_bounded_and_expire() -> None:
    world = Runner(in_charge=False)
    for number in range(MAX_WAITING + 1):
        world.ask(f"trial/{number}")
    world.ask("trial/old", at_ms=NOW - 60_001)
    assert world.answers() == {f"outcome/trial/{MAX_WAITING}": "too many rules are tried at once"}
    world.now_ms += 60_001
    world.in_charge = True
    world.runner._answer_next()
    assert len(world.answers()) == 1


def test_a_server_that_is_away_is_the_answer_of_a_trial() -> None:
    def away() -> Any:
        raise OSError("no broker")

    world = Runner(consumer=away)
    world.ask("trial/1", hours=1)
    world.runner._answer_next()
    assert world.answers() == {"outcome/trial/1": "the readings cannot be read: no broker"}


class Producer:
    """Refuses a record as often as it is told."""

    def __init__(self, failures: int) -> None:
        self.failures, self.written = failures, list[Mapping[str, Any]]()

    def produce(self, topic: str, *, key: str, value: bytes, on_delivery: Callable[[Any, Any], None]) -> None:
        self.failures -= 1
        if self.failures >= 0:
            on_delivery(KafkaError(KafkaError._TIMED_OUT), None)
        else:
            on_delivery(None, None)
            self.written.append({"topic": topic, "key": key})

    def flush(self, _s: float) -> int:
        return 0


def test_an_outcome_that_kafka_refuses_is_written_again() -> None:
    world, producer = Runner(), Producer(1)
    world.runner.report_problem("t.hot", "bad")
    world.runner.report_problem("file", "replicas have files of their own")
    with pytest.raises(Exception, match=r"timed out|TIMED_OUT"):
        world.runner._write(cast(Any, producer))
    world.runner._write(cast(Any, producer))
    world.runner._write(cast(Any, producer))
    assert [one["key"] for one in producer.written] == ["outcome/t.hot"]


def test_means_that_cannot_be_decoded_are_counted() -> None:
    means, metrics = GroupMeans(max_groups=1), Metrics()
    follower = GroupMeanFollower("g", cast(Any, None), cast(Any, Registry()), means, metrics)
    window = {
        "attribute": "region", "group": "north", "metric": "t", "window_start": 0, "window_end": 60_000,
        "device_count": 4, "count": 9, "mean": 20.5, "min": 1.0, "max": 30.0, "revision": 7,
    }  # fmt: skip
    follower._apply(ENCODE["TemperatureGroup"](window))
    assert means.get("region", "north", "t") == (60_000, 7, 20.5, 4)
    follower._apply(ENCODE["TemperatureGroup"](window | {"group": "south"}))
    follower._apply(b"no frame")
    follower._apply(None)
    counted = {
        reason: metrics.registry.get_sample_value("isotherm_alerts_group_means_refused_total", {"reason": reason})
        for reason in ("undecodable", "too-many-groups")
    }
    assert counted == {"undecodable": 1, "too-many-groups": 1}
