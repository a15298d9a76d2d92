"""The settings by which readings are judged, as a text for headers of late readings and windows (ADR 0198). Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Self

from isotherm.aggregator.watermark.timeliness import Timeliness

_TEXT = re.compile(
    r"allowed_lateness_ms=(?P<lateness>\d{1,18}) max_skew_ms=(?P<skew>\d{1,18})"
    r" max_publish_delay_ms=(?P<delay>\d{1,18})(?: where=(?P<where>[0-9a-f]{16}))?"
)


@dataclass(frozen=True)
class Judgement:
    """What decides about each reading of a topic: it is in a window, late, in the future, or left out."""

    timeliness: Timeliness
    where_digest: str = ""
    """Digest of the condition `where`; empty without one."""

    @classmethod
    def of(cls, timeliness: Timeliness, where: str) -> Self:
        """Return the judgement by limits and by the text of a condition."""
        return cls(timeliness, hashlib.sha256(where.encode()).hexdigest()[:16] if where else "")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the judgement of a header. Raises ValueError for a text that `str` does not make."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} names no settings by which readings were judged")
        limits = Timeliness(int(found["lateness"]), int(found["skew"]), int(found["delay"]))
        return cls(limits, found["where"] or "")

    def __str__(self) -> str:
        limits = self.timeliness
        text = (
            f"allowed_lateness_ms={limits.allowed_lateness_ms} max_skew_ms={limits.max_skew_ms} "
            f"max_publish_delay_ms={limits.max_publish_delay_ms}"
        )
        return f"{text} where={self.where_digest}" if self.where_digest else text
