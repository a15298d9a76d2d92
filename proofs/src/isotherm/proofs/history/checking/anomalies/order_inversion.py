"""Records of one key that stand in another order than they were published or read."""

from __future__ import annotations

import math

from isotherm.proofs.history.checking.collection import Collection, Publish, Step
from isotherm.proofs.history.checking.identities import Identity
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Anomaly, Report
from isotherm.proofs.history.format import MQTT


def judge(collection: Collection, facts: RunFacts, report: Report) -> None:
    """Compare the order of topics with that of publishes, and that of append-only structures with that of topics."""
    readings = set(collection.settings.holding("readings"))
    for (topic, _), steps in collection.sequences.items():
        steps.sort()
        if steps[0].partition != steps[-1].partition:
            report.convict(f"one key on two partitions of {topic}", steps[0].line, steps[-1].line)
        elif topic in readings:
            _judge_publishes(steps, collection, facts, report)
    for (name, key), items in collection.items.items():
        topic = collection.settings.stores[name].topic
        if not report.cannot(*facts.unread(topic)):
            _judge_items(name, sorted(items), collection.sequences.get((topic, key), []), report)


def _judge_publishes(steps: list[Step], collection: Collection, facts: RunFacts, report: Report) -> None:
    """Only the first copy of a reading counts: repeats at QoS 1 may stand anywhere behind it."""
    newest: dict[tuple[str, int], tuple[int, int]] = {}
    seen: set[Identity] = set()
    for step in steps:
        publish = collection.publishes.get(step.identity)
        if publish is None or publish.via != MQTT or step.identity in seen:
            continue
        seen.add(step.identity)
        report.compared()
        level = (publish.client, publish.qos)
        before_line, before_step = newest.get(level, (0, 0))
        if publish.line > before_line:
            newest[level] = (publish.line, step.line)
        elif not _is_excused(step.identity, publish, collection, facts):
            what = f"published before line {before_line} at QoS {publish.qos}, but stored behind it"
            report.convict(what, publish.line, step.line, before_line, before_step)


def _is_excused(identity: Identity, publish: Publish, collection: Collection, facts: RunFacts) -> bool:
    """Whether Kafka refused the publish for another record, or timed out; a 3.1.1 client learns it by being closed."""
    if identity in collection.refusals:
        return True
    until = collection.acknowledgements.get(identity, (0, math.inf))[1]
    lost = facts.lost_connections.get(publish.client, ())
    return facts.kafka_disturbed and any(publish.time_ms <= at <= until for at in lost)


def _judge_items(name: str, items: list[tuple[int, Identity, int]], steps: list[Step], report: Report) -> None:
    places: dict[Identity, tuple[int, int]] = {}
    repeated: set[Identity] = set()
    for step in steps:
        if step.identity in places:
            repeated.add(step.identity)
        places[step.identity] = (step.offset, step.line)
    newest, newest_line = (-1, 0), 0
    for _, identity, line in items:
        place = places.get(identity)
        if place is None or identity in repeated:
            continue
        report.compared()
        if place < newest:
            report.convict(f"items of one key in {name} are not in the topic's order", line, newest_line, place[1])
        else:
            newest, newest_line = place, line


ANOMALY = Anomaly(
    "order-inversion",
    "MQTT to Kafka: order per device within a QoS level; append-only structures: the order of the key",
    of_keys=judge,
)
