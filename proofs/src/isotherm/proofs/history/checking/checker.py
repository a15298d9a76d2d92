"""Checks a history: collects its events, shard by shard of keys, and asks every anomaly's module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isotherm.proofs.history.checking.anomalies import (
    aborted_read,
    changed_record,
    duplicate_publish,
    duplicate_row,
    effect_without_record,
    lost_write,
    offset_ahead,
    order_inversion,
    torn_transaction,
    unbalanced_sum,
    wrong_alert,
    wrong_dead_letter,
    wrong_window,
)
from isotherm.proofs.history.checking.collection import Collection
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Report, Verdict
from isotherm.proofs.history.format import KEYED_EVENTS, HistoryError, events, settings_of

ANOMALIES = (
    lost_write.ANOMALY,
    duplicate_publish.ANOMALY,
    duplicate_row.ANOMALY,
    aborted_read.ANOMALY,
    torn_transaction.ANOMALY,
    order_inversion.ANOMALY,
    effect_without_record.ANOMALY,
    offset_ahead.ANOMALY,
    wrong_window.ANOMALY,
    wrong_alert.ANOMALY,
    unbalanced_sum.ANOMALY,
    changed_record.ANOMALY,
    wrong_dead_letter.ANOMALY,
)
BYTES_OF_A_SHARD = 512 * 2**20
"""Size of a history's part that is kept in memory in one pass; more makes more passes over the file."""


def check(path: Path, shards: int | None = None) -> Verdict:
    """Judge a history, in as many passes as `shards`; by default as many as its size needs. Raises HistoryError."""
    shards = shards or 1 + path.stat().st_size // BYTES_OF_A_SHARD
    verdict = Verdict()
    facts: RunFacts | None = None
    for shard in range(shards):
        facts, collection = _collect(path, shard, shards, facts)
        for anomaly in ANOMALIES:
            if anomaly.of_keys is not None:
                anomaly.of_keys(collection, facts, Report(verdict, anomaly.name))
    assert facts is not None
    for anomaly in ANOMALIES:
        if anomaly.of_run is not None:
            anomaly.of_run(facts, Report(verdict, anomaly.name))
    verdict.events = facts.events
    return verdict


def _collect(path: Path, shard: int, shards: int, facts: RunFacts | None) -> tuple[RunFacts, Collection]:
    """Read the events of one shard; in the first pass (without `facts`) also everything about the run."""
    collection: Collection | None = None
    is_first = facts is None
    for line, event in events(path):
        if collection is None:
            settings = settings_of(event)
            facts = facts or RunFacts(settings)
            collection = Collection(settings)
            continue
        assert facts is not None
        try:
            if event["event"] not in KEYED_EVENTS:
                if is_first:
                    facts.take(line, event)
                continue
            if is_first:
                facts.count(line, event)
            if shards == 1 or hash(_key(event)) % shards == shard:
                collection.take(line, event)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise HistoryError(f"line {line}: {event['event']}: {type(error).__name__}: {error}") from None
        if is_first:
            facts.events = line
    if collection is None or facts is None:
        raise HistoryError("the history is empty")
    facts.sort()
    return facts, collection


def _key(event: dict[str, Any]) -> Any:
    return event.get("device") or event["key"]
