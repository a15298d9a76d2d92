"""Connects the processes of a pod with the log of claims, which all pods of the server share (ADR 126)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from confluent_kafka import KafkaException

from isotherm.mqtt_proxy.pods.log_client import LogBrokenError
from isotherm.mqtt_proxy.pods.log_copy import (
    Confirmed,
    Departed,
    Effect,
    Forgotten,
    LogCopy,
    Removed,
)
from isotherm.mqtt_proxy.pods.records import History, LogRecord
from isotherm.mqtt_proxy.processes.arbitration import Send, send_order
from isotherm.servicekit import logs
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health
from isotherm.servicekit.lifecycle import Stop

_log = logs.logger(__name__)

_BEAT_S = 1.0
_LOOK_S = 3.0
"""How long a pod looks for another one with its host name, which would write a beat each second."""
_FLUSH_S = 5.0
_FLOOR_FROM_S = 1_704_067_200
"""2024-01-01. The numbers of pods begin with the minutes since then, so that they differ from earlier ones even when
the topic was deleted; 32 bits last until 2087."""
_UNAVAILABLE = (KafkaException, RegistryUnavailableError, SchemaNotRegisteredError)


class Log(Protocol):
    """The log of claims, as the arbitration uses it (`LogClient`)."""

    on_records: Callable[[Sequence[LogRecord]], None]
    on_broken: Callable[[str], None]

    def open(self) -> History:
        """Read what is there."""

    def start(self) -> None:
        """Deliver what follows."""

    def send(self, *message: Any) -> None:
        """Append a message."""

    def flush(self) -> None:
        """Append what waits now."""

    def send_join(self, host: str, processes: int, floor: int) -> None:
        """Append the join of this pod."""

    def send_snapshot(self, position: int, state: list[Any]) -> None:
        """Append the state at `position`."""

    def forget(self, incarnation: str) -> None:
        """Let compaction remove the records of a pod."""

    def close(self, flush_s: float) -> None:
        """Stop."""


class PodArbitration:
    """The arbitration of one pod of several.

    `on_end` is called with the reason when the pod must end at once, without any further message to its processes.
    """

    def __init__(
        self,
        log: Log,
        *,
        incarnation: str,
        host: str,
        processes: int,
        first_ordinal: int,
        health: Health,
        stop: Stop,
        on_end: Callable[[str], None],
    ) -> None:
        self.send: Send = lambda _index, _kind, *_values: None
        self._log, self._copy = log, LogCopy(incarnation)
        self._incarnation, self._host, self._processes = incarnation, host, processes
        self._first_ordinal = first_ordinal
        self._health, self._stop, self._on_end = health, stop, on_end
        self._position = -1
        self._first = 0
        """The number of the first process."""
        self._changed = asyncio.Event()
        self._heard: dict[str, int] = {}
        self._is_beat_unread = False
        self._running: set[int] = set()
        """Indexes of the processes whose end is not in the log."""
        self._has_ended = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def claims(self) -> int:
        """How many clients of all pods have an undecided claim."""
        return self._copy.claims

    @property
    def pods(self) -> int:
        """How many pods the server has."""
        return self._copy.pods

    # -- life

    async def open(self) -> bool:
        """Join: return True when this pod has its number, False when told to stop before."""
        self._health.not_ready("pods", "the log of claims is not read yet")
        history = await self._read_history()
        if history is None:
            return False
        self._position = history.position
        if history.snapshot is not None:
            self._copy.load(history.snapshot)
        self._log.on_records, self._log.on_broken = self._on_records, self._end
        self._apply(history.records)
        self._log.start()
        await self._wait_for_host()
        if self._stop.is_set():
            return False
        floor = max(1, int(time.time() - _FLOOR_FROM_S) // 60)
        self._log.send_join(self._host, self._processes, floor)
        await self._until(lambda: self._copy.own is not None)
        own = self._copy.own
        if own is None:
            return False
        self._first = own.numbers[0]
        _log.info("joined", pod=own.number, host=self._host, pods=self._copy.pods)
        self._health.ready("pods")
        self._tasks.append(asyncio.create_task(self._beat()))
        self._show_restoring()
        return True

    async def _read_history(self) -> History | None:
        backoff = Backoff(base_ms=200, cap_ms=5_000)
        while not self._stop.is_set():
            try:
                return await asyncio.to_thread(self._log.open)
            except (LogBrokenError, *_UNAVAILABLE) as failure:
                self._health.not_ready("pods", str(failure))
                _log.warning("waiting for the log of claims", reason=str(failure))
                await self._pause(backoff.next_ms() / 1000)
        return None

    async def _wait_for_host(self) -> None:
        """Wait while another pod with this host name is alive: each would remove the other, for ever."""
        while not self._stop.is_set():
            other = self._copy.incarnation_on(self._host)
            if other is None:
                return
            before = self._heard.get(other, 0)
            await self._pause(_LOOK_S)
            if self._heard.get(other, 0) == before:
                return
            reason = f"another pod of this server has the host name {self._host}, too; give each pods.host of its own"
            self._health.not_ready("name", reason)
            _log.warning("waiting", reason=reason)
            await self._pause(_LOOK_S)
        self._health.ready("name")

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait_async(), seconds)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Return when `is_so`, or when told to stop."""
        stopping = asyncio.ensure_future(self._stop.wait_async())
        while not is_so() and not self._stop.is_set():
            self._changed.clear()
            changing = asyncio.ensure_future(self._changed.wait())
            await asyncio.wait([stopping, changing], return_when=asyncio.FIRST_COMPLETED)
            changing.cancel()
        stopping.cancel()

    async def _beat(self) -> None:
        while True:
            # A second beat before the first one is read would let a pod that was cut off take others for silent.
            if not self._is_beat_unread:
                self._is_beat_unread = True
                self._log.send("beat")
            await asyncio.sleep(_BEAT_S)

    async def close(self) -> None:
        """Leave: the heir adopts the sessions of this pod."""
        for task in self._tasks:
            task.cancel()
        if not self._has_ended and self._copy.own is not None:
            self._log.send("leave")
            self._log.flush()
        self._has_ended = True
        await asyncio.to_thread(self._log.close, _FLUSH_S)

    def _end(self, reason: str) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._on_end(reason)

    # -- the processes

    def number(self, index: int) -> int:
        """Return the number of a process among those of all pods."""
        return self._first + index

    async def wait_to_start(self, index: int) -> None:
        """Return when the end of the predecessor is in the log, with everything that it said before."""
        await self._until(lambda: index not in self._running)

    def greeting(self, index: int) -> Sequence[object]:
        """Return what a process must know at its start, with ordinals."""
        self._running.add(index)
        start = self._copy.start(self.number(index))
        below = self._first_ordinal + start.below
        return [start.interrupted, [start.is_new, start.is_heir, self._ordinals(start.others), below]]

    def receive(self, index: int, kind: str, values: Sequence[Any]) -> None:
        """Append a message of a process to the log."""
        if self._has_ended:
            return
        if kind == "adopted":
            self._log.send("adopted", *values)
        else:
            self._log.send(kind, self.number(index), *values)

    def left(self, index: int) -> None:
        """Append the end of a process to the log."""
        if not self._has_ended:
            self._log.send("left", self.number(index))

    def _ordinals(self, numbers: Iterable[int]) -> list[int]:
        return [self._first_ordinal + number for number in numbers]

    # -- the log

    def _on_records(self, records: Sequence[LogRecord]) -> None:
        if self._has_ended:
            return
        is_member = self._apply(records)
        self._changed.set()
        if not is_member:
            return
        if self._copy.take_snapshot_duty():
            self._log.send_snapshot(self._position, self._copy.dump())
        self._adopt()
        self._show_restoring()

    def _apply(self, records: Iterable[LogRecord]) -> bool:
        """Take records into account; return whether this pod has joined and was not removed."""
        for record in records:
            if self._copy.own is None:
                self._heard[record.incarnation] = self._heard.get(record.incarnation, 0) + 1
            effects = self._copy.apply(record.incarnation, record.messages)
            self._position = record.offset
            for effect in effects:
                self._carry_out(effect)
                if self._has_ended:
                    return False
            if record.incarnation == self._incarnation:
                self._note_own(record.messages)
        return self._copy.own is not None

    def _note_own(self, messages: Sequence[Sequence[Any]]) -> None:
        for kind, *_ in messages:
            if kind == "beat":
                self._is_beat_unread = False
                for number in self._copy.silent():
                    _log.warning("a pod is silent; removing it", pod=number)
                    self._log.send("removed", number)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Removed):
            self._end(effect.reason)
        elif isinstance(effect, Forgotten):
            self._log.forget(effect.incarnation)
        elif isinstance(effect, Confirmed):
            self.send(effect.process - self._first, "confirmed", effect.token)
        elif isinstance(effect, Departed):
            self._running.discard(effect.process - self._first)
        else:
            send_order(self.send, effect, effect.process - self._first, self._first_ordinal)

    def _adopt(self) -> None:
        """Let the first process adopt the sessions of removed pods."""
        adoption = self._copy.begin_adoption()
        if adoption is not None:
            _log.info("adopting the sessions of pods that ended", pods=adoption.members, whole=adoption.is_whole)
            self.send(0, "adopt", *adoption.with_ordinals(self._first_ordinal))

    def _show_restoring(self) -> None:
        if self._copy.is_restored:
            self._health.ready("sessions")
        else:
            self._health.not_ready("sessions", "the sessions of the pods before are not restored yet")
