"""A client's way to the cluster: requests of one process, whose answers it gets while it lives and is not frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from isotherm.proofs.kafka.cluster import Cluster
from isotherm.proofs.kafka.network import Network, Request
from isotherm.proofs.kafka.timers import Cancel, Timers

REQUEST_TIMEOUT_MS = 60_000.0
"""`socket.timeout.ms`."""


class Host(Protocol):
    """The process in which a client lives."""

    name: str

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancel:
        """Call `callback` in this process after `delay_ms` milliseconds."""

    def deliver(self, callback: Callable[[], None]) -> None:
        """Call `callback` in this process: now, when it is thawed, or never if it is dead."""


@dataclass(frozen=True)
class Connection:
    """What one client needs to reach the cluster."""

    host: Host
    cluster: Cluster
    network: Network
    timers: Timers
    client_id: str

    def request(
        self,
        broker: int,
        request: Request,
        on_answer: Callable[[object], None],
        timeout_ms: float = REQUEST_TIMEOUT_MS,
        *,
        to_coordinator: bool = False,
    ) -> None:
        """Send a request; `on_answer` gets the broker's answer, a RefusedError or a BrokenError.

        `to_coordinator`: over the connection that is for the group's coordinator alone, as librdkafka has one.
        """
        name = f"{self.host.name}/{self.client_id}/{'coordinator' if to_coordinator else 'broker'}"
        self.network.send(
            name, broker, request, lambda result: self.host.deliver(lambda: on_answer(result)), timeout_ms
        )
