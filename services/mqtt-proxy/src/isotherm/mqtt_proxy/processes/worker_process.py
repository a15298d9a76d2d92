"""A process that is one of several: what it tells its supervisor, and what it is told."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, NoReturn

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from isotherm.mqtt_proxy.processes.link import Link, to_state
from isotherm.mqtt_proxy.sessions.migration import Handover
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.lifecycle import Exit
from isotherm.servicekit.settings import HttpSettings

_log = logs.logger(__name__)

_REPORT_S = 1.0


class Place(NamedTuple):
    """Which of how many processes this is."""

    number: int = 0
    processes: int = 1
    first_ordinal: int = 0

    @property
    def ordinal(self) -> int:
        """The number in our transactional id, and the owner of our sessions."""
        return self.first_ordinal + self.number

    def takes(self, owner: int) -> bool:
        """Whether sessions of process `owner` are ours at the start: our own, and a share of those whose process does
        not exist any more.
        """
        return (owner - self.first_ordinal) % self.processes == self.number

    def is_gone(self, owner: int) -> bool:
        """Whether the processes of today do not include `owner`."""
        return not 0 <= owner - self.first_ordinal < self.processes


class Member:
    """The link to the supervisor. When that ends, this process ends at once: nobody would watch it any more, and its
    successor reads from Kafka what is true.
    """

    def __init__(self, link: Link, interrupted: list[str]) -> None:
        self.interrupted = frozenset(interrupted)
        """Clients that our predecessor was giving away when it ended."""
        self.send: Callable[..., None] = link.send
        self._link = link
        self._say: Callable[[], None] = lambda: None
        self._handover: Handover | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def of(cls, link_fd: int) -> Member:
        """Meet the supervisor at the inherited socket."""
        link = await Link.over(socket.socket(fileno=link_fd))
        greeting = await link.receive()
        if greeting is None:
            _orphaned()
        _kind, (interrupted,) = greeting
        return cls(link, interrupted)

    def start(self, health: Health, registry: CollectorRegistry) -> None:
        """Report every second, which is our sign of life, too; listen to the supervisor."""
        loop, link = asyncio.get_running_loop(), self._link
        self._say = lambda: link.send("report", health.problems(), generate_latest(registry).decode())
        self._tasks = [loop.create_task(self._report()), loop.create_task(self._listen())]

    def join(self, handover: Handover | None) -> None:
        """Our sessions are restored: take part in handing them over; None for a process without sessions."""
        self._handover = handover
        self._link.send("joined")

    def leave(self) -> None:
        """This process ends."""
        for task in self._tasks:
            task.cancel()
        self._say()
        self._link.close()

    async def _report(self) -> None:
        while True:
            self._say()
            await asyncio.sleep(_REPORT_S)

    async def _listen(self) -> None:
        while (message := await self._link.receive()) is not None:
            kind, values = message
            self._obey(kind, *values)
        _orphaned()

    def _obey(self, kind: str, client_id: str, value: object = None, *more: object) -> None:
        handover = self._handover
        if handover is None:
            self._link.send("released", client_id, None)
        elif kind == "yield":
            assert isinstance(value, int)
            username, is_bound = more
            assert username is None or isinstance(username, str)
            handover.give_away(client_id, value, username, is_bound=bool(is_bound))
        elif kind == "grant":
            assert value is None or isinstance(value, list)
            handover.granted(client_id, to_state(value))
        else:
            handover.refused(client_id, is_denied=bool(value))


@asynccontextmanager
async def observed(
    http: HttpSettings,
    health: Health,
    registry: CollectorRegistry,
    link_fd: int | None,
    on_port: Callable[[int], None] = lambda _port: None,
) -> AsyncIterator[Member | None]:
    """Show health and metrics while the body runs: on a port of our own, which is told, or through the supervisor,
    whose Member is given then.
    """
    if link_fd is not None:
        member = await Member.of(link_fd)
        member.start(health, registry)
        try:
            yield member
        finally:
            member.leave()
        return
    monitoring = MonitoringServer(http, health, registry)
    monitoring.start()
    _log.info("monitoring", port=monitoring.port)
    on_port(monitoring.port)
    try:
        yield None
    finally:
        monitoring.stop()


def _orphaned() -> NoReturn:
    _log.error("the supervisor is gone; ending")
    os._exit(Exit.FAILED)
