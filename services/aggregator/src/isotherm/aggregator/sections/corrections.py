"""The settings of the corrections that the service makes by itself."""

from __future__ import annotations

from pydantic import Field

from isotherm.servicekit.settings import Settings


class CorrectionsSettings(Settings):
    """Settings of the corrections that the service makes by itself."""

    interval_ms: int | None = Field(
        None,
        ge=1_000,
        description="How often late readings are merged into the windows that were published without them. Empty: "
        "never; the command `recompute` does it.",
    )
    max_age_ms: int = Field(
        86_400_000,
        ge=60_000,
        description="Windows that began longer ago than this are left to `recompute`. A correction reads the windows "
        "that were published since the oldest one that it corrects.",
    )
