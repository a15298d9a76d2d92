"""An identity that a store has twice, or an item more than the topic has records."""

from __future__ import annotations

from isotherm.proofs.history.checking.collection import Collection
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Anomaly, Report


def judge(collection: Collection, facts: RunFacts, report: Report) -> None:
    """Count the rows of each identity."""
    for name, store in collection.settings.stores.items():
        by_record = store.keeps == "records"
        rows = collection.stores[name]
        if by_record and rows and report.cannot(*facts.unread(store.topic)):
            continue
        for identity, row in rows.items():
            stored = collection.topics[store.topic].get(identity)
            allowed = max(1, stored.committed) if by_record and stored is not None else 1
            report.compared()
            if row.count > allowed:
                report.convict(f"{row.count} x in {name}, {allowed} x allowed", row.line, stored.line if stored else 0)


ANOMALY = Anomaly(
    "duplicate-row",
    "persisters: one effect per identity in every sink, and each record once in structures without identities",
    of_keys=judge,
)
