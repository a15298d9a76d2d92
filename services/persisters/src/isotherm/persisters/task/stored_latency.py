"""How old records are when the sink has them: end-to-end latency, estimated from a few rows of each write.

The records of a batch come in the order of their partition, so their ages differ little from one to the next. Rows at
even distances stand for their neighbours; looking at each row would cost more than all other metrics together.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter

from prometheus_client.core import Exemplar, HistogramMetricFamily, Metric

from isotherm.kcql.dates import epoch_ms
from isotherm.persisters.api.record import Record
from isotherm.persisters.api.row import Row

_SAMPLES = 16
"""Most rows of one write that are looked at."""
_LIMITS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 86400.0)
_INGEST_TIME = "ingest_time"
"""The field of the suite's readings that says when the suite took them."""
EVENT, INGEST = "event", "ingest"
_offset_of = attrgetter("offset")


class StoredLatency:
    """Two histograms: the time from event and from ingest until the sink has the record; safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {since: [0] * (len(_LIMITS_S) + 1) for since in (EVENT, INGEST)}
        self._sums = dict.fromkeys((EVENT, INGEST), 0.0)
        self._exemplars: dict[int, Exemplar] = {}
        """Of the time from ingest, by bucket: the newest record that belongs to a trace."""

    def observe(self, rows: Sequence[Row], records: Sequence[Record], now_ms: float) -> None:
        """Count rows that the sink has just taken.

        Args:
            rows: in the order of their offsets.
            records: those that the rows were made of, and perhaps others, in the order of their offsets.
            now_ms: the time now in epoch milliseconds.
        """
        samples = min(_SAMPLES, len(rows))
        with self._lock:
            for number in range(samples):
                # The first and the last row of a share are equally far from the row that stands for it.
                begin, end = len(rows) * number // samples, len(rows) * (number + 1) // samples
                row = rows[(begin + end - 1) // 2]
                self._add(EVENT, now_ms - row.event_time_ms, end - begin)
                self._add(INGEST, now_ms - _ingest_ms(row, records), end - begin)

    def exemplify(self, row: Row, records: Sequence[Record], trace_id: str, now_ms: float) -> None:
        """Note a row that belongs to a trace and that the sink has just taken, as an example for its bucket."""
        age_s = max(0.0, now_ms - _ingest_ms(row, records)) / 1000
        exemplar = Exemplar({"trace_id": trace_id}, age_s, now_ms / 1000)
        with self._lock:
            self._exemplars[bisect.bisect_left(_LIMITS_S, age_s)] = exemplar

    def metric(self, name: str, labels: Sequence[str], values: Sequence[str]) -> Metric:
        """Return the histograms with these labels and their values, and the label `since`."""
        family = HistogramMetricFamily(
            name,
            "Time from the event, or from its ingest, until the sink has the record; from 16 rows of each write.",
            labels=[*labels, "since"],
        )
        with self._lock:
            for since, counts in self._counts.items():
                total = 0
                buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
                exemplars = self._exemplars if since == INGEST else {}
                for number, (limit, count) in enumerate(zip((*map(str, _LIMITS_S), "+Inf"), counts, strict=True)):
                    total += count
                    exemplar = exemplars.get(number)
                    buckets.append((limit, total) if exemplar is None else (limit, total, exemplar))
                family.add_metric([*values, since], buckets, self._sums[since])
        return family

    def _add(self, since: str, age_ms: float, rows: int) -> None:
        # A device's clock may be ahead: its records are younger than nothing.
        age_s = max(0.0, age_ms / 1000)
        self._counts[since][bisect.bisect_left(_LIMITS_S, age_s)] += rows
        self._sums[since] += age_s * rows


def _ingest_ms(row: Row, records: Sequence[Record]) -> float:
    """Return when the suite took the row's record; if it does not say, when Kafka did."""
    # Records of other schemas may be no mapping, or have anything in a field of this name.
    found = row.values.get(_INGEST_TIME) if isinstance(row.values, dict) else None
    if type(found) is int or isinstance(found, datetime):
        return epoch_ms(found)
    at = bisect.bisect_left(records, row.offset, key=_offset_of)
    return records[at].timestamp_ms if at < len(records) else row.event_time_ms
