"""The lifecycle of a service process: start, signals, drain within a deadline, exit code."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

from isotherm.servicekit import logs
from isotherm.servicekit.exit_codes import Exit as Exit

_log = logs.logger(__name__)


class Stop:
    """The request to stop, for threads (`wait`, `is_set`) and for one event loop (`wait_async`)."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._async_event: asyncio.Event | None = None

    def set(self) -> None:
        """Request the stop; may be called from any thread and from a signal handler."""
        self._event.set()
        if self._loop is not None and self._async_event is not None:
            self._loop.call_soon_threadsafe(self._async_event.set)
        for callback in tuple(self._callbacks):
            callback()

    def on_set(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the stop is requested, or now if it was; return a function that takes this back.

        It is called where `set` is: it must not block, and may be called twice.
        """
        self._callbacks.append(callback)
        if self._event.is_set():
            callback()
        return lambda: self._callbacks.remove(callback)

    def is_set(self) -> bool:
        """Whether the stop was requested."""
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the stop is requested or the time is over; True when it was requested."""
        return self._event.wait(timeout_s)

    async def wait_async(self) -> None:
        """Return when the stop is requested."""
        if self._async_event is None:
            self._loop, self._async_event = asyncio.get_running_loop(), asyncio.Event()
            if self._event.is_set():
                self._async_event.set()
        await self._async_event.wait()


class LoopEvent:
    """An event of the running event loop that any thread may set, for one coroutine that waits for the next change."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the coroutine that waits, or let the next `wait` return at once."""
        # A thread may set the event while the loop is being closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        """Return when the event was set since the last `wait`."""
        await self._event.wait()
        self._event.clear()


def collect_rarely(new_objects: int = 100_000) -> None:
    """Run the garbage collector only after `new_objects` new containers, and never over the program's own objects.

    For services whose records hold no cycles: the collector finds nothing in them, but walks all waiting records again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(new_objects, 20, 20)


def run(main: Callable[[Stop], int], *, shutdown_timeout_ms: int, end_others: Callable[[], None] | None = None) -> int:
    """Run `main` in the main thread until it returns; SIGTERM and SIGINT set its `Stop`.

    When the process has not ended `shutdown_timeout_ms` after the stop, whoever has requested it, or on a second
    signal, it ends at once with Exit.DEADLINE: every service recovers from an unclean end, but nothing recovers a
    hanging process. `end_others` is called before it does so at the deadline: it ends the processes that would hang on.
    """
    stop = Stop()
    deadlines: list[threading.Timer] = []
    is_over = False

    def end_overdue() -> None:
        # A main thread that lives on after `main` does something else; one that does not waits for other threads.
        if not (is_over and threading.main_thread().is_alive()):
            _end_overdue(end_others)

    def begin_deadline() -> None:
        if not deadlines:
            overdue = threading.Timer(shutdown_timeout_ms / 1000, end_overdue)
            deadlines.append(overdue)
            overdue.daemon = True
            overdue.start()

    def on_signal(_number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(Exit.DEADLINE)
        # No logging here: the signal may have interrupted the owner of the logging lock.
        stop.set()

    stop.on_set(begin_deadline)

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return main(stop)
    finally:
        is_over = True
        for number, handler in previous.items():
            signal.signal(number, handler)


def run_async(
    main: Callable[[Stop], Awaitable[int]],
    *,
    shutdown_timeout_ms: int,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int:
    """As `run`, for a coroutine function; `loop_factory` may be uvloop's."""

    async def started(stop: Stop) -> int:
        return await main(stop)

    def threaded(stop: Stop) -> int:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            # The handlers that `run` installed before stay in place, because they know the deadline.
            return runner.run(started(stop))

    return run(threaded, shutdown_timeout_ms=shutdown_timeout_ms)


def _end_overdue(end_others: Callable[[], None] | None) -> None:
    _log.error("not drained within the deadline, ending now")
    # Nothing else tells afterwards what the service was waiting for.
    faulthandler.dump_traceback(all_threads=True)
    try:
        if end_others is not None:
            end_others()
    finally:
        os._exit(Exit.DEADLINE)
