"""One lane's batch on its way: what is still to be written, what was refused, and what that means for the task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from isotherm.connector.errors.policies import Action, ErrorPolicy, Failure
from isotherm.persisters.sinks.sink import Rejected, Row, later_rows_of_same_id
from isotherm.persisters.task.accounting import Counts


class Record(NamedTuple):
    """A record as it came from Kafka."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]

    @property
    def size_bytes(self) -> int:
        """What the record costs while it waits."""
        return 200 + len(self.key or b"") + len(self.value or b"")


class Refusal(NamedTuple):
    """Why a record cannot be written."""

    record: Record
    stage: str
    """Kafka Connect's name of the stage: VALUE_CONVERTER, TRANSFORMATION, TASK_PUT..."""
    reason: str
    """A word for counting."""
    error: Exception


class Prepared(NamedTuple):
    """What decoding and projection made of one record: rows, or the reason why it has none."""

    rows: Sequence[Row] = ()
    refusal: Refusal | None = None
    filtered: str | None = None


class Outcome(Enum):
    """What became of a record that was not written."""

    DEAD_LETTERED = "dead_lettered"
    SKIPPED = "skipped"
    FILTERED = "filtered"


@dataclass(eq=False)
class Work:
    """A batch of one lane, from its preparation until every record in it is settled."""

    records: Sequence[Record]
    rows: list[Row]
    """What is still to be written."""
    end: int
    """The position once the work is done: the offset after its last record, or the record that stops the task."""
    letters: list[Refusal] = field(default_factory=list)
    """Refusals that become dead letters and are not written yet."""
    skipped: list[Refusal] = field(default_factory=list)
    """Refusals that are passed over, to be logged."""
    stop: Refusal | None = None
    """The record that the task stops at, once everything before it is settled."""
    attempts: int = 0
    size_bytes: int = 0
    """Of `records`."""
    taken: int = 0
    """Records that the lane had taken with this work."""
    outcomes: dict[int, tuple[Outcome, str]] = field(default_factory=dict)
    """By offset, what became of records that are not written and why."""

    @classmethod
    def prepare(
        cls,
        records: Sequence[Record],
        policy: ErrorPolicy,
        project: Callable[[Record], Prepared],
        usual: Callable[[Sequence[Record]], list[Row] | None] = lambda _: None,
    ) -> Work:
        """Project `records` (of one partition, in order, at least one) and decide about those that cannot be.

        `usual` makes the rows of all of them at once, or says with None that each is to be projected by itself.
        """
        work = cls(records, usual(records) or [], records[-1].offset + 1)
        if work.rows:
            return work
        for record in records:
            rows, refusal, filtered = project(record)
            if refusal is not None:
                work._refuse(refusal, policy)
                if work.stop is not None:
                    break
            elif filtered is not None:
                work.outcomes[record.offset] = (Outcome.FILTERED, filtered)
            else:
                work.rows.extend(rows)
        return work

    def judge(self, rejected: Sequence[Rejected], policy: ErrorPolicy) -> None:
        """Take the sink's answer to `rows`: afterwards `rows` holds what has to be written again, if anything."""
        self.attempts += 1
        if not rejected:
            self.rows = []
            return
        by_offset = {record.offset: record for record in self.records}
        transient: dict[int, Rejected] = {}
        for answer in sorted(rejected, key=lambda one: one.index):
            row = self.rows[answer.index]
            if row.offset in self.outcomes or row.offset >= self.end:
                continue
            if answer.transient and policy.decide(Failure.TRANSIENT, self.attempts) is Action.RETRY:
                transient[answer.index] = answer
                continue
            refusal = Refusal(by_offset[row.offset], "TASK_PUT", answer.reason, answer.error)
            if answer.transient:
                # Out of attempts: the record is fine, so it is neither skipped nor dead-lettered.
                self._stop_at(refusal)
            else:
                self._refuse(refusal, policy)
        again = later_rows_of_same_id(self.rows, transient)
        self.rows = [row for row in again if row.offset < self.end and row.offset not in self.outcomes]

    def unavailable(self, error: Exception, policy: ErrorPolicy) -> None:
        """The sink could not be reached: all rows stay, unless the policy has no attempt left."""
        self.attempts += 1
        if self.rows and policy.decide(Failure.TRANSIENT, self.attempts) is not Action.RETRY:
            first = next(record for record in self.records if record.offset == self.rows[0].offset)
            self._stop_at(Refusal(first, "TASK_PUT", "unavailable", error))
            self.rows = []

    @property
    def behind(self) -> int:
        """Records that the task stops before."""
        return 0 if self.stop is None else sum(1 for record in self.records if record.offset >= self.end)

    def settle(self) -> Counts:
        """The outcome of every record before `end`; only when nothing is left to write.

        Raises ValueError when there is.
        """
        if self.rows or self.letters:
            raise ValueError("rows or dead letters are still to be written")
        if not self.outcomes and self.stop is None:
            return Counts(written=len(self.records))
        counts = Counts()
        for record in self.records:
            if record.offset >= self.end:
                break
            outcome, reason = self.outcomes.get(record.offset, (None, ""))
            if outcome is None:
                counts.written += 1
            else:
                getattr(counts, outcome.value)[reason] += 1
        return counts

    def _refuse(self, refusal: Refusal, policy: ErrorPolicy) -> None:
        action = policy.decide(Failure.PERMANENT, self.attempts)
        if action is Action.STOP:
            self._stop_at(refusal)
        elif action is Action.DEAD_LETTER:
            self.outcomes[refusal.record.offset] = (Outcome.DEAD_LETTERED, refusal.reason)
            self.letters.append(refusal)
        else:
            self.outcomes[refusal.record.offset] = (Outcome.SKIPPED, refusal.reason)
            self.skipped.append(refusal)

    def _stop_at(self, refusal: Refusal) -> None:
        # The first offset counts: what was refused behind it is met again when the task is started again.
        if self.stop is None or refusal.record.offset < self.stop.record.offset:
            self.stop = refusal
            self.end = refusal.record.offset
            self.letters = [letter for letter in self.letters if letter.record.offset < self.end]
            self.skipped = [passed for passed in self.skipped if passed.record.offset < self.end]
