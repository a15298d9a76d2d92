"""Silence is what the sockets show, also when the event loop is late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from isotherm.mqtt_proxy.server.keep_alive import KeepAlive


class Timers:
    """The clock and the timers of an event loop; the test says when the due ones run."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.now_s + delay_s, callback, (), cast(Any, self))
        self._timers.append(handle)
        return handle

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """Nothing: a cancelled timer does not run."""

    def run_due(self) -> None:
        """Run the timers that are due now. One that they start is due later."""
        due = [timer for timer in self._timers if timer.when() <= self.now_s]
        self._timers = [timer for timer in self._timers if timer.when() > self.now_s]
        for timer in due:
            if not timer.cancelled():
                timer._run()

    def run_until(self, end_s: float) -> None:
        """Let the time pass with a loop that is never late."""
        while self._timers and (next_s := min(timer.when() for timer in self._timers)) <= end_s:
            self.now_s = max(self.now_s, next_s)
            self.run_due()
        self.now_s = end_s


class Watched:
    def __init__(self, keep_alive_s: int = 2) -> None:
        self.loop = Timers()
        self.is_reading = True
        self.silences: list[float] = []
        self.keep_alive = KeepAlive(cast(Any, self.loop), lambda: self.is_reading, self.silences.append)
        self.keep_alive.start(keep_alive_s)

    def packet(self) -> None:
        self.keep_alive.last_packet_s = self.loop.time()


def test_silence_ends_after_one_and_a_half_times_the_keep_alive() -> None:
    watched = Watched()
    watched.loop.run_until(101.0)
    watched.packet()
    watched.loop.run_until(103.99)
    assert watched.silences == []
    watched.loop.run_until(104.01)
    assert watched.silences == [3.0]


def test_a_packet_that_waits_in_its_socket_is_read_before_silence_is_established() -> None:
    """As with uvloop: a callback ends at 103.5, the timers come next, and the PINGREQ of 102.0 is read after them."""
    watched = Watched()
    watched.loop.now_s = 103.5
    watched.loop.run_due()
    watched.packet()
    watched.loop.run_until(106.49)
    assert watched.silences == []
    watched.loop.run_until(106.51)
    assert watched.silences == [3.0]


def test_a_late_loop_does_not_hide_silence() -> None:
    watched = Watched()
    for now_s in (103.5, 103.6):
        assert watched.silences == []
        watched.loop.now_s = now_s
        watched.loop.run_due()
    assert watched.silences == [3.0]


def test_each_silence_is_looked_at_twice() -> None:
    """A first look that a packet has answered is not the first look of the next silence."""
    watched = Watched()
    watched.loop.now_s = 103.5
    watched.loop.run_due()
    watched.packet()
    watched.loop.now_s = 103.6
    watched.loop.run_due()
    watched.loop.now_s = 107.0
    watched.loop.run_due()
    assert watched.silences == []
    watched.packet()
    watched.loop.run_until(109.9)
    assert watched.silences == []


def test_no_silence_counts_while_the_server_does_not_read() -> None:
    watched = Watched()
    watched.is_reading = False
    watched.loop.run_until(120.0)
    assert watched.silences == []
    watched.is_reading = True
    watched.packet()
    watched.loop.run_until(122.9)
    assert watched.silences == []
    watched.loop.run_until(123.1)
    assert watched.silences == [3.0]


@pytest.mark.parametrize("keep_alive_s", [0, 2])
def test_nothing_is_watched_without_a_keep_alive_or_after_the_end(keep_alive_s: int) -> None:
    watched = Watched(keep_alive_s)
    watched.keep_alive.cancel()
    watched.loop.run_until(200.0)
    assert watched.silences == []
