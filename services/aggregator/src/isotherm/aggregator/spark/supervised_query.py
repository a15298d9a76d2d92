"""One running query: its progress, and what its end means."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from pyspark.sql.streaming.query import StreamingQuery

from isotherm.aggregator.frames import confluent_avro
from isotherm.aggregator.metrics import Partition, Progress

_TRANSIENT = re.compile(
    r"org\.apache\.kafka\.common\.errors\."
    r"(\w*TimeoutException|DisconnectException|NetworkException|\w*NotAvailableException|NotLeaderOrFollowerException"
    r"|NotEnoughReplicas\w*Exception|NotCoordinatorException|CoordinatorLoadInProgressException|RetriableException)"
    r"|org\.apache\.kafka\.common\.KafkaException: Failed to create new KafkaAdminClient"
    r"|java\.util\.concurrent\.TimeoutException: Cannot fetch record"
    r"|aggregator\.broker\.BrokerError|servicekit\.avro\.RegistryUnavailableError"
)


_STATUS_INTERVAL_S = 0.05


class Cause(Enum):
    """Why a query ended."""

    NEW_SCHEMA = "new schema id"
    UNAVAILABLE = "server unavailable"
    FAILURE = "failure"


def cause_of(failure: str) -> Cause:
    """Tell from the text of a failed query, Java's trace included, what is to be done about it."""
    if confluent_avro.new_schema_ids(failure):
        return Cause.NEW_SCHEMA
    if _TRANSIENT.search(failure):
        return Cause.UNAVAILABLE
    return Cause.FAILURE


class SupervisedQuery:
    """A query that may be started again from its checkpoint; `redact` takes secrets out of its failures."""

    def __init__(
        self, name: str, start: Callable[[], StreamingQuery], redact: Callable[[str], str] = lambda text: text
    ) -> None:
        self.name = name
        self.read_to: dict[Partition, int] | None = None
        self.last: Progress | None = None
        self.newest_appended_ms: int | None = None
        self.starts = 0
        self._start = start
        self._redact = redact
        self._query: StreamingQuery | None = None
        self._seen: tuple[int, str] = (-1, "")

    def start(self) -> None:
        """Start it, with what is known now."""
        self._query = self._start()
        self.starts += 1

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._query is not None and self._query.isActive

    @property
    def is_initialized(self) -> bool:
        """Whether it runs and has been through its first trigger, which finds every mistake in a plan."""
        return self.is_running and self.last is not None

    def new_progress(self) -> list[Progress]:
        """What it has done since the last call.

        The first one says how many batches before it are missing: Spark keeps only as many as it is told to.
        """
        if self._query is None:
            return []
        new: list[Progress] = []
        # The newest first, as far as needed, and the JSON in one call: every call is a round trip to the JVM.
        for reported in reversed(self._query._jsq.recentProgress()):
            progress = Progress.parse(reported.json())
            if (progress.batch_id, progress.timestamp) <= self._seen:
                break
            new.append(progress)
        new.reverse()
        seen_batch = self._seen[0]
        if new and seen_batch >= 0 and new[0].batch_id > seen_batch + 1:
            new[0] = replace(new[0], missed=new[0].batch_id - seen_batch - 1)
        for progress in new:
            self._seen = (progress.batch_id, progress.timestamp)
            self.last = progress
            if progress.read_to is not None:
                self.read_to = dict(progress.read_to)
            if progress.newest_appended_ms is not None:
                self.newest_appended_ms = max(progress.newest_appended_ms, self.newest_appended_ms or 0)
        return new

    def failure(self) -> str | None:
        """The text of the failure that ended it, with Java's trace; None while it runs or when it was stopped."""
        if self._query is None or self._query.isActive:
            return None
        error = self._query.exception()
        return "the query ended without a reason" if error is None else self._redact(str(error))

    def stop_after_batch(self, deadline_s: float) -> None:
        """Stop it between two batches, or in the middle of one after `deadline_s` (of the monotonic clock).

        Either is safe: a batch that did not finish is run again, as it was, at the next start.
        """
        if self._query is None:
            return
        self.new_progress()
        begun = self._seen
        while self._query.isActive and self._query.status["isTriggerActive"] and time.monotonic() < deadline_s:
            self.new_progress()
            if self._seen != begun:
                break
            time.sleep(_STATUS_INTERVAL_S)
        self._query.stop()
