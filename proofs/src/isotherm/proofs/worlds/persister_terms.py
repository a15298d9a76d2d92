"""What a seed draws for the world of the persisters beside its faults, and the kinds of these."""

from __future__ import annotations

import random
from dataclasses import dataclass

from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.buffers.limits import BufferLimits
from isotherm.persisters.task.loop_settings import LoopSettings
from isotherm.proofs.worlds import workers

TOPIC = "readings"

KINDS = (
    *workers.KINDS,
    workers.COMMITS_FAIL,
    ("freeze_in_write", workers.WORKERS, (5_000, 90_000)),
    ("kill_in_write", workers.WORKERS, (1, 10_000)),
    ("store_down", 1, (1_000, 120_000)),
    ("store_frozen", 1, (1_000, 120_000)),
    ("store_loss", 1, (1_000, 120_000)),
    ("store_overload", 1, (1_000, 120_000)),
    ("store_slow", 1, (1_000, 120_000)),
    ("leader_moves", 8, (1, 2)),
    ("retention", 8, (1, 2)),
    ("stall", workers.WORKERS, (1, 2)),
)


@dataclass(frozen=True)
class Terms:
    """What a seed draws beside its faults."""

    store: str
    policy: ErrorPolicy
    settings: LoopSettings
    input_ms: int
    records: int
    """About how many records are written in this time."""
    keys: int
    partitions: int
    failing: float
    """Share of the records that cannot be written."""
    transactions: float
    """Share of the records that are written in transactions."""
    longest_wait_s: float
    """Longest wait of an iteration of the loop: long runs of three workers would spend their time on looking."""
    is_fast: bool
    """Whether batches of good records take the fast path."""


def draw_terms(chance: random.Random) -> Terms:
    """Draw the terms of a seed."""
    dead_letters = chance.random() < 0.6
    policy = chance.choice(
        (
            ErrorPolicy(Policy.NOOP, dead_letters=dead_letters, retry_interval_ms=5_000),
            ErrorPolicy(Policy.THROW, tolerate_all=True, dead_letters=dead_letters, retry_interval_ms=10_000),
            ErrorPolicy(Policy.RETRY, -1, 5_000, dead_letters=True),
            ErrorPolicy(Policy.RETRY, chance.randrange(1, 8), 5_000, dead_letters=True),
            ErrorPolicy(Policy.THROW, retry_interval_ms=60_000),
        )
    )
    may_fail = policy.policy is not Policy.THROW or policy.tolerate_all
    batch = chance.choice((1, 5, 50, 500))
    settings = LoopSettings(
        [TOPIC],
        BufferLimits(
            batch_records=batch,
            linger_ms=chance.choice((0, 0, 50, 1_000)),
            waiting_records=chance.choice((4, 50, 2_000)),
            writing_records=chance.choice((4, 100, 16_000)),
        ),
        writers=chance.choice((1, 2, 8)),
        commit_interval_ms=chance.choice((50, 1_000, 1_000, 10_000)),
        drain_timeout_ms=chance.choice((0, 1_000, 15_000)),
        session_timeout_ms=chance.choice((6_000, 10_000, 45_000)),
        stall_ms=20_000.0,
    )
    input_ms = chance.choice((20_000, 60_000, 60_000, 300_000, 1_800_000, 10_800_000))
    return Terms(
        chance.choice(("newest", "unchanged", "append")),
        policy,
        settings,
        input_ms,
        chance.choice((10, 100, 1_000)),
        chance.choice((1, 5, 40)),
        chance.choice((1, 3, 8)),
        chance.choice((0.0, 0.05, 0.5)) if may_fail else 0.0,
        chance.choice((0.0, 0.0, 0.3)),
        2.0 if input_ms > 1_000_000 else chance.choice((0.2, 1.0)),
        chance.random() < 0.5,
    )
