"""A dead-letter record that is there twice, comes from nowhere, or whose record also took effect."""

from __future__ import annotations

from isotherm.proofs.history.checking.collection import Collection
from isotherm.proofs.history.checking.identities import Position
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Anomaly, Report


def judge(collection: Collection, facts: RunFacts, report: Report) -> None:
    """Look for rows of dead-lettered records."""
    lines = {(letter.group, letter.origin): letter.line for letter in facts.dead_letters if letter.group is not None}
    if not lines:
        return
    for name, store in collection.settings.stores.items():
        for identity, row in collection.stores[name].items():
            stored = collection.topics[store.topic].get(identity)
            if stored is None or stored.committed != 1:
                continue
            letter = lines.get((store.group, (store.topic, *stored.first[:2])))
            if letter is not None and store.group not in facts.replayed:
                report.convict(f"both in {name} and a dead letter", row.line, letter)


def judge_letters(facts: RunFacts, report: Report) -> None:
    """Look for repeated dead letters of sinks, and for origins that do not exist."""
    seen: dict[tuple[str, Position], int] = {}
    for letter in facts.dead_letters:
        report.compared()
        if letter.origin is None:
            continue
        end = facts.ends.get(letter.origin[:2])
        if end is not None and letter.origin[2] >= end.last:
            report.convict(
                f"{letter.topic} has a record of {letter.origin}, which does not exist", letter.line, end.line
            )
        if letter.group is None or letter.group in facts.replayed:
            continue
        first = seen.setdefault((letter.group, letter.origin), letter.line)
        if first != letter.line:
            report.convict(f"{letter.topic} has the record {letter.origin} twice", first, letter.line)


ANOMALY = Anomaly("wrong-dead-letter", "policies: a record is written or dead-lettered, once", judge, judge_letters)
