"""Adopts the stored sessions of pods that ended, in the first process of their heir (ADR 126)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from isotherm.mqtt_proxy.pods.log_copy import Adoption
from isotherm.mqtt_proxy.pods.ownership import AdoptedSlots, Estates
from isotherm.mqtt_proxy.processes.startup import retry_until_possible
from isotherm.mqtt_proxy.sessions.dormant import DormantSessions
from isotherm.mqtt_proxy.sessions.migration import SessionMigration
from isotherm.mqtt_proxy.sessions.restoration import SessionRestoration, UnreadableSessionError
from isotherm.mqtt_proxy.sessions.store import SessionStore, StoredState
from isotherm.servicekit import logs
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)


class SessionAdoption:
    """Fences removed processes, reads their sessions, and adds them to the store.

    `fence` fences the process with an ordinal; `make_restoration` returns what reads the sessions of the given slots.
    Both block and may raise what a start waits for. `on_fatal` is called when a session cannot be read.
    """

    def __init__(
        self,
        *,
        ordinal: int,
        first_ordinal: int,
        fence: Callable[[int], None],
        make_restoration: Callable[[AdoptedSlots], SessionRestoration],
        sessions: SessionStore,
        estates: Estates,
        migration: SessionMigration,
        send: Callable[..., None],
        health: Health,
        stop: Stop,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._ordinal, self._first_ordinal = ordinal, first_ordinal
        self._fence, self._make_restoration = fence, make_restoration
        self._sessions, self._estates, self._migration = sessions, estates, migration
        self._send, self._health, self._stop, self._on_fatal = send, health, stop, on_fatal
        # Not the thread of transactions: those of this process go on meanwhile.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="adoption")
        self._task: asyncio.Task[None] | None = None

    def begin(self, order: Adoption) -> None:
        """Begin with an adoption; the supervisor orders the next one after the end of this one."""
        self._task = asyncio.get_running_loop().create_task(self._adopt(order))

    def close(self) -> None:
        """Stop. Who adopts next begins again."""
        if self._task is not None:
            self._task.cancel()
        self._executor.shutdown(wait=False)

    async def _adopt(self, order: Adoption) -> None:
        slots = AdoptedSlots(
            self._first_ordinal, frozenset(order.gone), order.is_whole, frozenset(order.live), order.below
        )
        fenced: set[int] = set()

        def read() -> tuple[DormantSessions, dict[str, StoredState]]:
            for ordinal in sorted(slots.gone - fenced):
                self._fence(ordinal)
                fenced.add(ordinal)
            # Only now: what a removed process committed before its fence is in the topic.
            restoration = self._make_restoration(slots)
            restored = restoration.restore([client_id for client_id, _ in order.interrupted])
            return restored, restoration.transferred

        try:
            result = await retry_until_possible(
                "adoption", read, executor=self._executor, health=self._health, stop=self._stop
            )
        except UnreadableSessionError as failure:
            self._on_fatal(failure)
            return
        if result is None or self._stop.is_set():
            return
        self._take(order, *result)

    def _take(self, order: Adoption, restored: DormantSessions, transferred: dict[str, StoredState]) -> None:
        for client_id in order.claimed:
            state = restored.pop(client_id)
            if state is not None:
                self._migration.inherit(client_id, state)
        self._estates.add(restored)
        for client_id in restored.with_will:
            self._sessions.get(client_id)
        claimants = dict(order.interrupted)
        for client_id, state in transferred.items():
            if claimants[client_id] == self._ordinal == state.owner:
                # It was transferred to this very process, and nobody told it.
                self._sessions.adopt(client_id, state)
            else:
                self._migration.add_interrupted(client_id, state)
        _log.info("sessions adopted", pods=order.members, sessions=len(restored))
        self._send("adopted", order.members)
