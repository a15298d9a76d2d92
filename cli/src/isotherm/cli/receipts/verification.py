"""Compares readings with receipts, hour by hour. Times are epoch milliseconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from isotherm.connector.receipts.reading_set import ENTRY_BYTES, HourReading, Part, ReadingSet, entry_of
from isotherm.connector.receipts.receipt import HOUR_MS, Receipt, key_id_of
from isotherm.connector.receipts.spooled_files import SpooledFiles

MOST_HOURS = 31 * 24
"""Of one verification: each hour may have a file."""
_BUFFERED_BYTES = 1 << 18
_DEVICES_SHOWN = 5
_MOST_DEVICES = 1_000
"""Of each part."""


@dataclass
class Verdict:
    """What was found."""

    hours: int = 0
    verified_hours: int = 0
    readings: int = 0
    """Distinct readings of the rows in the span."""
    expected: int = 0
    """Readings by the receipts."""
    copies: int = 0
    outside: int = 0
    """Rows whose event time is not in the span."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_verified(self) -> bool:
        """Whether the rows are exactly what the receipts say."""
        return not self.problems


class Verification:
    """Takes rows, and then compares them. A context manager, because it may have files."""

    def __init__(
        self, receipts: Mapping[int, Receipt], keys: Sequence[Ed25519PublicKey], start_ms: int, end_ms: int
    ) -> None:
        """Compare the whole hours between two times with receipts by the start of their hour, signed with any key."""
        self._receipts, self._start_ms, self._end_ms = receipts, start_ms, end_ms
        self._keys = {key_id_of(key): key for key in keys}
        self._files = SpooledFiles(_BUFFERED_BYTES)
        self._devices: dict[int, set[str]] = defaultdict(set)
        self._outside = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.__exit__(kind, error, trace)

    def add(self, reading: HourReading) -> None:
        """Take a row. Raises OSError where there is no room for files."""
        if not self._start_ms <= reading.event_ms < self._end_ms:
            self._outside += 1
            return
        start_ms, entry = reading.event_ms - reading.event_ms % HOUR_MS, entry_of(reading)
        self._files.append(start_ms, entry)
        devices = self._devices[entry[0]]
        if len(devices) < _MOST_DEVICES:
            devices.add(reading.device_id)

    def verdict(self) -> Verdict:
        """Compare everything that was taken. Raises OSError."""
        found = Verdict(outside=self._outside)
        for start_ms in range(self._start_ms, self._end_ms, HOUR_MS):
            found.hours += 1
            receipt = self._receipts.get(start_ms)
            if receipt is None:
                found.problems.append(f"{_text(start_ms)}: there is no receipt")
            elif problem := self._signature_problem(receipt):
                found.problems.append(f"{_text(start_ms)}: {problem}")
            else:
                self._compare(receipt, found)
        return found

    def _compare(self, receipt: Receipt, found: Verdict) -> None:
        with ReadingSet() as readings:
            for entry in self._files.read(receipt.start_ms, ENTRY_BYTES):
                readings.add(entry)
            parts, taken, contradictions = readings.parts(), readings.taken, readings.contradictions
        count = sum(part.readings for part in parts)
        found.readings += count
        found.expected += receipt.readings
        found.copies += taken - count
        if receipt.unreconciled:
            found.notes.append(
                f"{_text(receipt.start_ms)}: {receipt.unreconciled} findings were open when it was issued"
            )
        if contradictions:
            found.problems.append(f"{_text(receipt.start_ms)}: {contradictions} copies of readings have other values")
        wrong = [number for number, part in enumerate(parts) if part != receipt.parts[number]]
        if not wrong:
            found.verified_hours += not contradictions
            return
        found.problems.append(f"{_text(receipt.start_ms)}: {self._difference(parts, receipt.parts, wrong)}")

    def _difference(self, parts: Sequence[Part], expected: Sequence[Part], wrong: Sequence[int]) -> str:
        missing = sum(max(0, expected[at].readings - parts[at].readings) for at in wrong)
        surplus = sum(max(0, parts[at].readings - expected[at].readings) for at in wrong)
        changed = sum(parts[at].readings == expected[at].readings for at in wrong)
        said = [
            f"{count} {what}"
            for count, what in (
                (missing, "readings at least are not in the rows"),
                (surplus, "readings at least are too many"),
                (changed, "parts of as many readings differ"),
            )
            if count
        ]
        return f"{', '.join(said)}; among the devices of parts {_some(wrong)}: {self._some_devices(wrong)}"

    def _some_devices(self, parts: Sequence[int]) -> str:
        return _some(sorted({device for part in parts for device in self._devices.get(part, ())})) or "none has a row"

    def _signature_problem(self, receipt: Receipt) -> str | None:
        key = self._keys.get(receipt.key_id)
        if key is None:
            return f"the receipt is signed with the key {receipt.key_id}, and given is {' and '.join(self._keys)}"
        return None if receipt.is_signed_by(key) else "the receipt was changed after it was signed"


def _some(found: Sequence[object]) -> str:
    more = f" and {len(found) - _DEVICES_SHOWN} more" if len(found) > _DEVICES_SHOWN else ""
    return ", ".join(map(str, found[:_DEVICES_SHOWN])) + more


def _text(start_ms: int) -> str:
    return f"{datetime.fromtimestamp(start_ms / 1_000, UTC):%Y-%m-%dT%H}:00Z"
