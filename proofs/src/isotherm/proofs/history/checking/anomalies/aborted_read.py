"""An effect of a record whose transaction was aborted."""

from __future__ import annotations

from isotherm.proofs.history.checking.collection import Collection
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Anomaly, Report


def judge(collection: Collection, facts: RunFacts, report: Report) -> None:
    """Look for identities that have only aborted records among rows and late readings."""
    settings = collection.settings
    for name, store in settings.stores.items():
        for identity, row in collection.stores[name].items():
            report.compared()
            stored = collection.topics[store.topic].get(identity)
            if stored is not None and not stored.committed:
                report.convict(f"in {name}, but only aborted in {store.topic}", row.line, stored.line)
    if settings.windows is not None:
        for identity, late in collection.topics[settings.windows.late].items():
            report.compared()
            stored = collection.topics[settings.windows.input].get(identity)
            if late.committed and stored is not None and not stored.committed:
                report.convict("a late reading that was only aborted in the input", late.line, stored.line)


def judge_dead_letters(facts: RunFacts, report: Report) -> None:
    """Look for dead letters of aborted records."""
    for letter in facts.dead_letters:
        report.compared()
        if letter.origin in facts.aborted:
            report.convict(f"{letter.topic} has a record that was aborted in {letter.origin[0]}", letter.line)


ANOMALY = Anomaly(
    "aborted-read", "everyone reads read_committed: an aborted transaction has no effect", judge, judge_dead_letters
)
