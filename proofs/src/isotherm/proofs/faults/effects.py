"""What each kind of fault does to a server: how it begins, how one sees that it has really happened, how it ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from isotherm.demo.workers import Worker
from isotherm.proofs.faults import plan
from isotherm.proofs.faults.clocks import Clock, seconds_ahead
from isotherm.proofs.faults.disks import Disk
from isotherm.proofs.faults.packets import LostPackets
from isotherm.proofs.faults.plan import Fault
from isotherm.proofs.faults.relay import Relay
from isotherm.stack.servers.server import Server

_CLOCK_SECONDS_OFF = 2.0
"""An answer tells the time to a second, and takes a moment."""


class Effect(NamedTuple):
    """A fault on one server."""

    begin: Callable[[], None]
    happened: Callable[[], bool]
    """Asked before the end: whether it had an effect that can be seen from outside."""
    end: Callable[[], None]


@dataclass(frozen=True)
class Means:
    """What faults are made with. A kind whose means are not there is left out."""

    relays: Mapping[str, Relay] = field(default_factory=dict)
    """By the name of the broker behind."""
    further_ports: Mapping[str, int] = field(default_factory=dict)
    """Where clients find a server, beside the TCP ports on which it listens itself."""
    disks: Mapping[str, Disk] = field(default_factory=dict)
    """By the name of the server whose data are on it."""
    clocks: Mapping[str, Clock] = field(default_factory=dict)
    """By the name of the service."""
    filters_packets: bool = False

    def lacking(self, fault: Fault) -> str | None:
        """Say why this fault is not possible; None if it is."""
        if fault.kind in (plan.FULL_DISK, plan.SLOW_DISK) and fault.target not in self.disks:
            return "this user may not mount"
        if fault.kind == plan.CLOCK_JUMP and fault.target not in self.clocks:
            return "libfaketime is not installed"
        if fault.kind == plan.LOSE_PACKETS and not self.filters_packets:
            return "this user may not filter packets, or nftables is not installed"
        return None

    def effect(self, fault: Fault, server: Server, peer: Server | None, start: Callable[[Server], None]) -> Effect:
        """Return what a fault does; `start` starts a server again, and `peer` is whom the server cannot reach."""
        if fault.kind in (plan.KILL, plan.LOSE_LEADER):
            return Effect(server.kill, lambda: not server.alive(), lambda: start(server))
        if fault.kind in (plan.RESTART, plan.MOVE_LEADER):
            return Effect(server.stop, lambda: not server.alive(), lambda: start(server))
        if fault.kind == plan.FREEZE:
            # `pause` has seen every thread stand still.
            return Effect(server.pause, server.alive, server.resume)
        if fault.kind == plan.CLOCK_JUMP:
            return _jumping(self.clocks[server.name], server, fault.strength)
        if fault.kind in (plan.FULL_DISK, plan.SLOW_DISK):
            return _disk_effect(fault, self.disks[server.name])
        if fault.kind == plan.LOSE_PACKETS:
            assert peer is not None
            lost = LostPackets(server, self.ports(peer), fault.strength)
            return Effect(lost.begin, lambda: lost.dropped() > 0, lost.end)
        return _relay_effect(fault, self.relays[server.name])

    def ports(self, server: Server) -> Collection[int]:
        """All ports at which clients find a server."""
        further = self.further_ports.get(server.name)
        return server.ports if further is None else (*server.ports, further)


def _disk_effect(fault: Fault, disk: Disk) -> Effect:
    if fault.kind == plan.FULL_DISK:
        return Effect(disk.fill, disk.is_full, disk.clear)
    wait_s = fault.strength / 1000
    return Effect(lambda: disk.slow_down(wait_s), lambda: disk.longest_wait_s >= wait_s / 2, disk.speed_up)


def _jumping(clock: Clock, server: Server, seconds: int) -> Effect:
    assert isinstance(server, Worker)
    url = f"{server.monitoring_address}/live"

    def happened() -> bool:
        ahead_s = seconds_ahead(url)
        return ahead_s is not None and abs(ahead_s - seconds) < _CLOCK_SECONDS_OFF

    return Effect(lambda: clock.jump(seconds), happened, lambda: clock.jump(0))


def _relay_effect(fault: Fault, relay: Relay) -> Effect:
    before = relay.disturbed

    def happened() -> bool:
        return relay.disturbed > before

    if fault.kind == plan.CUT:
        return Effect(relay.cut, happened, relay.heal)
    if fault.kind == plan.STALL:
        return Effect(relay.stall, happened, relay.heal)
    return Effect(lambda: relay.delay(fault.strength / 1000), happened, relay.heal)
