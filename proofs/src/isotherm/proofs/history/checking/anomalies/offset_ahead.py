"""A committed offset behind a record that has no effect yet."""

from __future__ import annotations

from collections import Counter

from isotherm.proofs.history.checking.collection import Collection, Row, Stored
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Anomaly, Report
from isotherm.proofs.history.format import StoreSettings

_UNNAMED = ("filtered", "skipped")
"""Outcomes of which only the number is known, not the record."""


def judge(collection: Collection, facts: RunFacts, report: Report) -> None:
    """Look for the effect of every record below the group's committed offset: a row or a dead letter."""
    for name, store in collection.settings.stores.items():
        topic = collection.topics[store.topic]
        if not topic or report.cannot(*facts.unread_store(name)):
            continue
        dead = Counter(letter.origin for letter in facts.dead_letters if letter.group == store.group)
        for identity, stored in topic.items():
            partition, offset, line = stored.first
            position = facts.position(store.group, store.topic, partition)
            if not stored.committed or offset >= position:
                continue
            report.compared()
            row = collection.stores[name].get(identity)
            if _is_missing(stored, row, store, position) and (store.topic, partition, offset) not in dead:
                if _has_unnamed(facts, store, partition):
                    report.cannot(f"{name} lacks records, but {store.group} filtered or skipped some in that partition")
                else:
                    found = row.count if row is not None else 0
                    what = f"{store.group} committed {position}, but {name} has {found} of {stored.committed}"
                    report.convict(what, line, facts.offsets[store.group, store.topic, partition][-1].line)
            elif row is not None and row.first_written_ms is not None:
                _judge_time(row, stored, store, facts, report)


def _is_missing(stored: Stored, row: Row | None, store: StoreSettings, position: int) -> bool:
    if row is None:
        return True
    return store.keeps == "records" and stored.winner[1] < position and row.count < stored.committed


def _has_unnamed(facts: RunFacts, store: StoreSettings, partition: int) -> bool:
    counts = facts.offsets[store.group, store.topic, partition][-1].counts or {}
    return any(counts.get(name) for name in _UNNAMED)


def _judge_time(row: Row, stored: Stored, store: StoreSettings, facts: RunFacts, report: Report) -> None:
    partition, offset, line = stored.first
    for committed in facts.offsets[store.group, store.topic, partition]:
        if committed.offset > offset:
            if row.first_written_ms is not None and committed.time_ms < row.first_written_ms:
                report.convict("the offset was committed before the row was written", line, committed.line, row.line)
            return


def judge_ends(facts: RunFacts, report: Report) -> None:
    """Look for offsets beyond the end of their partition, and for groups that have stopped before it."""
    for store in facts.settings.stores.values():
        # Else a task that came to a stand, or an offset that nobody recorded, would leave nothing to compare.
        if not facts.unread(store.topic) and not facts.has_read_all(store.group, store.topic):
            report.cannot(f"{store.group} has not committed an offset behind the last record of {store.topic}")
    for (group, topic, partition), committed in facts.offsets.items():
        end = facts.ends.get((topic, partition))
        if end is None:
            if topic in facts.settings.topics:
                report.cannot(*facts.unread(topic))
            continue
        report.compared()
        highest = max(committed, key=lambda one: one.offset)
        if highest.offset > end.last:
            what = f"{group} committed {highest.offset} in {topic}-{partition}, which ends at {end.last}"
            report.convict(what, highest.line, end.line)


ANOMALY = Anomaly(
    "offset-ahead-of-effect",
    "persisters lose no record: an offset is committed after its records' effects",
    judge,
    judge_ends,
)
