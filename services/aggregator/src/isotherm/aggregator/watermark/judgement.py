"""The settings by which readings are judged, as a text for headers of late readings and windows (ADR 0198). Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Self

from isotherm.aggregator.watermark.timeliness import Timeliness

_TEXT = re.compile(
    r"allowed_lateness_ms=(?P<lateness>\d{1,18}) max_skew_ms=(?P<skew>\d{1,18})"
    r" max_publish_delay_ms=(?P<delay>\d{1,18})(?: where=(?P<where>[0-9a-f]{16}))?(?P<unique> deduplicate=true)?"
)


@dataclass(frozen=True)
class Judgement:
    """What decides about each reading of a topic: it is in a window, late, in the future, or left out."""

    timeliness: Timeliness
    where_digest: str = ""
    """Digest of the condition `where`; empty without one."""
    deduplicate: bool = False
    """Whether a reading counts once, however many copies of it there are."""

    @classmethod
    def of(cls, timeliness: Timeliness, where: str, *, deduplicate: bool = False) -> Self:
        """Return the judgement by limits, by the text of a condition, and by whether copies are left out."""
        digest = hashlib.sha256(where.encode()).hexdigest()[:16] if where else ""
        return cls(timeliness, digest, deduplicate)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the judgement of a header. Raises ValueError for a text that `str` does not make."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} names no settings by which readings were judged")
        limits = Timeliness(int(found["lateness"]), int(found["skew"]), int(found["delay"]))
        return cls(limits, found["where"] or "", found["unique"] is not None)

    @property
    def lateness_texts(self) -> list[str]:
        """Return the texts of the judgements by which the same readings are late: copies are late as readings are."""
        return [str(replace(self, deduplicate=one)) for one in (False, True)]

    def __str__(self) -> str:
        limits = self.timeliness
        text = (
            f"allowed_lateness_ms={limits.allowed_lateness_ms} max_skew_ms={limits.max_skew_ms} "
            f"max_publish_delay_ms={limits.max_publish_delay_ms}"
        )
        where = f" where={self.where_digest}" if self.where_digest else ""
        return f"{text}{where}{' deduplicate=true' if self.deduplicate else ''}"
