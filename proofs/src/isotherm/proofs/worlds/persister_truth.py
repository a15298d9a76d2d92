"""Judges what persisters commit: it knows every record, what must become of it, and what the store has.

It reads only the model's topics, the store and the committed offsets, so it does not share a fault with the code it
judges.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

from isotherm.proofs.kafka.cluster import Cluster
from isotherm.proofs.kafka.groups import CommittedOffset
from isotherm.proofs.kafka.log import StoredRecord
from isotherm.proofs.worlds.stores import POISON, Store

Partition = tuple[str, int]

GOOD, BAD, FILTERED = b"ok", b"bad", b"filtered"
DEAD_LETTERS = "dead-letters"
_HEADER = "__connect.errors."


class Truth:
    """What must hold at every commit and at the end."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        topic: str,
        *,
        is_append: bool,
        dead_letters: bool,
        note: Callable[..., None],
    ) -> None:
        """`dead_letters`: whether failed records go to the dead-letter topic; else they are skipped."""
        self._cluster, self._store, self._topic = cluster, store, topic
        self._is_append, self._dead_letters, self._note = is_append, dead_letters, note
        self.findings: list[str] = []
        store.on_regression = self.replaced
        self._committed: dict[Partition, CommittedOffset] = {}
        self._highest: dict[Partition, int] = {}
        self._expected: dict[Partition, Counter[str]] = {}
        """Outcomes of the records before the committed offset."""
        self._dead_lettered: set[tuple[int, int]] = set()
        self._dead_letters_read = 0
        self._deleted: dict[Partition, list[StoredRecord]] = {}
        """Records that retention deleted."""

    def find(self, *words: object) -> None:
        """Add a finding."""
        text = " ".join(map(str, words))
        self._note("FINDING", text)
        self.findings.append(text)

    def replaced(self, partition: int, id: str, offset: int) -> None:
        """Judge an older row that replaces a newer one: an owner reads again only from its committed offset."""
        if offset < self._committed.get((self._topic, partition), CommittedOffset(0)).offset:
            self.find(f"{self._topic}-{partition}: a late write of {offset} replaced a newer row of {id}")

    def delete_before(self, partition: Partition, offset: int) -> None:
        """Delete records by retention, but remember them.

        Not before the first commit: what was deleted until then was never promised to anybody.
        """
        if partition not in self._committed:
            return
        log = self._cluster.log_of(partition)
        gone = [one for one in log.read(log.start, 1 << 30)[0] if one.offset < offset]
        self._deleted.setdefault(partition, []).extend(gone)
        log.delete_before(offset)

    def records(self, partition: Partition) -> list[StoredRecord]:
        """Return all records of a partition that a reader of committed records could ever see."""
        return self._records_from(partition, 0)

    def committed(self, partition: Partition, now: CommittedOffset, *, is_late: bool) -> None:
        """Judge a commit at the moment in which Kafka takes it.

        `is_late`: its client has given it up and has committed again since. Then the position may go back: records are
        read again.
        """
        before = self._committed.get(partition, CommittedOffset(0))
        if now.offset < before.offset:
            if not is_late:
                self.find(f"{partition}: the position went back from {before.offset} to {now.offset}")
            before = CommittedOffset(0)
            self._expected.pop(partition, None)
        counts = json.loads(now.metadata) if now.metadata else {}
        deleted = {one.offset for one in self._deleted.get(partition, [])}
        records = [one for one in self._records_from(partition, before.offset) if one.offset < now.offset]
        expected = self._expected.setdefault(partition, Counter())
        expected.update(self._outcome(one) for one in records)
        self._judge_counts(partition, now.offset, expected, counts)
        for record in records:
            may_be_lost = record.offset in deleted and counts.get("lost")
            if not may_be_lost and not self._is_settled(partition, record):
                value = (record.payload.value or b"").decode()
                self.find(f"{partition}: {now.offset} is committed without the effect of {record.offset} ({value})")
                break
        self._committed[partition] = now
        self._highest[partition] = max(now.offset, self._highest.get(partition, 0))

    def _records_from(self, partition: Partition, offset: int) -> list[StoredRecord]:
        log = self._cluster.log_of(partition)
        deleted = [one for one in self._deleted.get(partition, []) if one.offset >= offset]
        return deleted + log.read(max(log.start, min(offset, log.end)), 1 << 30)[0]

    def _judge_counts(
        self, partition: Partition, offset: int, expected: Counter[str], counts: dict[str, object]
    ) -> None:
        found = Counter({"written": counts.get("written", 0)})
        for outcome in ("dead_lettered", "skipped", "filtered"):
            reasons = counts.get(outcome, {})
            found[outcome] = sum(reasons.values()) if isinstance(reasons, dict) else 0
        settled, lost, all_ = sum(found.values()), counts.get("lost", 0), expected.total()
        if counts.get("read") != settled:
            self.find(f"{partition} at {offset}: read {counts.get('read')} is not what is settled, {settled}")
        if not lost and +found != expected:
            self.find(f"{partition} at {offset}: counted {dict(+found)}, but there are {dict(expected)}")
        if isinstance(lost, int) and lost and not all_ - lost <= settled <= all_:
            self.find(f"{partition} at {offset}: {settled} settled and {lost} lost of {all_} records")

    def _outcome(self, record: StoredRecord) -> str:
        value = record.payload.value
        if value == FILTERED:
            return "filtered"
        if value in (BAD, POISON.encode()):
            return "dead_lettered" if self._dead_letters else "skipped"
        return "written"

    def _is_settled(self, partition: Partition, record: StoredRecord) -> bool:
        outcome = self._outcome(record)
        if outcome == "written":
            written = record.payload.timestamp_ms, record.offset
            return self._store.has(partition[1], (record.payload.key or b"").decode(), written)
        if outcome == "dead_lettered":
            self._read_dead_letters()
            return (partition[1], record.offset) in self._dead_lettered
        return True

    def _read_dead_letters(self) -> None:
        log = self._cluster.log_of((DEAD_LETTERS, 0))
        records, self._dead_letters_read = log.read(self._dead_letters_read, 1 << 30)
        for one in records:
            headers = dict(one.payload.headers)
            partition, offset = headers[_HEADER + "partition"], headers[_HEADER + "offset"]
            self._dead_lettered.add((int(partition or b""), int(offset or b"")))

    def is_everything_committed(self, partitions: Sequence[Partition]) -> bool:
        """Whether no record is left for the persisters."""
        return all(
            not (records := self.records(partition)) or self._highest.get(partition, 0) > records[-1].offset
            for partition in partitions
        )

    def judge_end(self, partitions: Sequence[Partition]) -> None:
        """Judge what the store has when everything is settled: the newest row of each key; appended rows in order."""
        for partition in partitions:
            newest: dict[str, tuple[int, int]] = {}
            order: dict[str, list[int]] = {}
            for record in self.records(partition):
                if self._outcome(record) == "written":
                    key = (record.payload.key or b"").decode()
                    newest[key] = record.payload.timestamp_ms, record.offset
                    order.setdefault(key, []).append(record.offset)
            if partition in self._deleted:
                continue
            if self._is_append:
                self._judge_order(order)
                continue
            for key, written in newest.items():
                found = self._store.rows.get(key)
                if found is None or found.written != written:
                    self.find(f"{partition}: the store has {found} of {key}, not the newest row {written}")

    def _judge_order(self, order: dict[str, list[int]]) -> None:
        appended: dict[str, list[int]] = {}
        for id, offset in self._store.appended:
            appended.setdefault(id, []).append(offset)
        for key, offsets in order.items():
            if appended.get(key) != offsets:
                self.find(f"rows of {key} were appended as {appended.get(key)}, not as {offsets}")
