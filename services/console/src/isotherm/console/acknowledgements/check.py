"""Judges runs of acknowledged records as soon as their offsets were read. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from isotherm.connector.attestation.runs import NAME_BYTES, Run
from isotherm.console.acknowledgements.seen import Difference, SeenRecords, lost_from
from isotherm.console.reconciliation.findings import Finding, Kind
from isotherm.console.trace.model import TopicPartitionOffset
from isotherm.kcql.dates import epoch_ms

TopicPartition = tuple[str, int]

_KEEP_MS = 90_000
"""How long records are remembered: much longer than a page takes to come."""
_OVERDUE_MS = 30_000
"""So long after its page a run is waited for, while there is nothing more to read."""
_LONGEST_STEP_MS = 5_000
"""What passes while nothing is read makes nothing old."""
_MOST_WAITING = 100_000
"""Runs of which not all offsets were read yet: behind an open transaction, or while the readings are behind."""
_MOST_NAMES = 200_000
_KAFKA = "kafka"


class AcknowledgedRun(NamedTuple):
    """A run, who has acknowledged it, and when (epoch milliseconds)."""

    end: int
    """The offset behind its last record."""
    came_ms: int
    service: str
    since_ms: int
    until_ms: int
    run: Run


class AcknowledgementCheck:
    """Compares the records of some topics with the runs that services attest."""

    def __init__(
        self,
        topics: Sequence[str],
        report: Callable[[Finding], None],
        count: Callable[[str, int], None],
        bounds: Callable[[TopicPartition], tuple[int, int]],
    ) -> None:
        """Compare `topics`.

        Args:
            topics: their names; pages of others are passed over.
            report: is called with each finding.
            count: is called with a word and a number of records: `compared`; `left out`, because they were not read, or
                too long ago; `unattested`, because no service has attested them.
            bounds: asks Kafka for the first offset of a partition and the one behind its last, whatever became of their
                transactions; called only where something is not as it should be. Raises UnavailableError.
        """
        self._topics, self._report, self._count, self._bounds = frozenset(topics), report, count, bounds
        self._seen: dict[TopicPartition, SeenRecords] = {}
        self._waiting: dict[TopicPartition, list[AcknowledgedRun]] = {}
        """Heaps."""
        self._waiting_runs = 0
        self._names: dict[bytes, bytes] = {}
        self._now_ms = self._clock_ms = 0

    def record(self, topic: str, partition: int, offset: int, key: bytes, value: bytes) -> None:
        """Take a record that was read."""
        seen = self._seen.get((topic, partition))
        if seen is None:
            seen = self._seen[topic, partition] = SeenRecords(offset)
        seen.add(offset, self._names.get(key) or self._name(key), value)

    def _name(self, key: bytes) -> bytes:
        """Return one object for all records of a device."""
        if len(self._names) >= _MOST_NAMES:
            self._names.clear()
        return self._names.setdefault(key, key)

    def page(self, page: Mapping[str, Any]) -> None:
        """Take a decoded Attestation record. Raises ValueError for one that no service has written."""
        if page["topic"] not in self._topics:
            return
        waiting = self._waiting.setdefault((page["topic"], page["partition"]), [])
        told = page["service"], epoch_ms(page["since"]), epoch_ms(page["until"])
        # All of them first: of a bad page none is taken.
        for run in list(map(Run.of, page["runs"])):
            if self._waiting_runs >= _MOST_WAITING:
                self._count("left out", run.records)
            else:
                acknowledged = AcknowledgedRun(run.first_offset + run.records, self._clock_ms, *told, run)
                heapq.heappush(waiting, acknowledged)
                self._waiting_runs += 1

    def advance(self, now_ms: int, ends: Mapping[TopicPartition, int]) -> None:
        """Judge what can be judged, and forget what is old; call this every second or so.

        `ends` has, of each partition that was read to its end, the offset of that end.
        Raises UnavailableError; what could not be judged is judged by the next call.
        """
        self._clock_ms += min(max(now_ms - self._now_ms, 0), _LONGEST_STEP_MS) if self._now_ms else 0
        self._now_ms = now_ms
        for where, end in ends.items():
            if where[0] in self._topics:
                self._end(where, end)
        try:
            for where, waiting in self._waiting.items():
                if waiting and (seen := self._seen.get(where)) is not None:
                    self._judge_read(where, seen, waiting)
                    if where in ends and waiting and waiting[0].came_ms <= self._clock_ms - _OVERDUE_MS:
                        self._judge_overdue(where, waiting)
        finally:
            for seen in self._seen.values():
                seen.forget(self._clock_ms, _KEEP_MS)
                self._count("unattested", seen.unattested)
                seen.unattested = 0

    def _end(self, where: TopicPartition, end: int) -> None:
        seen = self._seen.setdefault(where, SeenRecords(end))
        if end < seen.read_until:
            # Kafka had more before: nobody attests again what is lost.
            self._report(_truncated(where, end, seen.read_until))
            seen.restart(end)
        seen.read_to(end)

    def _judge_read(self, where: TopicPartition, seen: SeenRecords, waiting: list[AcknowledgedRun]) -> None:
        while waiting and waiting[0].end <= seen.read_until:
            acknowledged = waiting[0]
            run = acknowledged.run
            if run.first_offset < seen.first_offset:
                self._count("left out", run.records)
            else:
                self._compare(where, seen, acknowledged)
            heapq.heappop(waiting)
            self._waiting_runs -= 1

    def _compare(self, where: TopicPartition, seen: SeenRecords, acknowledged: AcknowledgedRun) -> None:
        difference = seen.compare(acknowledged.run)
        # What was deleted, or was kept long enough, is not lost.
        if difference is not None and acknowledged.run.first_offset < self._bounds(where)[0]:
            self._count("left out", acknowledged.run.records)
            return
        self._count("compared", acknowledged.run.records)
        if difference is not None:
            self._report_all(_findings(where, acknowledged, difference, seen.key_at))

    def _judge_overdue(self, where: TopicPartition, waiting: list[AcknowledgedRun]) -> None:
        """Judge runs behind the end of a partition: they wait for an open transaction, or are lost."""
        _, end = self._bounds(where)
        left = []
        for one in waiting:
            if one.end <= end or one.came_ms > self._clock_ms - _OVERDUE_MS:
                left.append(one)
                continue
            self._count("compared", one.run.records)
            self._report_all(_findings(where, one, lost_from(end, one.run), lambda _offset: b""))
        self._waiting_runs -= len(waiting) - len(left)
        waiting[:] = left
        heapq.heapify(waiting)

    def _report_all(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._report(finding)


def _findings(
    where: TopicPartition, acknowledged: AcknowledgedRun, difference: Difference, key_at: Callable[[int], bytes]
) -> list[Finding]:
    """Return a finding for the missing records of a run, and one for each other record in their place."""
    found = []
    service, topic = acknowledged.service, where[0]
    key = None if difference.key is None else _text(difference.key)
    between = f"acknowledged between {acknowledged.since_ms} and {acknowledged.until_ms} (epoch ms)"
    if difference.missing:
        of = f"the record of {key}" if key is not None else f"{len(difference.missing)} records"
        identity = _identity(where, difference.missing, key)
        found.append(Finding(service, Kind.MISSING, topic, identity, f"{of}, {between}", "no record"))
    for offset in difference.different:
        expected = f"the record of {key}" if key is not None else "another record"
        other = f"a record of {_text(key_at(offset))}"
        identity, place = _identity(where, (offset,), key), TopicPartitionOffset(*where, offset)
        found.append(Finding(service, Kind.DIFFERENT, topic, identity, f"{expected}, {between}", other, (), place))
    return found


def _truncated(where: TopicPartition, end: int, read_until: int) -> Finding:
    """Return the finding that a partition ends before what was read of it."""
    span = f"{end}-{read_until - 1}"
    identity = {"topic": where[0], "partition": str(where[1]), "offset": span}
    return Finding(_KAFKA, Kind.MISSING, where[0], identity, f"the records that were read at {span}", "no record")


def _identity(where: TopicPartition, offsets: Sequence[int], key: str | None) -> dict[str, str]:
    identity = {"topic": where[0], "partition": str(where[1]), "offset": spans_of(offsets)}
    return identity if key is None else {"device_id": key, **identity}


def spans_of(offsets: Sequence[int]) -> str:
    """Return offsets as a text: `5-7,9`."""
    spans = []
    for _, group in groupby(enumerate(offsets), key=lambda one: one[1] - one[0]):
        of_span = [offset for _, offset in group]
        spans.append(str(of_span[0]) if len(of_span) == 1 else f"{of_span[0]}-{of_span[-1]}")
    return ",".join(spans)


def _text(key: bytes) -> str:
    text = key.decode(errors="replace")
    return f"{text}…" if len(key) == NAME_BYTES else text
