"""Stand-ins for what the suite uses of threading, queue, time and random, for simulated threads."""

from __future__ import annotations

import queue as real_queue
import random as real_random
from asyncio import events
from collections import deque
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from isotherm.proofs.kernel.simulation import Process, Simulation
from isotherm.proofs.kernel.simulation import Thread as SimulatedThread

_current: list[Simulation] = []


def begin(simulation: Simulation) -> None:
    """Let all stand-ins belong to `simulation` from here on."""
    _current[:] = [simulation]


def simulation() -> Simulation:
    """Return the run to which the stand-ins belong."""
    return _current[0]


def _current_process() -> Process:
    """Return the process of the thread, or of the event loop, whose code runs. Raises RuntimeError."""
    current = simulation().current
    owner = current if current is not None else events._get_running_loop()
    process = getattr(owner, "process", None)
    if not isinstance(process, Process):
        raise RuntimeError("only a simulated thread or loop can start a thread")
    return process


class _Waiters:
    """Threads that wait until a condition holds, in the order of their arrival."""

    def __init__(self) -> None:
        self._simulation = simulation()
        self._threads: deque[SimulatedThread] = deque()

    def wait_until(self, holds: Callable[[], bool], timeout_s: float | None) -> bool:
        """Block the current thread until `holds`; False if the time was over first."""
        run = self._simulation
        deadline_ms = None if timeout_s is None else run.now_ms + timeout_s * 1000
        run.yield_turn()
        while not holds():
            left_ms = None if deadline_ms is None else deadline_ms - run.now_ms
            thread = run.current
            if (left_ms is not None and left_ms <= 0) or thread is None:
                return False
            self._threads.append(thread)
            run.wait(left_ms)
            if thread in self._threads:
                self._threads.remove(thread)
        return True

    def wake(self) -> None:
        """Let every thread look at its condition again."""
        while self._threads:
            self._simulation.wake(self._threads.popleft())


class Lock:
    """threading.Lock, and RLock with `is_reentrant`."""

    is_reentrant = False

    def __init__(self) -> None:
        self._waiters = _Waiters()
        self._owner: object | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock."""
        me = simulation().current or "the scheduler"
        if self.is_reentrant and self._owner is me:
            self._depth += 1
            return True
        timeout_s = 0.0 if not blocking else None if timeout < 0 else timeout
        if not self._waiters.wait_until(lambda: self._owner is None, timeout_s):
            return False
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._depth -= 1
        if self._depth <= 0:
            self._owner = None
            self._waiters.wake()

    def locked(self) -> bool:
        """Whether a thread has the lock."""
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """threading.RLock."""

    is_reentrant = True


class Event:
    """threading.Event."""

    def __init__(self) -> None:
        self._waiters = _Waiters()
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Wake all that wait."""
        self._is_set = True
        self._waiters.wake()

    def clear(self) -> None:
        """Let later waits wait."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set."""
        return self._waiters.wait_until(self.is_set, timeout)


class Condition:
    """threading.Condition. A wait may end without a reason, as in threading."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiters = _Waiters()
        self._notified = 0
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification."""
        before = self._notified
        self._lock.release()
        try:
            return self._waiters.wait_until(lambda: self._notified != before, timeout)
        finally:
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until the predicate holds."""
        run = simulation()
        deadline_ms = None if timeout is None else run.now_ms + timeout * 1000
        while not (found := predicate()):
            left_s = None if deadline_ms is None else (deadline_ms - run.now_ms) / 1000
            if left_s is not None and left_s <= 0:
                return found
            self.wait(left_s)
        return found

    def notify(self, _n: int = 1) -> None:
        """Wake those that wait."""
        self._notified += 1
        self._waiters.wake()

    notify_all = notify


class Semaphore:
    """threading.Semaphore."""

    def __init__(self, value: int = 1) -> None:
        self._value = value
        self._waiters = _Waiters()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take one."""
        if not self._waiters.wait_until(lambda: self._value > 0, timeout if blocking else 0.0):
            return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        """Give back."""
        self._value += n
        self._waiters.wake()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Thread:
    """threading.Thread. It runs in the process of the thread that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] = lambda: None,
        name: str = "thread",
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._call = lambda: target(*args, **(kwargs or {}))
        self._thread: SimulatedThread | None = None

    def start(self) -> None:
        """Start it."""
        process = _current_process()
        process.check()
        self._thread = process.start_thread(self._call, self.name)
        simulation().yield_turn()

    @property
    def ident(self) -> int | None:
        """A number of its own; None before its start."""
        return None if self._thread is None else id(self._thread)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread is not None and not self._thread.is_over

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        run, thread = simulation(), self._thread
        if thread is not None and not thread.is_over and run.current is not None:
            thread.waiters.append(run.current)
            run.wait(None if timeout is None else timeout * 1000)


class Queue:
    """queue.Queue and queue.SimpleQueue."""

    def __init__(self, maxsize: int = 0) -> None:
        self._most = maxsize
        self._items: deque[Any] = deque()
        self._waiters = _Waiters()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item."""
        if self._most and not self._waiters.wait_until(
            lambda: len(self._items) < self._most, timeout if block else 0.0
        ):
            raise real_queue.Full
        self._items.append(item)
        self._waiters.wake()
        simulation().yield_turn()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the oldest item."""
        if not self._waiters.wait_until(lambda: bool(self._items), timeout if block else 0.0):
            raise real_queue.Empty
        item = self._items.popleft()
        if self._most:
            self._waiters.wake()
        return item

    def get_nowait(self) -> Any:
        """Take the oldest item, or raise Empty."""
        return self.get(block=False)

    def put_nowait(self, item: Any) -> None:
        """Add an item, or raise Full."""
        self.put(item, block=False)

    def qsize(self) -> int:
        """How many items there are."""
        return len(self._items)

    def empty(self) -> bool:
        """Whether there are none."""
        return not self._items


def monotonic() -> float:
    """Return the virtual time in seconds; it is never 0, as on a machine that has run for a while."""
    return 1_000.0 + simulation().now_ms / 1000


def wall_clock() -> float:
    """Return the virtual wall clock in seconds."""
    return simulation().epoch_ms() / 1000


def sleep(seconds: float) -> None:
    """Let the current thread wait."""
    simulation().wait(seconds * 1000)


class SystemRandom(real_random.Random):
    """random.SystemRandom, but the seed decides."""

    def __init__(self) -> None:
        super().__init__(simulation().random.getrandbits(64))


threading = SimpleNamespace(
    Thread=Thread,
    Lock=Lock,
    RLock=RLock,
    Event=Event,
    Condition=Condition,
    Semaphore=Semaphore,
    BoundedSemaphore=Semaphore,
    current_thread=lambda: simulation().current,
    get_ident=lambda: id(simulation().current),
)
queue = SimpleNamespace(Queue=Queue, SimpleQueue=Queue, Empty=real_queue.Empty, Full=real_queue.Full)
time = SimpleNamespace(
    monotonic=monotonic,
    perf_counter=monotonic,
    monotonic_ns=lambda: int(monotonic() * 1e9),
    time=wall_clock,
    time_ns=lambda: int(wall_clock() * 1e9),
    sleep=sleep,
)
random = SimpleNamespace(
    Random=real_random.Random,
    SystemRandom=SystemRandom,
    choice=lambda options: simulation().random.choice(options),
    shuffle=lambda items: simulation().random.shuffle(items),
)
