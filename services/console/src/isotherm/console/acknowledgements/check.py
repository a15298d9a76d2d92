"""Judges runs of acknowledged records as soon as their offsets were read. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from isotherm.connector.attestation.runs import Run, name_of, packed
from isotherm.console.acknowledgements.seen import Difference, SeenRecords
from isotherm.console.reconciliation.findings import Finding, Kind
from isotherm.console.trace.model import TopicPartitionOffset
from isotherm.kcql.dates import epoch_ms

TopicPartition = tuple[str, int]

_KEEP_MS = 90_000
"""How long records are remembered: much longer than a page takes to come."""
_MOST_WAITING = 1_000_000
"""Runs of which not all offsets were read yet: behind an open transaction, or while the readings are behind."""


class AcknowledgedRun(NamedTuple):
    """A run, who has acknowledged it, and when (epoch milliseconds)."""

    service: str
    since_ms: int
    until_ms: int
    run: Run


class AcknowledgementCheck:
    """Compares the records of some topics with the runs that services attest."""

    def __init__(
        self, topics: Sequence[str], report: Callable[[Finding], None], count: Callable[[str, int], None]
    ) -> None:
        """Compare `topics`.

        Args:
            topics: their names; pages of others are passed over.
            report: is called with each finding.
            count: is called with a word and a number of records: `compared`; `left out`, because they were not read, or
                too long ago; `unattested`, because no service has attested them.
        """
        self._topics, self._report, self._count = frozenset(topics), report, count
        self._seen: dict[TopicPartition, SeenRecords] = {}
        self._waiting: dict[TopicPartition, list[AcknowledgedRun]] = defaultdict(list)
        self._waiting_runs = 0

    def record(self, topic: str, partition: int, offset: int, key: bytes, value: bytes) -> None:
        """Take a record that was read."""
        seen = self._seen.get((topic, partition))
        if seen is None:
            seen = self._seen[topic, partition] = SeenRecords(offset)
        seen.add(offset, key, value)

    def page(self, page: Mapping[str, Any]) -> None:
        """Take a decoded Attestation record."""
        if page["topic"] not in self._topics:
            return
        where = page["topic"], page["partition"]
        span_ms = epoch_ms(page["since"]), epoch_ms(page["until"])
        for one in page["runs"]:
            run = Run(one["first_offset"], packed(one["digests"]), name_of(bytes.fromhex(one["name"])))
            if self._waiting_runs >= _MOST_WAITING:
                self._count("left out", run.records)
            else:
                self._waiting[where].append(AcknowledgedRun(page["service"], *span_ms, run))
                self._waiting_runs += 1

    def advance(self, now_ms: int, ends: Mapping[TopicPartition, int]) -> None:
        """Judge what can be judged, and forget what is old; call this every second or so.

        `ends` has, of each partition that was read to its end, the offset of that end.
        """
        for where, end in ends.items():
            if where[0] in self._topics:
                self._seen.setdefault(where, SeenRecords(end)).end(end)
        for where, waiting in self._waiting.items():
            seen = self._seen.get(where)
            if waiting and seen is not None:
                left = [one for one in waiting if not self._judge(where, seen, one)]
                self._waiting_runs -= len(waiting) - len(left)
                self._waiting[where] = left
        for seen in self._seen.values():
            seen.forget(now_ms, _KEEP_MS)
            self._count("unattested", seen.unattested)
            seen.unattested = 0

    def _judge(self, where: TopicPartition, seen: SeenRecords, acknowledged: AcknowledgedRun) -> bool:
        """Return whether a run needs not wait any longer."""
        run = acknowledged.run
        if run.first_offset + run.records > seen.read_until:
            return False
        if run.first_offset < seen.first_offset:
            self._count("left out", run.records)
            return True
        self._count("compared", run.records)
        difference = seen.compare(run)
        if difference is not None:
            for finding in _findings(where, seen, acknowledged, difference):
                self._report(finding)
        return True


def _findings(
    where: TopicPartition, seen: SeenRecords, acknowledged: AcknowledgedRun, difference: Difference
) -> list[Finding]:
    """Return a finding for the missing records of a run, and one for each other record in their place."""
    found = []
    key = None if difference.key is None else _text(difference.key)
    between = f"acknowledged between {acknowledged.since_ms} and {acknowledged.until_ms} (epoch ms)"
    if difference.missing:
        number = len(difference.missing)
        of = f"the record of {key}" if key is not None else f"{number} records"
        identity = _identity(where, difference.missing, key)
        found.append(Finding(acknowledged.service, Kind.MISSING, where[0], identity, f"{of}, {between}", "no record"))
    for offset in difference.different:
        expected = f"the record of {key}" if key is not None else "another record"
        place = TopicPartitionOffset(*where, offset)
        other = f"a record of {_text(seen.key_at(offset))}"
        identity = _identity(where, (offset,), key)
        found.append(
            Finding(
                acknowledged.service,
                Kind.DIFFERENT,
                where[0],
                identity,
                f"{expected}, {between}",
                other,
                last_seen=place,
            )
        )
    return found


def _identity(where: TopicPartition, offsets: Sequence[int], key: str | None) -> dict[str, str]:
    span = str(offsets[0]) if len(offsets) == 1 else f"{offsets[0]}-{offsets[-1]}"
    identity = {"topic": where[0], "partition": str(where[1]), "offset": span}
    return identity if key is None else {"device_id": key, **identity}


def _text(key: bytes) -> str:
    return key.decode(errors="replace")
