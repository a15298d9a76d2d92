"""Settings of the process; what a connector does is in its own file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from isotherm.connector.distributed.hosting import HostSettings


class PersistersSettings(HostSettings):
    """How to reach Kafka and the registry, and bounds that no connector may exceed."""

    writers: int = Field(8, ge=1, le=256, description="Writes in flight at once in one task, over all partitions.")
    waiting_records: int = Field(20_000, ge=1, description="Records read and waiting in one task, over all partitions.")
    waiting_bytes: int = Field(32 * 1024 * 1024, ge=1024, description="Bytes of those records.")
    fetch_queue_kilobytes: int = Field(16_384, ge=64, description="Most that the Kafka client fetches ahead, KiB.")
    commit_interval_ms: int = Field(1_000, ge=10, description="How often offsets are committed.")
    offset_gap: Literal["continue", "stop"] = Field(
        "continue",
        description="When the topic has lost records before they were read (retention): count them and go on, or stop.",
    )
    drain_timeout_ms: int = Field(
        15_000, ge=0, description="How long a rebalance or the shutdown waits for writes in flight."
    )
