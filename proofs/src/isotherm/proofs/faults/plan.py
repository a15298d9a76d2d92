"""The plan of a run: which fault hits whom, when and for how long. One seed always gives the same plan."""

from __future__ import annotations

import random
from dataclasses import dataclass

KILL, FREEZE, RESTART = "kill", "freeze", "restart"
LOSE_LEADER, MOVE_LEADER = "lose-leader", "move-leader"
CUT, DELAY, STALL = "cut", "delay", "stall"
FULL_DISK = "full-disk"

BROKERS = ("kafka", "kafka-2", "kafka-3")
LEADER = "kafka-leader"
"""The broker that leads the first partition of the readings when the fault begins."""
SERVERS = ("registry", "elasticsearch", "cassandra")
MEMBERS = ("hazelcast", "hazelcast-second")
SERVICES = (
    "mqtt-proxy",
    "coap-ingest",
    "aggregator",
    "persister-elasticsearch",
    "persister-cassandra",
    "persister-hazelcast",
    "alerts",
)
FULL_DISK_BROKER = BROKERS[-1]
"""The broker whose disk is small."""

TARGETS: dict[str, tuple[str, ...]] = {
    KILL: BROKERS + SERVERS + MEMBERS + SERVICES,
    FREEZE: BROKERS + SERVERS + SERVICES,
    RESTART: SERVERS + SERVICES,
    LOSE_LEADER: (LEADER,),
    MOVE_LEADER: (LEADER,),
    CUT: BROKERS,
    DELAY: BROKERS,
    STALL: BROKERS,
    FULL_DISK: (FULL_DISK_BROKER,),
}
"""Whom each kind of fault can hit. A frozen member of Hazelcast is left out: the other one takes over its data, and two
halves of a cluster are no loss of a machine."""

_FIRST_S, _CALM_S = 10.0, 20.0
_PAUSE_S = (4.0, 16.0)
_LASTS_S = (2.0, 14.0)
_DELAY_MS = (20, 400)
_RECOVERY_S = 25.0


@dataclass(frozen=True)
class Fault:
    """One fault: it begins `at_s` seconds after the load, and ends `lasts_s` later."""

    at_s: float
    kind: str
    target: str
    lasts_s: float
    delay_ms: int = 0

    def __str__(self) -> str:
        delay = f" by {self.delay_ms} ms" if self.delay_ms else ""
        return f"{self.at_s:6.1f} s  {self.kind} {self.target}{delay} for {self.lasts_s:.1f} s"


def make_plan(seed: int, seconds: float) -> list[Fault]:
    """Return the faults of a run of this length, in their order.

    At most one broker and one member of Hazelcast at a time has a fault or recovers from one: this is what three
    brokers and two members promise to survive. Each of the other targets has at most one; those of different targets
    overlap.
    """
    chance = random.Random(seed)
    free_at: dict[str, float] = {}
    plan = []
    at_s = _FIRST_S
    while at_s < seconds - _CALM_S:
        kind = chance.choice(sorted(TARGETS))
        target = chance.choice(TARGETS[kind])
        lasts_s = round(chance.uniform(*_LASTS_S), 1)
        delay_ms = chance.randint(*_DELAY_MS) if kind == DELAY else 0
        group = _group_of(target)
        if free_at.get(group, 0.0) <= at_s:
            plan.append(Fault(round(at_s, 1), kind, target, lasts_s, delay_ms))
            free_at[group] = at_s + lasts_s + _RECOVERY_S
            at_s += chance.uniform(*_PAUSE_S)
        else:
            at_s += 1.0
    return plan


def _group_of(target: str) -> str:
    """Return what has at most one fault at a time."""
    if target in BROKERS or target == LEADER:
        return "kafka"
    return "hazelcast" if target in MEMBERS else target
