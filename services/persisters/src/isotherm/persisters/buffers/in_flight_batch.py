"""A batch of one partition from its projection until every record in it has its outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from isotherm.connector.errors.policies import Action, ErrorPolicy, Failure
from isotherm.persisters.api.record import FailedRecord, ProjectedRecord, Record
from isotherm.persisters.api.row import FailedRow, Row, rows_to_retry
from isotherm.persisters.buffers.accounting import Counts


class Outcome(Enum):
    """What became of a record that was not written."""

    DEAD_LETTERED = "dead_lettered"
    SKIPPED = "skipped"
    FILTERED = "filtered"


@dataclass(eq=False)
class InFlightBatch:
    """Rows that are still to be written, the records that failed, and what that means for the task."""

    records: Sequence[Record]
    rows: Sequence[Row]
    """The rows that are still to be written."""
    end: int
    """The position once the batch is done: the offset after its last record, or that of the record it stops at."""
    dead_letters: list[FailedRecord] = field(default_factory=list)
    """Failed records whose dead letters are not written yet."""
    skipped: list[FailedRecord] = field(default_factory=list)
    """Failed records that the task passes over and has not logged yet."""
    stopped_at: FailedRecord | None = None
    """The record at which the task stops once everything before it is settled."""
    attempts: int = 0
    size_bytes: int = 0
    """Size of `records` in bytes."""
    taken: int = 0
    """How many records the partition's buffer had put into batches, this one included."""
    outcomes: dict[int, tuple[Outcome, str]] = field(default_factory=dict)
    """By offset, what became of each record that is not written, and why."""

    @classmethod
    def prepare(
        cls,
        records: Sequence[Record],
        policy: ErrorPolicy,
        project: Callable[[Record], ProjectedRecord],
        try_project_batch: Callable[[Sequence[Record]], Sequence[Row] | None] = lambda _: None,
    ) -> InFlightBatch:
        """Project records and apply the error policy to those that cannot be projected.

        Args:
            records: at least one, all of one partition, in order.
            policy: decides what becomes of a failed record.
            project: projects a single record.
            try_project_batch: the fast path: returns the rows of all records at once, none for those that WHERE
                leaves out, or None if `project` has to look at each of them.
        """
        rows_of_all = try_project_batch(records)
        end = records[-1].offset + 1
        if rows_of_all is not None:
            batch = cls(records, rows_of_all, end)
            batch._note_left_out()
            return batch
        made: list[Row] = []
        batch = cls(records, made, end)
        for record in records:
            rows, failed, filtered = project(record)
            if failed is not None:
                batch._fail(failed, policy)
                if batch.stopped_at is not None:
                    break
            elif filtered is not None:
                batch.outcomes[record.offset] = (Outcome.FILTERED, filtered)
            else:
                made.extend(rows)
        return batch

    def _note_left_out(self) -> None:
        if len(self.rows) < len(self.records):
            kept = {row.offset for row in self.rows}
            left_out = (record.offset for record in self.records if record.offset not in kept)
            self.outcomes.update(dict.fromkeys(left_out, (Outcome.FILTERED, "where")))

    def apply_result(self, failed_rows: Sequence[FailedRow], policy: ErrorPolicy) -> None:
        """Take the sink's answer to `rows`; afterwards `rows` holds those that have to be written again, if any."""
        self.attempts += 1
        if not failed_rows:
            self.rows = []
            return
        by_offset = {record.offset: record for record in self.records}
        transient: dict[int, FailedRow] = {}
        for answer in sorted(failed_rows, key=lambda one: one.index):
            row = self.rows[answer.index]
            if row.offset in self.outcomes or row.offset >= self.end:
                continue
            if answer.transient and policy.decide(Failure.TRANSIENT, self.attempts) is Action.RETRY:
                transient[answer.index] = answer
                continue
            failed = FailedRecord(by_offset[row.offset], "TASK_PUT", answer.reason, answer.error)
            if answer.transient:
                # No attempt is left, and the record is fine: it must be neither skipped nor dead-lettered.
                self._stop_at(failed)
            else:
                self._fail(failed, policy)
        again = rows_to_retry(self.rows, transient)
        self.rows = [row for row in again if row.offset < self.end and row.offset not in self.outcomes]

    def apply_unavailable(self, error: Exception, policy: ErrorPolicy) -> None:
        """Count an attempt that did not reach the sink: all rows stay, unless the policy has no attempt left."""
        self.attempts += 1
        if self.rows and policy.decide(Failure.TRANSIENT, self.attempts) is not Action.RETRY:
            first = next(record for record in self.records if record.offset == self.rows[0].offset)
            self._stop_at(FailedRecord(first, "TASK_PUT", "unavailable", error))
            self.rows = []

    @property
    def failed_before(self) -> frozenset[int]:
        """The offsets of the records that failed and have no row among `rows`."""
        if not self.outcomes:
            return frozenset()
        return frozenset(offset for offset, (outcome, _) in self.outcomes.items() if outcome is not Outcome.FILTERED)

    @property
    def unsettled(self) -> int:
        """How many records get no outcome because the task stops before them."""
        return 0 if self.stopped_at is None else sum(1 for record in self.records if record.offset >= self.end)

    def count_outcomes(self) -> Counts:
        """Return the outcomes of all records before `end`.

        Raises ValueError if rows or dead letters are still to be written.
        """
        if self.rows or self.dead_letters:
            raise ValueError("rows or dead letters are still to be written")
        if not self.outcomes and self.stopped_at is None:
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

    def _fail(self, failed: FailedRecord, policy: ErrorPolicy) -> None:
        action = policy.decide(Failure.PERMANENT, self.attempts)
        if action is Action.STOP:
            self._stop_at(failed)
        elif action is Action.DEAD_LETTER:
            self.outcomes[failed.record.offset] = (Outcome.DEAD_LETTERED, failed.reason)
            self.dead_letters.append(failed)
        else:
            self.outcomes[failed.record.offset] = (Outcome.SKIPPED, failed.reason)
            self.skipped.append(failed)

    def _stop_at(self, failed: FailedRecord) -> None:
        # The lowest offset counts: the next start of the task meets the failed records after it again.
        if self.stopped_at is None or failed.record.offset < self.stopped_at.record.offset:
            self.stopped_at = failed
            self.end = failed.record.offset
            self.dead_letters = [one for one in self.dead_letters if one.record.offset < self.end]
            self.skipped = [one for one in self.skipped if one.record.offset < self.end]
