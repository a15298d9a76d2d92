"""A deterministic asyncio event loop on virtual time, and an executor whose threads are simulated ones."""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVarTuple

from isotherm.proofs.kernel.network import Listener, Network
from isotherm.proofs.kernel.simulation import Process
from isotherm.proofs.kernel.stand_ins import monotonic

if TYPE_CHECKING:
    # It declares what no simulation needs, so that this loop is not abstract. Its attributes would be in the way.
    _Loop = asyncio.BaseEventLoop
else:
    _Loop = asyncio.AbstractEventLoop

Ts = TypeVarTuple("Ts")

_RESOLUTION_S = 1e-6
"""Timers that are due so soon are due now; the clock is a sum of floating point numbers."""
_HEARD_WITHIN_S = 5.0
"""Who waits for a task asks for its exception in one of the next turns."""


class _Future(asyncio.Future[Any]):
    """A future whose place in a set is the same in every run: asyncio.wait returns sets."""

    def __init__(self, *, loop: VirtualEventLoop) -> None:
        super().__init__(loop=loop)
        self._hash = loop.next_hash()

    def __hash__(self) -> int:
        return self._hash

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        """Fail; the loop watches whether anybody asks why."""
        super().set_exception(exception)
        loop = self.get_loop()
        assert isinstance(loop, VirtualEventLoop)
        loop.watch_failed(self)


class _Task(asyncio.Task[Any]):
    """A task whose place in a set is the same in every run."""

    def __init__(self, coro: Any, *, loop: VirtualEventLoop, name: str | None, context: Context | None) -> None:
        self._hash = loop.next_hash()
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._hash


def _is_unheard(future: asyncio.Future[Any]) -> bool:
    """Return whether a future has failed, and nobody has asked for its exception."""
    return bool(future._log_traceback)


