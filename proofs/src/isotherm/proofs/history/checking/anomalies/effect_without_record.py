"""A row, a late reading or a record of a topic that nothing caused."""

from __future__ import annotations

from isotherm.proofs.history.checking.collection import Collection
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Anomaly, Report


def judge(collection: Collection, facts: RunFacts, report: Report) -> None:
    """Look for the cause of every effect: the record of a row, the publish of a record."""
    settings = collection.settings
    for name, store in settings.stores.items():
        rows = collection.stores[name]
        if rows and report.cannot(*facts.unread(store.topic)):
            continue
        for identity, row in rows.items():
            report.compared()
            if identity not in collection.topics[store.topic]:
                report.convict(f"in {name}, but not in {store.topic}", row.line)
    if settings.windows is not None:
        late = collection.topics[settings.windows.late]
        if not (late and report.cannot(*facts.unread(settings.windows.input))):
            for identity, stored in late.items():
                report.compared()
                if stored.committed and identity not in collection.topics[settings.windows.input]:
                    report.convict("a late reading that the input does not have", stored.line)
    for topic in settings.holding("readings"):
        for identity, stored in collection.topics[topic].items():
            if not stored.committed or identity in collection.publishes:
                continue
            if stored.via in facts.clients_ended:
                report.convict(f"in {topic}, but no client published it", stored.line)
            elif stored.via:
                report.cannot(f"not everything that came by {stored.via} is known as published")


ANOMALY = Anomaly(
    "effect-without-record", "nothing is stored that was not sent: topics and stores agree", of_keys=judge
)
