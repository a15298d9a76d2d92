"""This process as one of several: what it reports to its supervisor, and the supervisor's orders."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, NoReturn

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from isotherm.mqtt_proxy.pods.log_copy import Adoption
from isotherm.mqtt_proxy.processes.link import Link
from isotherm.mqtt_proxy.sessions.migration import SessionMigration
from isotherm.mqtt_proxy.sessions.state_json import decode_state
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.lifecycle import Exit
from isotherm.servicekit.settings import HttpSettings

_log = logs.logger(__name__)

_REPORT_S = 1.0
_CONFIRM_POLL_S = 0.2


class PodStart(NamedTuple):
    """What a process of a pod must know at its start (`pods.log_copy.Start`), with ordinals."""

    is_new: bool
    is_heir: bool
    others: list[int]
    below: int


class WorkerProcess:
    """This process and its link to the supervisor.

    When the link ends, the process ends at once: nothing would watch it any more, and its successor reads the state of
    its sessions from Kafka.
    """

    def __init__(self, link: Link, interrupted: list[str], start: PodStart | None = None) -> None:
        self.interrupted = frozenset(interrupted)
        """Clients whose sessions the predecessor of this process was transferring when it ended."""
        self.start_in_pod = start
        """What a process of a pod must know at its start; None where the server is one supervisor."""
        self.on_adopt: Callable[[Adoption], None] = lambda _adoption: None
        """Is called when the supervisor orders an adoption, with ordinals."""
        self._confirmations: dict[int, threading.Event] = {}
        self._last_token = 0
        self._loop = asyncio.get_running_loop()
        self.send: Callable[..., None] = link.send
        self._link = link
        self._send_report: Callable[[], None] = lambda: None
        self._migration: SessionMigration | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def connect(cls, link_fd: int) -> WorkerProcess:
        """Return this process, linked to the supervisor over the inherited socket `link_fd`."""
        link = await Link.over(socket.socket(fileno=link_fd))
        greeting = await link.receive()
        if greeting is None:
            _exit_orphaned()
        _kind, (interrupted, *more) = greeting
        return cls(link, interrupted, PodStart(*more[0]) if more else None)

    def start(self, health: Health, registry: CollectorRegistry, *, with_exemplars: bool = False) -> None:
        """Report health and metrics every second, which is also the sign of life; follow the supervisor's orders."""
        loop, link = asyncio.get_running_loop(), self._link
        page = openmetrics.generate_latest if with_exemplars else generate_latest
        self._send_report = lambda: link.send("report", health.problems(), page(registry).decode())
        self._tasks = [loop.create_task(self._report()), loop.create_task(self._listen())]

    def join(self, migration: SessionMigration | None) -> None:
        """Take part in the migration of sessions, which are restored now; None for a process without sessions."""
        self._migration = migration
        self._link.send("joined")

    def confirm_membership(self, is_over: Callable[[], bool]) -> None:
        """Return when this pod is known not to have been removed before this call, or `is_over`. Blocks a thread.

        A pod that was removed ends meanwhile, so the call does not return there (ADR 126).
        """
        event = threading.Event()
        self._last_token += 1
        token = self._last_token
        self._confirmations[token] = event
        self._loop.call_soon_threadsafe(self._link.send, "barrier", token)
        while not event.wait(_CONFIRM_POLL_S) and not is_over():
            pass
        self._confirmations.pop(token, None)

    def report(self) -> None:
        """Report health and metrics now, because others wait for what has changed."""
        self._send_report()

    def leave(self) -> None:
        """Send a last report and close the link, because this process ends."""
        for task in self._tasks:
            task.cancel()
        self._send_report()
        self._link.close()

    async def _report(self) -> None:
        while True:
            self._send_report()
            await asyncio.sleep(_REPORT_S)

    async def _listen(self) -> None:
        while (message := await self._link.receive()) is not None:
            kind, values = message
            if kind == "confirmed":
                (token,) = values
                if (event := self._confirmations.get(token)) is not None:
                    event.set()
            elif kind == "adopt":
                self.on_adopt(Adoption(*values))
            else:
                self._follow_order(kind, *values)
        _exit_orphaned()

    def _follow_order(self, kind: str, client_id: str, value: object = None, *more: object) -> None:
        migration = self._migration
        if migration is None:
            self._link.send("released", client_id, None)
        elif kind == "yield":
            assert isinstance(value, int)
            username, is_bound = more
            assert username is None or isinstance(username, str)
            migration.yield_session(client_id, value, username, is_bound=bool(is_bound))
        elif kind == "grant":
            assert value is None or isinstance(value, list)
            migration.granted(client_id, decode_state(value))
        else:
            migration.refused(client_id, is_denied=bool(value))


@asynccontextmanager
async def monitored(
    http: HttpSettings,
    health: Health,
    registry: CollectorRegistry,
    link_fd: int | None,
    on_port: Callable[[int], None] = lambda _port: None,
    *,
    with_exemplars: bool = False,
) -> AsyncIterator[WorkerProcess | None]:
    """Show health and metrics while the body runs.

    With `link_fd` the supervisor shows them, and the context is this process as one of several. Without it a port of
    our own shows them, which `on_port` receives, and the context is None.
    """
    if link_fd is not None:
        process = await WorkerProcess.connect(link_fd)
        process.start(health, registry, with_exemplars=with_exemplars)
        try:
            yield process
        finally:
            process.leave()
        return
    monitoring = MonitoringServer(http, health, registry, with_exemplars=with_exemplars)
    monitoring.start()
    _log.info("monitoring", port=monitoring.port)
    on_port(monitoring.port)
    try:
        yield None
    finally:
        monitoring.stop()


def _exit_orphaned() -> NoReturn:
    _log.error("the supervisor is gone; ending")
    os._exit(Exit.FAILED)
