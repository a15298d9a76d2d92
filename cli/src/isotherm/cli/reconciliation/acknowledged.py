"""Whether Kafka has what devices were answered for: records that were read, and runs that services attest. Pure."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from isotherm.cli.reconciliation.report import Identity, Line, some
from isotherm.connector.attestation.runs import DIGEST_BYTES, Run, digest_of

TITLE = "acknowledged"
TopicPartition = tuple[str, int]


class _Attested(NamedTuple):
    """A run, and who has acknowledged it."""

    run: Run
    service: str

    @property
    def end(self) -> int:
        return self.run.first_offset + self.run.records


@dataclass
class _Partition:
    """The runs of one partition that are not judged yet, and how far its records were read."""

    waiting: list[_Attested] = field(default_factory=list)
    """By their first offset, the last one first, once records are read."""
    open: list[_Attested] = field(default_factory=list)
    """Those of which records may come."""
    first_offset: int | None = None
    read_until: int = 0
    found: dict[int, set[int]] = field(default_factory=dict)
    """By the first offset of an open run, the places in it whose record was read."""


class Acknowledged:
    """Compares records with runs: first all pages, then all records, each partition in its order."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._counts: Counter[str] = Counter()
        self._missing: dict[str, list[Identity]] = {}
        self._different: dict[str, list[Identity]] = {}

    def add_page(self, page: Mapping[str, Any]) -> bool:
        """Take a decoded Attestation; return whether a service has written it as it should be."""
        try:
            runs = list(map(Run.of, page["runs"]))
        except (ValueError, struct.error):
            return False
        of = self._partitions.setdefault((page["topic"], page["partition"]), _Partition())
        of.waiting += [_Attested(run, page["service"]) for run in runs]
        return True

    def add_record(self, topic: str, partition: int, offset: int, key: bytes, value: bytes) -> None:
        """Take the next record of a partition."""
        of = self._partitions.get((topic, partition))
        if of is None:
            return
        if of.first_offset is None:
            of.first_offset = offset
            of.waiting.sort(key=lambda one: one.run.first_offset, reverse=True)
            self._leave_out(of)
        of.read_until = offset + 1
        while of.waiting and of.waiting[-1].run.first_offset <= offset:
            of.open.append(of.waiting.pop())
        if any(one.end <= offset for one in of.open):
            self._judge((topic, partition), of, offset)
        for attested in of.open:
            run = attested.run
            at = offset - run.first_offset
            if at < run.records:
                of.found.setdefault(run.first_offset, set()).add(at)
                digest = run.digests[DIGEST_BYTES * at : DIGEST_BYTES * (at + 1)]
                if digest_of(key, value).to_bytes(DIGEST_BYTES, "little") != digest:
                    self._different.setdefault(attested.service, []).append((topic, partition, offset))

    def end(self, ends: Mapping[TopicPartition, int]) -> None:
        """Judge what is left, after the last record; `ends` has of each partition the offset behind its last record."""
        for where, of in self._partitions.items():
            end = ends.get(where, 0)
            left = [*of.open, *of.waiting]
            # Behind the end nothing can come any more. What lies between that and the last record was not read.
            of.open = [one for one in left if one.end <= of.read_until or one.end > end]
            of.waiting = []
            self._counts["not compared"] += sum(one.run.records for one in left if of.read_until < one.end <= end)
            self._judge(where, of, None)

    def _leave_out(self, of: _Partition) -> None:
        """Leave out the runs that begin before the first record: it may be the first one of the time that is read."""
        assert of.first_offset is not None
        while of.waiting and of.waiting[-1].run.first_offset < of.first_offset:
            self._counts["not compared"] += of.waiting.pop().run.records

    def _judge(self, where: TopicPartition, of: _Partition, offset: int | None) -> None:
        """Judge the open runs that end before an offset, or all of them."""
        ended = [one for one in of.open if offset is None or one.end <= offset]
        of.open = [one for one in of.open if offset is not None and one.end > offset]
        for run, service in ended:
            found = of.found.pop(run.first_offset, set())
            self._counts["attested"] += run.records
            missing = [(*where, run.first_offset + at) for at in range(run.records) if at not in found]
            if missing:
                self._missing.setdefault(service, []).extend(missing)

    def line(self) -> Line:
        """Return the line of the report."""
        missing, different = (sum(map(len, of.values())) for of in (self._missing, self._different))
        attested = self._counts["attested"]
        figures = {
            "attested": attested,
            "in the topic": attested - missing - different,
            "missing": missing,
            "different": different,
            "not compared": self._counts["not compared"],
        }
        problems = [
            f"{len(places)} acknowledged by {service} {what}: {some(places)}"
            for what, of in (("are not in Kafka", self._missing), ("are other records in Kafka", self._different))
            for service, places in sorted(of.items())
        ]
        return Line(TITLE, figures, tuple(problems))
