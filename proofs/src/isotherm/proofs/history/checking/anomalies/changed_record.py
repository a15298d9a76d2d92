"""A record whose value, unit or time is another one behind a hop."""

from __future__ import annotations

from isotherm.proofs.history.checking.collection import Collection
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Anomaly, Report


def judge(collection: Collection, facts: RunFacts, report: Report) -> None:
    """Compare publishes with records, late readings with the input, rows with the records that they have to show."""
    settings = collection.settings
    for topic in settings.holding("readings"):
        _judge_publishes(topic, collection, report)
    if settings.windows is not None:
        for identity, late in collection.topics[settings.windows.late].items():
            stored = collection.topics[settings.windows.input].get(identity)
            if stored is None or not late.committed or not stored.committed:
                continue
            report.compared()
            if late.digest not in (stored.digest, *stored.others):
                report.convict("a late reading is not what the input has", late.line, stored.line)
    for name, store in settings.stores.items():
        complete = facts.has_read_all(store.group, store.topic)
        for identity, row in collection.stores[name].items():
            stored = collection.topics[store.topic].get(identity)
            if stored is None or not stored.committed:
                continue
            report.compared()
            older = store.keeps == "records" or not complete
            if row.digest != stored.digest and not (older and row.digest in stored.others):
                what = "an older record" if row.digest in stored.others else "not what the topic has"
                report.convict(f"the row in {name} is {what}", row.line, stored.line)


def _judge_publishes(topic: str, collection: Collection, report: Report) -> None:
    for identity, stored in collection.topics[topic].items():
        publish = collection.publishes.get(identity)
        if publish is None or not stored.committed:
            continue
        report.compared()
        if stored.conflict:
            report.convict(f"copies in {topic} differ", stored.first[2], stored.conflict)
        elif stored.value != publish.value:
            report.convict(f"published as {publish.value}, stored as {stored.value}", publish.line, stored.line)
        elif publish.unit is not None and stored.unit != publish.unit:
            report.convict(f"published in {publish.unit}, stored in {stored.unit}", publish.line, stored.line)


ANOMALY = Anomaly("changed-record", "between versions and hops: value, unit and times stay", of_keys=judge)
