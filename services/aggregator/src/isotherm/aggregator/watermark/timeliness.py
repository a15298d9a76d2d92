"""The limits that decide whether a reading is on time (ADR 0030)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeliness:
    """The limits, in ms. Every job that reads a topic must use the same limits."""

    allowed_lateness_ms: int
    """A reading is late when it was measured more than this before its ingest time."""
    max_skew_ms: int
    """A reading lies in the future when it was measured more than this after its ingest time."""
    max_publish_delay_ms: int
    """A reading is late when the broker appended it more than this after its ingest time."""

    def is_on_time(self, event_ms: int, ingest_ms: int, appended_ms: int) -> bool:
        """Whether a reading is neither late nor in the future (`frames.readings.reject_reason`); times in epoch ms."""
        return (
            ingest_ms - self.allowed_lateness_ms <= event_ms <= ingest_ms + self.max_skew_ms
            and appended_ms <= ingest_ms + self.max_publish_delay_ms
        )
