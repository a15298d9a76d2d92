"""The queries at work: their progress and failures, the clock, and the stop between two batches."""

from __future__ import annotations

import time
from collections.abc import Callable

from isotherm.aggregator.checkpoint.folder import CheckpointFolder
from isotherm.aggregator.checkpoint.writer_schema_cache import SchemaBook
from isotherm.aggregator.frames import confluent_avro
from isotherm.aggregator.kafka.broker import Broker, BrokerError
from isotherm.aggregator.metrics import Metrics
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.supervised_query import Cause, SupervisedQuery, cause_of
from isotherm.aggregator.status import Status
from isotherm.aggregator.supervision.watermark_advancer import Ticking
from isotherm.aggregator.waiting import StopRequested, Waiting
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
_ASK_AGAIN_S = 30.0
"""How often the registry is asked again for schema ids that it did not have."""
_DRAIN_SHARE = 0.6
"""Share of the shutdown deadline that running batches may use; the rest is for Spark to stop."""

_ASKED_FOR = "asked for"
_FOUND_LATER = "schema found later"
"""Why a query is started again, beside the causes of its failures."""

_Both = tuple[SupervisedQuery, SupervisedQuery]


class QueryFailedError(Exception):
    """A query ended for a reason that a new start does not cure; with Java's trace."""


