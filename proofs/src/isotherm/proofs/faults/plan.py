"""The plan of a run: which fault hits whom, when and for how long. One seed always gives the same plan."""

from __future__ import annotations

import random
from dataclasses import dataclass

KILL, FREEZE, RESTART = "kill", "freeze", "restart"
LOSE_LEADER, MOVE_LEADER = "lose-leader", "move-leader"
CUT, DELAY, STALL = "cut", "delay", "stall"
LOSE_PACKETS = "lose-packets"
FULL_DISK, SLOW_DISK = "full-disk", "slow-disk"
CLOCK_JUMP = "clock-jump"

BROKERS = ("kafka", "kafka-2", "kafka-3")
LEADER = "kafka-leader"
"""The broker that leads the first partition of the readings when the fault begins."""
SERVERS = ("registry", "elasticsearch", "cassandra")
MEMBERS = ("hazelcast", "hazelcast-second")
AGGREGATOR = "aggregator"
CLOCKED = (
    "mqtt-proxy",
    "coap-ingest",
    "persister-elasticsearch",
    "persister-cassandra",
    "persister-hazelcast",
    "alerts",
)
"""Services whose clock can jump. The aggregator's does not: it is Python and a JVM (ADR 138)."""
SERVICES = (*CLOCKED, AGGREGATOR)
DISKS = {BROKERS[-1]: 512, "elasticsearch": 1024, "cassandra": 1024, AGGREGATOR: 1024}
"""Who has a disk of its own, with its size in MiB."""
_SOURCES = {"registry": SERVICES, **dict.fromkeys(BROKERS, SERVICES)}
PAIRS = {
    f"{client}>{server}": (client, server)
    for client, server in (
        *((client, server) for server, clients in _SOURCES.items() for client in clients),
        *((one, other) for one in BROKERS for other in BROKERS if one != other),
        ("mqtt", "mqtt-proxy"),
        ("coap-ingest", "coap"),
        ("persister-elasticsearch", "elasticsearch"),
        ("persister-cassandra", "cassandra"),
        *(("persister-hazelcast", member) for member in MEMBERS),
    )
}
"""Clients and servers between which packets can be lost, by the name of the pair. `mqtt` and `coap` are the devices."""

TARGETS: dict[str, tuple[str, ...]] = {
    KILL: BROKERS + SERVERS + MEMBERS + SERVICES,
    FREEZE: BROKERS + SERVERS + SERVICES,
    RESTART: SERVERS + SERVICES,
    LOSE_LEADER: (LEADER,),
    MOVE_LEADER: (LEADER,),
    CUT: BROKERS,
    DELAY: BROKERS,
    STALL: BROKERS,
    LOSE_PACKETS: tuple(PAIRS),
    FULL_DISK: (BROKERS[-1], AGGREGATOR),
    SLOW_DISK: tuple(DISKS),
    CLOCK_JUMP: CLOCKED,
}
"""Whom each kind of fault can hit.

A frozen member of Hazelcast is left out, and lost packets between its members: the other one takes over its data, and
two halves of a cluster are no loss of a machine. So are full disks of Elasticsearch and Cassandra: both give a shard or
the node up, and a person has to take it back.
"""

_FIRST_S, _CALM_S = 10.0, 20.0
_PAUSE_S = (4.0, 16.0)
_LASTS_S = (2.0, 14.0)
_RECOVERY_S = 25.0
_STRENGTH: dict[str, tuple[int, int]] = {
    DELAY: (20, 400),
    LOSE_PACKETS: (10, 100),
    SLOW_DISK: (100, 1_500),
    CLOCK_JUMP: (3, 40),
}
_UNITS = {
    DELAY: "by {} ms",
    LOSE_PACKETS: "{} %",
    SLOW_DISK: "{} ms a write",
    CLOCK_JUMP: "by {} s",
}


@dataclass(frozen=True)
class Fault:
    """One fault: it begins `at_s` seconds after the load, and ends `lasts_s` later."""

    at_s: float
    kind: str
    target: str
    lasts_s: float
    strength: int = 0
    """Of a delay and a slow disk the milliseconds, of lost packets the per cent, of a jump the seconds (or back)."""

    @property
    def what(self) -> str:
        """Kind, strength and length."""
        unit = _UNITS.get(self.kind)
        return f"{self.kind}{f' {unit.format(self.strength)}' if unit else ''} for {self.lasts_s:.1f} s"

    def __str__(self) -> str:
        return f"{self.at_s:6.1f} s  {self.target}: {self.what}"


def make_plan(seed: int, seconds: float) -> list[Fault]:
    """Return the faults of a run of this length, in their order.

    At most one broker and one member of Hazelcast at a time has a fault or recovers from one: this is what three
    brokers and two members promise to survive. Each of the other targets has at most one, the client of lost packets
    for both; those of different targets overlap.
    """
    chance = random.Random(seed)
    free_at: dict[str, float] = {}
    plan = []
    at_s = _FIRST_S
    while at_s < seconds - _CALM_S:
        kind = chance.choice(sorted(TARGETS))
        target = chance.choice(TARGETS[kind])
        lasts_s = round(chance.uniform(*_LASTS_S), 1)
        strength = chance.randint(*_STRENGTH[kind]) if kind in _STRENGTH else 0
        if kind == CLOCK_JUMP:
            strength *= chance.choice((-1, 1))
        group = _group_of(target)
        if free_at.get(group, 0.0) <= at_s:
            plan.append(Fault(round(at_s, 1), kind, target, lasts_s, strength))
            free_at[group] = at_s + lasts_s + _RECOVERY_S
            at_s += chance.uniform(*_PAUSE_S)
        else:
            at_s += 1.0
    return plan


def _group_of(target: str) -> str:
    """Return what has at most one fault at a time."""
    if target in PAIRS:
        client, _server = PAIRS[target]
        return _group_of(client)
    if target in BROKERS or target == LEADER:
        return "kafka"
    return "hazelcast" if target in MEMBERS else target
