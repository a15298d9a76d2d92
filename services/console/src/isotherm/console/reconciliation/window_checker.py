"""Compares windows with their readings: reads the topics, asks the ledger what is due, and reports what differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial

from confluent_kafka import Consumer, Message

from isotherm.console.errors import UnavailableError
from isotherm.console.reconciliation.cells import Spans, union
from isotherm.console.reconciliation.findings import OpenFindings
from isotherm.console.reconciliation.follower import LedgerFollower
from isotherm.console.reconciliation.ledger import Ledger, Progress, Suspect
from isotherm.console.reconciliation.metrics import ReconciliationMetrics
from isotherm.console.reconciliation.readings import Series, StoredReading
from isotherm.console.reconciliation.windows import Window
from isotherm.console.records.consumer import consume_spans, translate_kafka_errors
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, WireFormatError
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

_POLL_S = 1.0
_PASS_S = 1.0


class Examination:
    """Reads spans of topics again.

    `make_consumer` makes a consumer that reports partition ends. `reading_of` decodes a message; it returns None for
    one that is no reading for windows.
    """

    def __init__(
        self,
        make_consumer: Callable[[], Consumer],
        reading_of: Callable[[Message], StoredReading | None],
        on_progress: Callable[[], None],
        timeout_s: float,
    ) -> None:
        """`on_progress` is called with every record."""
        self._make_consumer, self._reading_of = make_consumer, reading_of
        self._on_progress, self._timeout_s = on_progress, timeout_s

    def readings(self, suspects: Sequence[Suspect]) -> dict[Window, list[StoredReading]]:
        """Return the readings of each window, copies among them.

        Raises UnavailableError if Kafka does not answer, RegistryUnavailableError.
        """
        found: dict[Window, list[StoredReading]] = {suspect.window: [] for suspect in suspects}
        of_series: dict[Series, list[Window]] = {}
        for window in found:
            of_series.setdefault(window.series, []).append(window)
        for reading in self._read(union(suspect.spans for suspect in suspects)):
            for window in of_series.get(reading.series, ()):
                if window.start_ms <= reading.event_ms < window.end_ms:
                    found[window].append(reading)
        return found

    def _read(self, spans: Spans) -> Iterator[StoredReading]:
        topics = sorted({topic for topic, _ in spans})
        if not topics:
            return
        with translate_kafka_errors(), closing(self._make_consumer()) as consumer:
            for topic in topics:
                of_topic = {
                    partition: (first, last + 1) for (name, partition), (first, last) in spans.items() if name == topic
                }
                for message in consume_spans(consumer, topic, of_topic, self._timeout_s):
                    self._on_progress()
                    # What cannot be decoded is no reading to anybody else either.
                    with suppress(WireFormatError):
                        reading = self._reading_of(message)
                        if reading is not None:
                            yield reading


class WindowChecker:
    """Reads and compares in the calling thread."""

    def __init__(
        self,
        ledger: Ledger,
        follower: LedgerFollower,
        examination: Examination,
        findings: OpenFindings,
        progress: Callable[[int], Progress | None],
        now_ms: Callable[[], int],
        metrics: ReconciliationMetrics,
        on_pass: Callable[[int], None],
    ) -> None:
        """`on_pass` is called each second with the time, in epoch milliseconds, before findings are written.

        It may raise UnavailableError.
        """
        self._on_pass = on_pass
        self._ledger, self._follower, self._examination = ledger, follower, examination
        self._findings, self._progress, self._now_ms = findings, progress, now_ms
        self._metrics = metrics

    def run(self, since_ms: int, stop: Stop) -> None:
        """Read what was appended since a time, and compare, until the stop."""
        if not self._follower.start(since_ms, stop):
            return
        next_s = 0.0
        while not stop.is_set():
            self._follower.poll(_POLL_S, stop)
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + _PASS_S
                self._pass()

    def _pass(self) -> None:
        now_ms = self._now_ms()
        progress = self._progress(now_ms)
        self._ledger.unpin_all_but(lambda window: self._findings.has(window.finding_key))
        self._ledger.advance(now_ms, progress)
        for act in (
            partial(self._on_pass, now_ms),
            partial(self._compare, now_ms, progress),
            partial(self._findings.write, now_ms),
        ):
            try:
                act()
            except (UnavailableError, RegistryUnavailableError) as error:
                _log.warning("windows not compared, or findings not written yet", reason=str(error))
        next_due_ms = self._ledger.next_due_ms
        self._metrics.behind_s.set(max(0, now_ms - next_due_ms) / 1_000 if next_due_ms is not None else 0)
        self._metrics.show_open(self._findings.counts())

    def _compare(self, now_ms: int, progress: Progress | None) -> None:
        next_due_ms = self._ledger.next_due_ms
        if progress is None or next_due_ms is None or next_due_ms > now_ms:
            return
        self._follower.verify_ends()
        due = self._ledger.due(self._follower.read_until_ms, progress)
        right, suspects = self._ledger.suspects(due)
        self._metrics.windows.inc(len(due))
        self._settle(right)
        if not suspects:
            return
        self._metrics.examined.inc(len(suspects))
        try:
            readings = self._examination.readings(suspects)
        except (UnavailableError, RegistryUnavailableError):
            self._ledger.postpone(suspect.window for suspect in suspects)
            raise
        for window in readings:
            finding = self._ledger.judge(window, readings[window])
            self._ledger.pin(window, is_wrong=finding is not None)
            if finding is not None:
                self._findings.report(finding, now_ms)
        self._settle(window for window in readings if not self._ledger.is_pinned(window))

    def _settle(self, right: Iterable[Window]) -> None:
        """Take back what was found about windows that are right."""
        if self._findings.is_empty:
            return
        for window in right:
            self._ledger.pin(window, is_wrong=False)
            self._findings.settle(window.finding_key)