class Operation:
    """Looks after the windowed and the stateless query until the service stops or one of them fails."""

    def __init__(
        self,
        settings: AggregatorSettings,
        broker: Broker,
        book: SchemaBook,
        folder: CheckpointFolder,
        ticking: Ticking,
        health: Health,
        metrics: Metrics,
        waiting: Waiting,
        status: Status,
        target: TargetFollower,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._book = book
        self._folder = folder
        self._ticking = ticking
        self._health = health
        self._metrics = metrics
        self._waiting = waiting
        self._status = status
        self._target = target
        self._obeyed: Target | None = None
        self._input_topics: set[str] = set()
        self._backoff = Backoff(base_ms=500, cap_ms=10_000)
        self._next_look_s = 0.0
        self._next_probe_s = 0.0
        self._next_question_s = 0.0

    def run(self, windows: SupervisedQuery, rejects: SupervisedQuery, verify_topics: Callable[[], None]) -> None:
        """Start the queries, as soon and as long as they are wanted, and look after them until the service stops.

        `verify_topics` is asked again after a query lost Kafka, and when topics have joined the input. Raises what
        `verify_topics` does not get over, and QueryFailedError.
        """
        queries = (windows, rejects)
        try:
            while not self._target.is_current():
                self._waiting.pause(_POLL_S)
            while True:
                self._obey(queries)
                if self._status.halted is None:
                    self._look_after(queries, verify_topics)
                    self._ask_again(queries)
                self._probe(windows, rejects, verify_topics)
                self._waiting.pause(_POLL_S)
        except StopRequested:
            _log.info("stopping after the current batches")
            self._health.not_ready("stop", "stopping")
            self._halt(queries)

    def _obey(self, queries: _Both) -> None:
        """Start, halt or start anew what runs, as the control topic says."""
        wanted, before = self._target.target, self._obeyed
        if wanted == before:
            return
        self._obeyed = wanted
        starts, runs = wanted.state is TargetState.STARTED, False
        if before is not None:
            _log.info("target changed", state=wanted.state, restarts=wanted.restarts)
            runs = before.state is TargetState.STARTED
            if runs and (not starts or wanted.restarts > before.restarts):
                self._halt(queries)
                runs = False
        if starts and not runs:
            for query in queries:
                query.start()
                if before is not None:
                    self._metrics.query_restarts.labels(query.name, _ASKED_FOR).inc()
        self._status.halted = None if starts else State(wanted.state)
        self._metrics.halted.set(not starts)
        if not starts:
            self._health.ready("start")

    def _look_after(self, queries: _Both, verify_topics: Callable[[], None]) -> None:
        if time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + _PROGRESS_INTERVAL_S
        for query in queries:
            self._take_in(query)
            failure = query.failure()
            if failure is not None:
                self._recover(query, failure, verify_topics)
        if all(query.is_initialized for query in queries):
            self._health.ready("start")

    def _ask_again(self, queries: _Both) -> None:
        """Start both queries anew when the registry has got a schema that it did not have."""
        if not self._book.lacks_ids or time.monotonic() < self._next_question_s:
            return
        self._next_question_s = time.monotonic() + _ASK_AGAIN_S
        try:
            found = self._book.look_again()
        except RegistryUnavailableError as error:
            _log.warning("the registry cannot be asked again for unknown schema ids", reason=str(error))
            return
        if not found or not all(query.is_running for query in queries):
            return
        self._halt(queries)
        # What either query has planned is decided: a record must not be unknown to one of them alone.
        self._book.adopt(found, self._folder.planned_by_any())
        for query in queries:
            query.start()
            self._metrics.query_restarts.labels(query.name, _FOUND_LATER).inc()

    def _take_in(self, query: SupervisedQuery) -> None:
        for progress in query.new_progress():
            self._metrics.add(query.name, progress)
            if progress.missed:
                self._metrics.progress_missed.labels(query.name).inc(progress.missed)
                _log.error(
                    "the progress of batches was not seen: it is not known whether the watermark dropped rows of them",
                    query=query.name,
                    batches=progress.missed,
                    batch_id=progress.batch_id,
                )
            self._health.ready(query.name)
            self._backoff.reset()
            if progress.dropped_rows:
                _log.error(
                    "rows dropped by the watermark: readings became readable more than read_margin_ms after they were "
                    "appended, or the brokers' clocks differ by so much; their windows lack them until they are "
                    "recomputed",
                    rows=progress.dropped_rows,
                    watermark_ms=progress.watermark_ms,
                    batch_id=progress.batch_id,
                )

    def _recover(self, query: SupervisedQuery, failure: str, verify_topics: Callable[[], None]) -> None:
        """Start a query again where that helps. Raises QueryFailedError where it does not."""
        # A new start forgets what is not taken in yet.
        self._take_in(query)
        cause = cause_of(failure)
        if cause is Cause.FAILURE:
            self._health.not_ready(query.name, "the query failed")
            _log.error("query failed, ending", query=query.name, trace=failure)
            raise QueryFailedError(f"query {query.name} failed: {failure}")
        self._metrics.query_restarts.labels(query.name, cause.value).inc()
        self._metrics.standstill.work(cause)
        if cause is Cause.NEW_SCHEMA:
            new_ids = confluent_avro.new_schema_ids(failure)
            _log.info("query met new schema ids, starting it again with them", query=query.name, schema_ids=new_ids)
            self._waiting.until("registry", lambda: self._book.learn(new_ids))
        else:
            self._health.not_ready(query.name, failure.strip().splitlines()[0])
            _log.warning("query lost a server, starting it again", query=query.name, trace=failure)
            self._waiting.pause(self._backoff.next_ms() / 1000)
            self._waiting.until("kafka", verify_topics)
        query.start()

    def _probe(self, windows: SupervisedQuery, rejects: SupervisedQuery, verify_topics: Callable[[], None]) -> None:
        """Ask Kafka for the ends of the partitions: for the lag, for readiness, and to let time go on."""
        if time.monotonic() < self._next_probe_s and not self._ticking.is_worth_asking(windows):
            return
        self._next_probe_s = time.monotonic() + _PROBE_INTERVAL_S
        asked_at_ms = self._ticking.now_ms()
        try:
            ends = self._broker.ends(self._topics(verify_topics), committed=False)
        except BrokerError as error:
            if "kafka" not in self._health.problems():
                _log.warning("Kafka is away, Spark keeps trying", reason=str(error))
            self._health.not_ready("kafka", str(error))
            if self._status.halted is None:
                self._metrics.standstill.work("Kafka is away")
            return
        self._health.ready("kafka")
        for query in (windows, rejects):
            read_to = self._folder.read_to(query.name) if query.read_to is None else query.read_to
            self._metrics.set_lag(query.name, read_to, ends)
        self._note_standstill(windows, rejects)
        if windows.is_running:
            self._ticking.advance(windows, asked_at_ms, ends)

    def _note_standstill(self, windows: SupervisedQuery, rejects: SupervisedQuery) -> None:
        """Tell an idle service from one that is stuck."""
        last, standstill, lags = windows.last, self._metrics.standstill, self._metrics.lags
        runs = windows.is_running and rejects.is_running
        is_read = not any(records for lag in lags.values() for records in lag.values())
        if self._status.halted is not None or (runs and is_read and not self._ticking.is_overdue(windows)):
            standstill.rest()
        else:
            lag = tuple(sum(each.values()) for each in lags.values())
            standstill.work((lag, windows.read_to and sum(windows.read_to.values()), last and last.watermark_ms))

    def _topics(self, verify_topics: Callable[[], None]) -> list[str]:
        """The topics with readings, and those that were among them before. Raises BrokerError."""
        joined = set(self._broker.input_topics(self._settings)) - self._input_topics
        if joined:
            verify_topics()
            self._input_topics |= joined
            _log.info("topics are read", topics=sorted(joined))
        return sorted(self._input_topics)

    def _halt(self, queries: _Both) -> None:
        """Stop the queries between two batches, as far as there is time; their checkpoints know where to go on."""
        deadline_s = time.monotonic() + self._settings.shutdown_timeout_ms / 1000 * _DRAIN_SHARE
        for query in queries:
            query.stop_after_batch(deadline_s)
            self._take_in(query)
