"""One query that may be started several times: its progress, and the cause of its end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum

from pyspark.sql.streaming.query import StreamingQuery

from isotherm.aggregator.checkpoint.objects import CheckpointUnavailableError
from isotherm.aggregator.checkpoint.plans import newest_ends
from isotherm.aggregator.frames import confluent_avro
from isotherm.aggregator.kafka.broker import BrokerError
from isotherm.aggregator.kafka.writer_journal import LeaseLostError
from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.progress import Progress
from isotherm.aggregator.spark.query_plans import QueryPlans
from isotherm.aggregator.supervision.batch_pacer import BatchPacer
from isotherm.aggregator.supervision.rejected_ranges import RejectedRanges
from isotherm.servicekit.avro import RegistryUnavailableError

_PYTHON_ERRORS = "|".join(
    re.escape(f"{error.__module__}.{error.__qualname__}")
    for error in (BrokerError, CheckpointUnavailableError, LeaseLostError, RegistryUnavailableError)
)
_TRANSIENT = re.compile(
    r"org\.apache\.kafka\.common\.errors\."
    r"(\w*TimeoutException|DisconnectException|NetworkException|\w*NotAvailableException|NotLeaderOrFollowerException"
    r"|NotEnoughReplicas\w*Exception|NotCoordinatorException|CoordinatorLoadInProgressException|RetriableException)"
    r"|org\.apache\.kafka\.common\.KafkaException: Failed to create new KafkaAdminClient"
    r"|java\.util\.concurrent\.TimeoutException: Cannot fetch record"
    # A former holder of the lease has planned the batch. The query begins anew with that plan, or is fenced itself.
    r"|CONCURRENT_STREAM_LOG_UPDATE"
    rf"|{_PYTHON_ERRORS}"
)

_STATUS_INTERVAL_S = 0.05


class Cause(Enum):
    """Why a query ended."""

    NEW_SCHEMA = "new schema id"
    UNAVAILABLE = "server unavailable"
    FAILURE = "failure"


def cause_of(failure: str) -> Cause:
    """Return the cause of a failed query from the text of its failure, which includes Java's trace."""
    if confluent_avro.new_schema_ids(failure):
        return Cause.NEW_SCHEMA
    if _TRANSIENT.search(failure):
        return Cause.UNAVAILABLE
    return Cause.FAILURE


