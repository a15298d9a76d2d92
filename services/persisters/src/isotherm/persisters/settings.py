"""Settings of the process; its connectors have configurations of their own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from isotherm.connector.distributed.hosting import HostSettings
from isotherm.servicekit.tracing.settings import TracingSettings


class PersistersSettings(HostSettings):
    """How to reach Kafka and the registry, and limits that hold for every connector."""

    writers: int = Field(
        8, ge=1, le=256, description="Limit of the writes in flight at once in one task, over all partitions."
    )
    waiting_records: int = Field(
        20_000, ge=1, description="Limit of the records that wait in one task, over all partitions."
    )
    waiting_bytes: int = Field(32 * 1024 * 1024, ge=1024, description="Limit of these records' size in bytes.")
    fetch_queue_kilobytes: int = Field(4_096, ge=64, description="Limit of what the Kafka client fetches ahead, KiB.")
    commit_interval_ms: int = Field(1_000, ge=10, description="Time between two commits of offsets.")
    offset_gap: Literal["continue", "stop"] = Field(
        "continue",
        description="If the topic lost records before they were read (retention): count them and continue, or stop.",
    )
    tracing: TracingSettings = TracingSettings()
    drain_timeout_ms: int = Field(
        15_000, ge=0, description="How long a rebalance or the shutdown waits for writes in flight."
    )
