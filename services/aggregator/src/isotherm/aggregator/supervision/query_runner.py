"""Runs both queries: follows their progress, restarts them, lets time advance, and stops them between two batches."""

from __future__ import annotations

import time
from collections.abc import Callable

from isotherm.aggregator.checkpoint.plans import furthest_ends
from isotherm.aggregator.checkpoint.writer_schema_cache import WriterSchemaCache
from isotherm.aggregator.frames import confluent_avro
from isotherm.aggregator.kafka.broker import Broker, BrokerError
from isotherm.aggregator.kafka.writer_journal import LeaseLostError
from isotherm.aggregator.kafka.writer_lease import Tenure
from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.status import Status
from isotherm.aggregator.supervision.boundary_end import BoundaryEnd
from isotherm.aggregator.supervision.read_until import ReadUntil
from isotherm.aggregator.supervision.server_wait import ServerWait, StopRequestedError
from isotherm.aggregator.supervision.supervised_query import Cause, SupervisedQuery, cause_of
from isotherm.aggregator.supervision.watermark_advancer import WatermarkAdvancer
from isotherm.connector.state.status import State
from isotherm.connector.state.target_follower import Target, TargetFollower, TargetState
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health

_log = logs.logger(__name__)

_POLL_S = 0.1
_PROGRESS_INTERVAL_S = 0.5
_PROBE_INTERVAL_S = 1.0
_RETRY_IDS_INTERVAL_S = 30.0
"""How often the registry is asked again for schema ids that it did not have."""
_DRAIN_SHARE = 0.6
"""Share of the shutdown deadline that running batches may use. Spark needs the rest to stop."""

_REQUESTED = "asked for"
_FOUND_LATER = "schema found later"
"""Label values of `query_restarts` beside the causes of failures."""

_Queries = tuple[SupervisedQuery, SupervisedQuery]


class QueryFailedError(Exception):
    """A query ended for a cause that a restart does not remove. The message holds Java's trace."""


class SupersededError(Exception):
    """Another process has held the lease since: what this one's Spark knows is not so any more."""


