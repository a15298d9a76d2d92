"""A transaction, or a publish at QoS 2, of which readers see a part."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from isotherm.proofs.history.checking.collection import Collection, Publish
from isotherm.proofs.history.checking.identities import Identity
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Anomaly, Report


def judge(collection: Collection, facts: RunFacts, report: Report) -> None:
    """Look for publishes of several readings, or to several topics, that are stored in part."""
    readings = collection.settings.holding("readings")
    publishes: dict[tuple[str, Any], list[tuple[Identity, Publish]]] = defaultdict(list)
    for identity, publish in collection.publishes.items():
        if publish.qos == 2 and publish.number is not None:
            publishes[publish.client, publish.number].append((identity, publish))
    for members in publishes.values():
        places = [(topic, one, publish) for one, publish in members for topic in publish.topics or readings]
        due = [place for place in places if place[2].topics]
        stored = {
            (topic, one): seen.line
            for topic, one, _ in places
            if (seen := collection.topics[topic].get(one)) and seen.committed
        }
        if len(due) < 2 and len(members) < 2:
            continue
        if report.cannot(*(reason for topic in readings for reason in facts.unread(topic))):
            return
        report.compared()
        if due:
            missing = [publish.line for topic, one, publish in due if (topic, one) not in stored]
        else:
            found = {one for _, one in stored}
            missing = [publish.line for one, publish in members if one not in found]
        if missing and stored:
            what = f"one publish at QoS 2, stored in part: {len(missing)} missing"
            report.convict(what, *missing[:3], *list(stored.values())[:3])


def judge_transactions(facts: RunFacts, report: Report) -> None:
    """Report transactions with committed and uncommitted records."""
    report.compared(len(facts.transactions))
    for first, other in facts.torn:
        report.convict("one transaction has committed and uncommitted records", first, other)


ANOMALY = Anomaly(
    "torn-transaction", "MQTT QoS 2 to Kafka: readings and packet state in one transaction", judge, judge_transactions
)
