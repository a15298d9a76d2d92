"""Expires the dated indices of a connector's statements: first reports, then closes, then deletes. See
docs/adr/0043.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge

from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.sinks.elasticsearch.client import connect
from isotherm.persisters.sinks.elasticsearch.connector_keys import PREFIX
from isotherm.persisters.sinks.elasticsearch.indices.index_names import dated_series
from isotherm.persisters.sinks.elasticsearch.indices.retention import (
    ExpiredIndices,
    IndexSeries,
    ListedIndex,
    expired_indices,
)
from isotherm.persisters.sinks.elasticsearch.search_server import RequestRefusedError, SearchServer
from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff

_log = logs.logger(__name__)

DAYS, DRY_RUN, INTERVAL = (f"{PREFIX}.retention.{name}" for name in ("days", "dry.run", "interval.ms"))
_DAY_MS = 86_400_000
_STOP_TIMEOUT_S = 5.0
_CLOCKS_APART_MS = 300_000


def retention_ms(config: Validated) -> int | None:
    """Return how long records are kept, in milliseconds; None for ever, also while retention only reports."""
    days = config.integer(DAYS)
    return days * _DAY_MS if days and not config.flag(DRY_RUN) else None


def index_series(config: Validated) -> list[IndexSeries]:
    """Return the dated indices of the statements, as far as their names tell their age."""
    return [series for series in _dated(config) if series.unsuitable is None]


def problems(config: Validated) -> list[Problem]:
    """Return what is wrong with the keys of retention."""
    if not config.is_resolved(DAYS) or not config.statements or not config.integer(DAYS):
        return []
    found = [Problem(DAYS, series.unsuitable) for series in _dated(config) if series.unsuitable is not None]
    if not found and not index_series(config):
        found.append(Problem(DAYS, "no statement has a fixed target and WITHINDEXSUFFIX: there are no dated indices"))
    return found


@contextmanager
def running(config: Validated, registry: CollectorRegistry) -> Iterator[None]:
    """Expire indices in a thread of its own while the task runs; without `retention.days` nothing runs."""
    if not config.integer(DAYS):
        yield
        return
    stop = threading.Event()
    server = connect(config, 1)
    retention = RetentionJob(config, server, registry)
    thread = threading.Thread(target=retention.run, args=(stop,), name="retention", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_STOP_TIMEOUT_S)
        server.close()


def retention_metrics(registry: CollectorRegistry) -> tuple[Gauge, Counter]:
    """Return the metrics of retention: expired indices by connector, actions by connector and action.

    A task that is paused and resumed continues with the metrics that its process registered first.
    """
    known = _registered.get(registry)
    if known is not None:
        return known
    expired = Gauge(
        "isotherm_persisters_retention_expired_indices",
        "Indices that the last pass found expired.",
        ["connector"],
        registry=registry,
    )
    actions = Counter(
        "isotherm_persisters_retention_actions",
        "What retention did: indices closed and deleted, passes that failed.",
        ["connector", "action"],
        registry=registry,
    )
    _registered[registry] = expired, actions
    return expired, actions


_registered: WeakKeyDictionary[CollectorRegistry, tuple[Gauge, Counter]] = WeakKeyDictionary()


class RetentionJob:
    """Makes one pass after another; the first pass of a task only reports."""

    def __init__(
        self,
        config: Validated,
        server: SearchServer,
        registry: CollectorRegistry,
        clock_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._series = index_series(config)
        self._retention_ms = config.integer(DAYS) * _DAY_MS
        self._only_reports = config.flag(DRY_RUN)
        self._interval_s = config.integer(INTERVAL) / 1000
        self._server = server
        self._clock_ms = clock_ms
        self._has_reported = False
        expired, self._actions = retention_metrics(registry)
        self._expired = expired.labels(config.name)
        self._closed, self._deleted, self._failed = (
            self._actions.labels(config.name, action) for action in ("closed", "deleted", "failed")
        )

    def run(self, stop: threading.Event) -> None:
        """Make passes until `stop`; a pass that fails is repeated with back-off."""
        backoff = Backoff(base_ms=1_000, cap_ms=max(1_000.0, self._interval_s * 1000))
        while not stop.is_set():
            try:
                self.sweep()
            except (RequestRefusedError, Unavailable, SinkConfigError) as error:
                self._failed.inc()
                _log.warning("retention: pass failed, trying again", reason=str(error))
                stop.wait(backoff.next_ms() / 1000)
            else:
                backoff.reset()
                stop.wait(self._interval_s)

    def sweep(self) -> ExpiredIndices:
        """Make one pass. Raises what `SearchServer` raises."""
        indices, now_ms = self._indices(), self._now_ms()
        found = expired_indices(self._series, indices, now_ms=now_ms, retention_ms=self._retention_ms)
        self._expired.set(len(found.expired))
        if self._only_reports or not self._has_reported:
            self._has_reported = True
            if found.expired:
                then = "nothing: retention.dry.run" if self._only_reports else "closed in the next pass, then deleted"
                _log.warning("retention: indices expired", indices=found.expired, next=then)
            return found
        for name in found.close:
            self._server.close_index(name)
            self._closed.inc()
            _log.info("retention: index closed", index=name)
        for name in found.delete:
            self._server.delete_index(name)
            self._deleted.inc()
            _log.info("retention: index deleted", index=name)
        return found

    def _now_ms(self) -> float:
        """Return the earlier time of the server's clock and this machine's: a clock that is ahead must not delete
        anything.
        """
        server_ms, local_ms = self._server.clock_ms(), self._clock_ms()
        if abs(server_ms - local_ms) > _CLOCKS_APART_MS:
            _log.warning(
                "retention: the clocks of this machine and of the server differ; the earlier one is taken",
                seconds_ahead=round((local_ms - server_ms) / 1000),
            )
        return min(server_ms, local_ms)

    def _indices(self) -> list[ListedIndex]:
        """Return the indices that may belong to the series; `expired_indices` compares their names exactly."""
        rows: dict[str, ListedIndex] = {}
        for base in sorted({series.base for series in self._series}):
            for row in self._server.list_indices(f"{base}*"):
                rows[row["index"]] = ListedIndex(row["index"], row["status"] == "open")
        return list(rows.values())


def _dated(config: Validated) -> list[IndexSeries]:
    prefix = config.text(f"{PREFIX}.tableprefix")
    found = [dated_series(prefix, statement) for statement in config.statements]
    return [one for one in found if one is not None]
