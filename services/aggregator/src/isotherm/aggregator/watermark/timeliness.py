"""The bounds by which a reading's own times say whether it is on time (`docs/explanation/watermarks.md`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeliness:
    """What decides about a reading; all in ms. Every job that reads a topic must be given the same."""

    allowed_lateness_ms: int
    """A reading measured more than this before its ingest time is late."""
    max_skew_ms: int
    """A reading measured more than this after its ingest time lies in the future."""
    publish_delay_ms: int
    """A reading that the broker appended more than this after its ingest time is late."""
