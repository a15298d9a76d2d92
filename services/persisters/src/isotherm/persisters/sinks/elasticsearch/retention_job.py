"""Retires the dated indices of a connector's statements: told first, closed then, deleted last. See docs/adr/0043."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from elastic_transport import TransportError
from elasticsearch import ApiError, Elasticsearch
from prometheus_client import CollectorRegistry, Counter, Gauge

from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.sinks.elasticsearch.client import connect
from isotherm.persisters.sinks.elasticsearch.connector_keys import PREFIX
from isotherm.persisters.sinks.elasticsearch.index_names import dated_family
from isotherm.persisters.sinks.elasticsearch.retention import (
    Family,
    Index,
    Retirement,
    retire,
)
from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff

_log = logs.logger(__name__)

DAYS, DRY_RUN, INTERVAL = (f"{PREFIX}.retention.{name}" for name in ("days", "dry.run", "interval.ms"))
_DAY_MS = 86_400_000
_STOP_TIMEOUT_S = 5.0
_CLOCKS_APART_MS = 300_000


def retention_ms(config: Validated) -> int | None:
    """How long records are kept; None for ever, and while retention only reports."""
    days = config.integer(DAYS)
    return days * _DAY_MS if days and not config.flag(DRY_RUN) else None


def families(config: Validated) -> list[Family]:
    """The dated indices of the statements, those whose age can be told from their names."""
    return [family for family in _dated(config) if family.unsuitable is None]


def problems(config: Validated) -> list[Problem]:
    """What is wrong with the keys of retention."""
    if not config.is_resolved(DAYS) or not config.statements or not config.integer(DAYS):
        return []
    found = [Problem(DAYS, family.unsuitable) for family in _dated(config) if family.unsuitable is not None]
    if not found and not families(config):
        found.append(Problem(DAYS, "no statement has a fixed target and WITHINDEXSUFFIX: there are no dated indices"))
    return found


@contextmanager
def running(config: Validated, registry: CollectorRegistry) -> Iterator[None]:
    """Retire indices in a thread of its own, as long as the task runs; without `retention.days` nothing runs."""
    if not config.integer(DAYS):
        yield
        return
    stop = threading.Event()
    client = connect(config, 1)
    retention = Retention(config, client, registry)
    thread = threading.Thread(target=retention.run, args=(stop,), name="retention", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_STOP_TIMEOUT_S)
        client.close()


def meters(registry: CollectorRegistry) -> tuple[Gauge, Counter]:
    """What retention counts: expired indices by connector, actions by connector and action.

    A task that is paused and resumed goes on with the meters that its process registered first.
    """
    known = _registered.get(registry)
    if known is not None:
        return known
    expired = Gauge(
        "isotherm_persisters_retention_expired_indices",
        "Indices that the last pass found past their time.",
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


class Retention:
    """One pass after the other; the first one of a task only tells what is past its time."""

    def __init__(
        self,
        config: Validated,
        client: Elasticsearch,
        registry: CollectorRegistry,
        clock_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._families = families(config)
        self._retention_ms = config.integer(DAYS) * _DAY_MS
        self._only_reports = config.flag(DRY_RUN)
        self._interval_s = config.integer(INTERVAL) / 1000
        self._client = client
        self._clock_ms = clock_ms
        self._has_told = False
        expired, self._actions = meters(registry)
        self._expired = expired.labels(config.name)
        self._closed, self._deleted, self._failed = (
            self._actions.labels(config.name, action) for action in ("closed", "deleted", "failed")
        )

    def run(self, stop: threading.Event) -> None:
        """Make passes until `stop`; a server that is away or refuses is asked again."""
        backoff = Backoff(base_ms=1_000, cap_ms=max(1_000.0, self._interval_s * 1000))
        while not stop.is_set():
            try:
                self.sweep()
            except (ApiError, TransportError) as error:
                self._failed.inc()
                _log.warning("retention: pass failed, trying again", reason=str(error))
                stop.wait(backoff.next_ms() / 1000)
            else:
                backoff.reset()
                stop.wait(self._interval_s)

    def sweep(self) -> Retirement:
        """One pass. Raises ApiError, TransportError of the client."""
        indices, now_ms = self._indices(), self._now_ms()
        found = retire(self._families, indices, now_ms=now_ms, retention_ms=self._retention_ms)
        self._expired.set(len(found.expired))
        if self._only_reports or not self._has_told:
            self._has_told = True
            if found.expired:
                then = "nothing: retention.dry.run" if self._only_reports else "closed in the next pass, then deleted"
                _log.warning("retention: indices past their time", indices=found.expired, what_happens=then)
            return found
        for name in found.close:
            self._client.indices.close(index=name, ignore_unavailable=True)
            self._closed.inc()
            _log.info("retention: index closed", index=name)
        for name in found.delete:
            self._client.indices.delete(index=name, ignore_unavailable=True)
            self._deleted.inc()
            _log.info("retention: index deleted", index=name)
        return found

    def _now_ms(self) -> float:
        """The earlier one of the server's clock and this machine's: a clock that is ahead must not delete anything."""
        row: Any = self._client.cat.health(h="epoch", format="json").body[0]
        server_ms, local_ms = int(row["epoch"]) * 1000, self._clock_ms()
        if abs(server_ms - local_ms) > _CLOCKS_APART_MS:
            _log.warning(
                "retention: the clocks of this machine and of Elasticsearch differ; the earlier one is taken",
                seconds_ahead=round((local_ms - server_ms) / 1000),
            )
        return min(server_ms, local_ms)

    def _indices(self) -> list[Index]:
        """What the server has that may belong to the families; `retire` looks at the names again, exactly."""
        rows: dict[str, Index] = {}
        for base in sorted({family.base for family in self._families}):
            answer = self._client.cat.indices(
                index=f"{base}*", h="index,status", format="json", expand_wildcards=["open", "closed"]
            )
            for row in answer.body:
                assert isinstance(row, dict)
                rows[row["index"]] = Index(row["index"], row["status"] == "open")
        return list(rows.values())


def _dated(config: Validated) -> list[Family]:
    prefix = config.text(f"{PREFIX}.tableprefix")
    found = [dated_family(prefix, statement) for statement in config.statements]
    return [one for one in found if one is not None]