class QueryRunner:
    """Supervises the windowed and the stateless query until the service stops or one of them fails."""

    def __init__(
        self,
        settings: AggregatorSettings,
        broker: Broker,
        schemas: WriterSchemaCache,
        tenure: Tenure,
        advancer: WatermarkAdvancer,
        health: Health,
        metrics: Metrics,
        wait: ServerWait,
        status: Status,
        target: TargetFollower,
        end: BoundaryEnd | None = None,
    ) -> None:
        """`tenure` is the right to write; `end` tells when an aggregator with a successor has nothing left to do."""
        self._settings = settings
        self._broker = broker
        self._schemas = schemas
        self._tenure = tenure
        self._advancer = advancer
        self._health = health
        self._metrics = metrics
        self._wait = wait
        self._status = status
        self._target = target
        self._end = end
        self._has_ended = False
        self._applied_target: Target | None = None
        self._input_topics: set[str] = set()
        self._backoff = Backoff(base_ms=500, cap_ms=10_000)
        self._read_until = ReadUntil()
        self._next_supervision_s = 0.0
        self._next_probe_s = 0.0
        self._next_retry_s = 0.0

    def run(self, windows: SupervisedQuery, rejects: SupervisedQuery, verify_topics: Callable[[], None]) -> None:
        """Run the queries while the target state is STARTED, until the service stops.

        `verify_topics` is called again after a query lost Kafka, and when topics have joined the input. Raises
        QueryFailedError, SupersededError, and every exception of `verify_topics` that does not mean that a server is
        unavailable.
        """
        queries = (windows, rejects)
        try:
            while not self._target.is_current():
                self._wait.pause(_POLL_S)
            while True:
                try:
                    self._tenure.verify()
                    if not self._has_ended:
                        self._apply_target(queries)
                    if self._status.halted is None:
                        self._supervise(queries, verify_topics)
                        self._retry_unknown_ids(queries)
                    self._probe_kafka(windows, rejects, verify_topics)
                except LeaseLostError as error:
                    self._regain_lease(queries, error)
                self._wait.pause(_POLL_S)
        except StopRequestedError:
            _log.info("stopping after the current batches")
            self._health.not_ready("stop", "stopping")
            self._halt(queries)

    def _regain_lease(self, queries: _Queries, error: LeaseLostError) -> None:
        """Stop the queries within their batches, and wait for the lease.

        They begin anew if nobody else has held it since. Raises SupersededError otherwise.
        """
        _log.error("the queries are stopped: this process may not write any more", reason=str(error))
        self._metrics.standstill.work("the lease is lost")
        for query in queries:
            query.stop_now()
        self._wait.for_lease(lambda: self._tenure.is_held or self._tenure.is_over, self._tenure.reason)
        if self._tenure.is_over:
            raise SupersededError(self._tenure.reason())
        self._applied_target = None

    def _apply_target(self, queries: _Queries) -> None:
        """Start, halt or restart the queries as the target on the control topic says."""
        target, before = self._target.target, self._applied_target
        if target == before:
            return
        self._applied_target = target
        should_run, runs = target.state is TargetState.STARTED, False
        if before is not None:
            _log.info("target changed", state=target.state, restarts=target.restarts)
            runs = before.state is TargetState.STARTED
            if runs and (not should_run or target.restarts > before.restarts):
                self._halt(queries)
                runs = False
        if should_run and not runs:
            for query in queries:
                query.start()
                if before is not None:
                    self._metrics.query_restarts.labels(query.name, _REQUESTED).inc()
        self._status.halted = None if should_run else State(target.state)
        self._metrics.halted.set(not should_run)
        if not should_run:
            self._health.ready("start")

    def _supervise(self, queries: _Queries, verify_topics: Callable[[], None]) -> None:
        """Record the progress of the queries, and restart those that have failed."""
        if time.monotonic() < self._next_supervision_s:
            return
        self._next_supervision_s = time.monotonic() + _PROGRESS_INTERVAL_S
        for query in queries:
            self._record_progress(query)
            failure = query.failure()
            if failure is not None:
                self._recover(query, failure, verify_topics)
        if all(query.is_initialized for query in queries):
            self._health.ready("start")

    def _retry_unknown_ids(self, queries: _Queries) -> None:
        """Restart both queries when the registry now has a schema that it did not have before."""
        if not self._schemas.has_unknown_ids or time.monotonic() < self._next_retry_s:
            return
        self._next_retry_s = time.monotonic() + _RETRY_IDS_INTERVAL_S
        try:
            found = self._schemas.retry_unknown()
        except RegistryUnavailableError as error:
            _log.warning("the registry cannot be asked again for unknown schema ids", reason=str(error))
            return
        if not found or not all(query.is_running for query in queries):
            return
        self._halt(queries)
        # The records in the plan of either query are decided: a record must not be unknown to one query alone.
        self._schemas.adopt(found, furthest_ends(*(query.plans for query in queries)))
        for query in queries:
            query.start()
            self._metrics.query_restarts.labels(query.name, _FOUND_LATER).inc()

    def _record_progress(self, query: SupervisedQuery) -> None:
        for progress in query.new_progress():
            self._metrics.add(query.name, progress)
            if progress.missed:
                self._metrics.progress_missed.labels(query.name).inc(progress.missed)
                _log.error(
                    "Spark did not report the progress of some batches: rows that the watermark dropped in them are "
                    "not known",
                    query=query.name,
                    batches=progress.missed,
                    batch_id=progress.batch_id,
                )
            self._health.ready(query.name)
            self._backoff.reset()
            if progress.dropped_rows:
                _log.error(
                    "rows dropped by the watermark: readings became readable more than read_margin_ms after their "
                    "append time, or the brokers' clocks differ by more than that; their windows lack them until "
                    "`recompute` is run",
                    rows=progress.dropped_rows,
                    watermark_ms=progress.watermark_ms,
                    batch_id=progress.batch_id,
                )

    def _recover(self, query: SupervisedQuery, failure: str, verify_topics: Callable[[], None]) -> None:
        """Restart a query whose failure a restart can cure. Raises QueryFailedError otherwise, and LeaseLostError."""
        # A restart discards the progress that is not recorded yet.
        self._record_progress(query)
        cause = cause_of(failure)
        if cause is Cause.FAILURE:
            self._health.not_ready(query.name, "the query failed")
            _log.error("query failed, ending", query=query.name, trace=failure)
            raise QueryFailedError(f"query {query.name} failed: {failure}")
        self._metrics.query_restarts.labels(query.name, cause.value).inc()
        self._metrics.standstill.work(cause)
        if cause is Cause.NEW_SCHEMA:
            new_ids = confluent_avro.new_schema_ids(failure)
            _log.info("query met new schema ids, restarting it with them", query=query.name, schema_ids=new_ids)
            self._wait.until("registry", self._while_held(lambda: self._schemas.learn(new_ids)))
        else:
            self._health.not_ready(query.name, failure.strip().splitlines()[0])
            _log.warning("query lost a server, restarting it", query=query.name, trace=failure)
            self._wait.pause(self._backoff.next_ms() / 1000)
            self._wait.until("kafka", self._while_held(verify_topics))
        query.start()

    def _while_held(self, action: Callable[[], None]) -> Callable[[], None]:
        """Return an action that raises LeaseLostError while another process may write."""

        def act() -> None:
            self._tenure.verify()
            action()

        return act

    def _probe_kafka(
        self, windows: SupervisedQuery, rejects: SupervisedQuery, verify_topics: Callable[[], None]
    ) -> None:
        """Ask Kafka for the end offsets: for the lag, for readiness, and to advance the watermark."""
        if time.monotonic() < self._next_probe_s and not self._advancer.is_worth_checking(windows):
            return
        self._next_probe_s = time.monotonic() + _PROBE_INTERVAL_S
        asked_at_ms = self._advancer.now_ms()
        try:
            ends = self._broker.end_offsets(self._topics(verify_topics), committed=False)
        except BrokerError as error:
            if "kafka" not in self._health.problems():
                _log.warning("Kafka is unavailable, Spark keeps trying", reason=str(error))
            self._health.not_ready("kafka", str(error))
            if self._status.halted is None:
                self._metrics.standstill.work("Kafka is unavailable")
            return
        self._health.ready("kafka")
        reads = []
        for query in (windows, rejects):
            read_to = query.planned_to() if query.read_to is None or query.is_holding else query.read_to
            self._metrics.set_lag(query.name, read_to, ends)
            reads.append(read_to)
        if asked_at_ms is not None:
            self._read_until.note(asked_at_ms, ends, reads)
            self._metrics.read_until_ms = self._read_until.at_ms
        self._update_standstill(windows, rejects)
        if self._end is not None and self._end.is_reached(asked_at_ms, ends, windows, rejects):
            self._end_at_boundary((windows, rejects), self._end.at_ms)
        if windows.is_running:
            try:
                self._advancer.advance(windows, asked_at_ms, ends)
            except BrokerError as error:
                _log.warning("the clock stands still while Kafka does not take a tick", reason=str(error))

    def _end_at_boundary(self, queries: _Queries, at_ms: int) -> None:
        """Stop the queries for good. The process stays, so that its supervisor does not start it again."""
        if not self._has_ended:
            self._halt(queries)
            self._has_ended, self._status.halted = True, State.STOPPED
            self._metrics.halted.set(True)
            _log.info("all windows before publish_until are published: the successor has the rest", boundary_ms=at_ms)

    def _update_standstill(self, windows: SupervisedQuery, rejects: SupervisedQuery) -> None:
        """Tell an idle service from one that makes no progress."""
        last, standstill, lags = windows.last, self._metrics.standstill, self._metrics.lags
        runs = windows.is_running and rejects.is_running
        is_read = not any(records for lag in lags.values() for records in lag.values())
        if self._status.halted is not None or (runs and is_read and not self._advancer.is_overdue(windows)):
            standstill.rest()
        else:
            lag = tuple(sum(each.values()) for each in lags.values())
            standstill.work((lag, windows.read_to and sum(windows.read_to.values()), last and last.watermark_ms))

    def _topics(self, verify_topics: Callable[[], None]) -> list[str]:
        """Return the input topics, including those that were input topics before. Raises BrokerError."""
        joined = set(self._broker.input_topics(self._settings)) - self._input_topics
        if joined:
            verify_topics()
            self._input_topics |= joined
            _log.info("topics are read", topics=sorted(joined))
        return sorted(self._input_topics)

    def _halt(self, queries: _Queries) -> None:
        """Stop the queries between two batches if time allows. Their checkpoints hold where they go on."""
        deadline_s = time.monotonic() + self._settings.shutdown_timeout_ms / 1000 * _DRAIN_SHARE
        for query in queries:
            query.stop_after_batch(deadline_s)
            self._record_progress(query)