class SupervisedQuery:
    """A query that can be started again from its checkpoint."""

    def __init__(
        self,
        name: str,
        start: Callable[[], StreamingQuery],
        plans: QueryPlans,
        begins_at: Mapping[Partition, int],
        redact: Callable[[str], str] = lambda text: text,
        pacer: BatchPacer | None = None,
        tells: RejectedRanges | None = None,
        asks: RejectedRanges | None = None,
        *,
        counts_state_rows: bool = True,
    ) -> None:
        """`start` starts the query, which begins to read at the offsets `begins_at` in a new checkpoint.

        `plans` are its planned batches; `redact` removes secrets from the text of a failure; `pacer` holds its batches.
        The windowed query tells the rejected ranges what it has read, and that of rejects asks them.
        `counts_state_rows` says whether the state store counts its rows.
        """
        self.name = name
        self.plans = plans
        self._begins_at = dict(begins_at)
        self.read_to: dict[Partition, int] | None = None
        self.last: Progress | None = None
        self.newest_appended_ms: int | None = None
        self.starts = 0
        self._start = start
        self._redact = redact
        self._pacer = pacer
        self._tells = tells
        self._asks = asks
        self._counts_state_rows = counts_state_rows
        self._query: StreamingQuery | None = None
        self._seen: tuple[int, str] = (-1, "")

    def start(self) -> None:
        """Start the query with the schema ids known now."""
        if self._pacer is not None:
            self._pacer.begin()
        self._query = self.plans.follow(self._start())
        if self._tells is not None:
            self._tells.begin()
        self.starts += 1

    @property
    def is_running(self) -> bool:
        """Whether the query has been started and has not ended."""
        return self._query is not None and self._query.isActive

    @property
    def is_initialized(self) -> bool:
        """Whether the query runs and has completed its first trigger, which reveals every mistake in its plan."""
        return self.is_running and self.last is not None

    @property
    def is_holding(self) -> bool:
        """Whether the newest batch has done its work and waits for its commit, which Spark reports afterwards."""
        return self._pacer is not None and self._pacer.is_holding

    def planned_to(self) -> dict[Partition, int]:
        """Return the end offsets of the newest planned batch, or where the query begins before the first one."""
        plan = newest_ends(self.plans)
        return self._begins_at if plan is None else plan[1]

    def open_windows_before(self, batch_id: int) -> int | None:
        """Return the number of open windows before a batch; None when this start has not run the batch before it."""
        entry = None if self._query is None else self._query._jsq.lastProgress()
        if entry is None:
            return None
        before = self._parsed(entry.json())
        return before.state_rows if before.batch_id == batch_id - 1 else None

    def _parsed(self, text: str) -> Progress:
        return Progress.parse(text, counts_state_rows=self._counts_state_rows)

    def new_progress(self) -> list[Progress]:
        """Return the progress since the last call, oldest first.

        The first entry says how many batches before it are missing: Spark keeps a limited number of entries.
        """
        if self._query is None:
            return []
        new: list[Progress] = []
        # This reads Java's list directly, the newest entries first and each as one JSON text, because every call is a
        # round trip to the JVM. PySpark's `recentProgress` and its StreamingQueryListener need about a hundred round
        # trips for one entry (20 ms of processor time), and Spark calls no listener for the first trigger of a start
        # without new input, which `is_initialized` waits for.
        for entry in reversed(self._query._jsq.recentProgress()):
            progress = self._parsed(entry.json())
            if (progress.batch_id, progress.timestamp) <= self._seen:
                break
            new.append(self._with_own_work(progress))
        new.reverse()
        last_batch = self._seen[0]
        if new and last_batch >= 0 and new[0].batch_id > last_batch + 1:
            new[0] = replace(new[0], missed=new[0].batch_id - last_batch - 1)
        for progress in new:
            if self._tells is not None:
                self._tells.add(progress)
            self._seen = (progress.batch_id, progress.timestamp)
            self.last = progress
            if progress.read_to is not None:
                self.read_to = dict(progress.read_to)
            if progress.newest_appended_ms is not None:
                self.newest_appended_ms = max(progress.newest_appended_ms, self.newest_appended_ms or 0)
        return new

    def _with_own_work(self, progress: Progress) -> Progress:
        """Return the progress with the time that the batch took without its waits, and the records it passed over."""
        waited_ms, passed = 0, 0
        if self._pacer is not None:
            waited_ms = self._pacer.held_ms(progress.batch_id)
        if self._asks is not None and progress.read_from != progress.read_to:
            of_batch = self._asks.passed(progress.batch_id)
            waited_ms, passed = of_batch.waited_ms, of_batch.records
        if not waited_ms and not passed:
            return progress
        return replace(
            progress,
            duration_ms=progress.duration_ms - waited_ms,
            input_rows=progress.input_rows + passed,
            passed_over=passed,
        )

    def failure(self) -> str | None:
        """Return the text of the failure that ended the query, with Java's trace; None while it runs or was stopped."""
        if self._query is None or self._query.isActive:
            return None
        self._let_go()
        error = self._query.exception()
        return "the query ended without a reason" if error is None else self._redact(str(error))

    def stop_after_batch(self, deadline_s: float) -> None:
        """Stop the query between two batches, or within a batch after `deadline_s` (of the monotonic clock).

        Both are safe: an unfinished batch is run again unchanged at the next start.
        """
        if self._query is None:
            return
        self._let_go()
        self.new_progress()
        seen = self._seen
        while self._query.isActive and self._query.status["isTriggerActive"] and time.monotonic() < deadline_s:
            self.new_progress()
            if self._seen != seen:
                break
            time.sleep(_STATUS_INTERVAL_S)
        self._query.stop()

    def stop_now(self) -> None:
        """Stop the query within its batch."""
        self._let_go()
        if self._query is not None:
            self._query.stop()

    def _let_go(self) -> None:
        """Let nothing wait for this query."""
        if self._pacer is not None:
            self._pacer.release()
        if self._tells is not None:
            self._tells.release()
