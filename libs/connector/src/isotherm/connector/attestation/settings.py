"""The settings of what a service attests."""

from __future__ import annotations

from pydantic import Field

from isotherm.servicekit.settings import Settings


class AttestationSettings(Settings):
    """What this service tells of the records that it has acknowledged."""

    interval_ms: int = Field(
        5_000,
        ge=0,
        le=30_000,
        description="How often it publishes to `isotherm.attestations` which records it has acknowledged, for "
        "`isotherm-console reconcile`; 0: never.",
    )