class VirtualEventLoop(_Loop):
    """The event loop of one simulated process.

    A turn runs all callbacks that are ready, in their order, as asyncio's own loops do. A turn begins `latency_ms()`
    milliseconds after something becomes ready, so timers that are due within the latency run in one turn; those of one
    time run in an order that the seed decides. Between turns no loop is the running one, and no turn begins while the
    process is frozen.
    """

    def __init__(
        self, process: Process, network: Network, *, latency_ms: Callable[[], float] = lambda: 0.0, threads: int = 1
    ) -> None:
        """`threads`: how many calls `run_in_executor` makes at once."""
        self.failures: list[dict[str, Any]] = []
        """The contexts of exceptions that nobody handled."""
        self.process = process
        self._network = network
        self._latency_ms = latency_ms
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        self._timer_number = self._hashes = 0
        self._turn: tuple[float, Callable[[], None]] | None = None
        """When the next turn begins, and what cancels it."""
        self._readers: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._failed: list[tuple[float, asyncio.Future[Any]]] = []
        """When tasks and futures failed, until somebody asks why."""
        self._beside: list[VirtualEventLoop] = []
        self._executor = ThreadPool(process, "default", threads)
        process.at_kill.append(self._abandon)

    # -- the process

    def beside(self) -> VirtualEventLoop:
        """Return the loop of another thread of the process."""
        self._beside.append(VirtualEventLoop(self.process, self._network, latency_ms=self._latency_ms))
        return self._beside[-1]

    @property
    def is_dead(self) -> bool:
        """Whether the process was killed."""
        return self.process.is_dead

    def kill(self) -> None:
        """Kill the process, with its connections and listeners; from outside of its threads.

        Nothing that is ready runs. Every pending task is closed where it waits; what it calls then has no effect.
        """
        if self.is_dead:
            return
        # First, so that nobody ever sees an open connection of a closed loop (asyncio's streams warn of it).
        self._network.close_all(self)
        self.process.kill()

    def _abandon(self) -> None:
        self._ready.clear()
        self._timers.clear()
        self._readers.clear()
        if self._turn is not None:
            self._turn[1]()
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            # The garbage collector would close the coroutine at a time of its own.
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio.gather does
            # It is the one that kills its process, or waits for something in its `finally`.
            with suppress(RuntimeError, ValueError):
                coroutine: Any = task.get_coro()
                coroutine.close()

    # -- callbacks

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return monotonic()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run `callback` in the next turn."""
        handle = asyncio.Handle(callback, args, self, context)
        if self.is_dead:
            handle.cancel()
            return handle
        self._ready.append(handle)
        if len(self._ready) == 1:
            self._plan(self.time())
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run `callback` in `delay` seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run `callback` at the time `when`."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if self.is_dead:
            handle.cancel()
            return handle
        self._timer_number += 1
        tie_break = self.process.simulation.random.random()
        heapq.heappush(self._timers, (when, tie_break, self._timer_number, handle))
        if self._timers[0][3] is handle:
            self._plan(when)
        return handle

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """Do nothing: a turn drops the cancelled timers that are due. asyncio's handles call this method."""

    def _plan(self, when_s: float) -> None:
        """Let a turn begin soon after `when_s`, unless an earlier one will begin."""
        if self._turn is not None:
            if self._turn[0] <= when_s:
                return
            self._turn[1]()
        delay_ms = 1000 * max(0.0, when_s - self.time()) + self._latency_ms()
        self._turn = when_s, self.process.call_later(delay_ms, self._run_turn)

    def _run_turn(self) -> None:
        self._turn = None
        ready, timers, now_s = self._ready, self._timers, self.time() + _RESOLUTION_S
        while timers and timers[0][0] <= now_s:
            timer = heapq.heappop(timers)[3]
            if not timer.cancelled():
                ready.append(timer)
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
                if self.is_dead:
                    return
        finally:
            events._set_running_loop(None)
        while timers and timers[0][3].cancelled():
            heapq.heappop(timers)
        if ready:
            self._plan(self.time())
        elif timers:
            self._plan(timers[0][0])

    # -- tasks and executors

    def next_hash(self) -> int:
        """Return the hash of a new future: the number of those before."""
        self._hashes += 1
        return self._hashes

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return _Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        """Run a coroutine in this loop."""
        if self.is_dead:
            coro.close()
            raise RuntimeError("the process is dead")
        task: asyncio.Task[Any] = _Task(coro, loop=self, name=None if name is None else str(name), context=context)
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if _is_unheard(task):
            self.watch_failed(task)

    def watch_failed(self, future: asyncio.Future[Any]) -> None:
        """Remember a future that has failed.

        asyncio reports an exception that nobody has asked for when the future is collected as garbage, so at a time
        that depends on more than the seed.
        """
        self._failed = [one for one in self._failed if _is_unheard(one[1])]
        self._failed.append((self.time(), future))

    def unheard_failures(self) -> list[str]:
        """Return the unhandled exceptions of the process's loops, and those that nobody has asked for in a while."""
        late_s = self.time() - _HEARD_WITHIN_S
        found = [f"{one.get('message')}: {one.get('exception')!r}" for one in self.failures]
        for failed_s, future in self._failed:
            if failed_s <= late_s and _is_unheard(future):
                name = future.get_name() if isinstance(future, asyncio.Task) else "a future"
                found.append(f"nobody asks for the exception of {name}: {future._exception!r}")
        return found + [text for loop in self._beside for text in loop.unheard_failures()]

    def run_in_executor(  # type: ignore[override]  # typeshed types the arguments as a TypeVarTuple
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run `func` in an executor, which calls back at a virtual time."""
        return asyncio.wrap_future((executor or self._executor).submit(func, *args), loop=self)

    # -- input and output

    async def create_server(  # type: ignore[override]  # only what a simulation needs
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_options: Any
    ) -> Listener:
        """Listen on a port of the model network. Several processes may listen on one port."""
        return self._network.listen(self, port, protocol_factory)

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        """Run `callback` when `signal` is called for the model descriptor `fd`."""
        self._readers[fd] = callback, args

    def remove_reader(self, fd: Any) -> bool:
        """Watch the model descriptor no more."""
        return self._readers.pop(fd, None) is not None

    def signal(self, fd: int) -> None:
        """Make the model descriptor `fd` readable once."""
        if fd in self._readers:
            self.call_soon(self._read, fd)

    def _read(self, fd: int) -> None:
        if fd in self._readers:
            callback, args = self._readers[fd]
            callback(*args)

    # -- the rest of a loop

    def is_running(self) -> bool:
        """Return whether this is the loop whose turn runs."""
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        """Return whether the loop was killed."""
        return self.is_dead

    def get_debug(self) -> bool:
        """Return False: asyncio's debug mode reads the real clock."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an exception that nobody handled."""
        if not self.is_dead:
            self.failures.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an exception that nobody handled."""
        self.call_exception_handler(context)


class ThreadPool(Executor):
    """concurrent.futures.ThreadPoolExecutor; the process starts a thread for each call, so many at once."""

    def __init__(self, process: Process, name: str, threads: int = 1) -> None:
        self._process, self._name, self._idle = process, name, threads
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._calls = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn` in the thread, after the calls before."""
        future: Future[Any] = Future()
        if not self._process.is_dead:
            self._waiting.append((future, lambda: fn(*args, **kwargs)))
            self._start_next()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: an idle pool has no thread."""

    def _start_next(self) -> None:
        if self._waiting and self._idle:
            self._idle -= 1
            self._calls += 1
            future, call = self._waiting.popleft()
            self._process.start_thread(lambda: self._run(future, call), f"{self._name} {self._calls}")

    def _run(self, future: Future[Any], call: Callable[[], Any]) -> None:
        if future.set_running_or_notify_cancel():
            try:
                result = call()
            except Exception as failure:
                future.set_exception(failure)
            else:
                future.set_result(result)
        self._idle += 1
        self._start_next()
