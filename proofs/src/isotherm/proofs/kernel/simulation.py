"""One simulated run: its clock, its timers, its processes with their threads, and its trace."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from itertools import count

from greenlet import getcurrent, greenlet

from isotherm.proofs.kernel.garbage import collect_after

_STEP_MS = 0.001
"""How much time a turn of a thread takes, so that a thread that polls without waiting lets time pass."""
_MOST_TURNS = 100_000
"""So many turns of threads without a wait are an endless loop."""
_EPOCH_MS = 1_750_000_000_000.0
"""The wall clock at the beginning of a run, in milliseconds since 1970."""


class Killed(BaseException):
    """The thread's process was killed. It is no Exception, so that the code under test does not go on."""


class NoProgressError(Exception):
    """Threads have run for very many turns without a pause."""


class Thread:
    """A simulated thread. It runs until it waits for something; another one runs meanwhile."""

    def __init__(self, process: Process, target: Callable[[], object], name: str) -> None:
        self.process, self.name = process, name
        self.is_over = False
        self.failure: BaseException | None = None
        """What the target raised."""
        self.waiters: list[Thread] = []
        self.is_blocked = False
        self.is_woken = False
        self._target = target
        self.greenlet = greenlet(self._run, parent=process.simulation.hub)

    def _run(self) -> None:
        try:
            self._target()
        except Killed:
            pass
        except BaseException as failure:
            self.failure = failure
            if not self.process.is_dead:
                self.process.simulation.failed_threads.append(self)
            self.process.simulation.note("thread failed", self.process.name, self.name, type(failure).__name__)
        self.is_over = True
        self.process.threads.discard(self)
        for waiter in self.waiters:
            self.process.simulation.wake(waiter)


class Process:
    """Threads and timers that are killed and frozen together."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation, self.name = simulation, name
        self.is_dead = self.is_frozen = False
        self.threads: set[Thread] = set()
        self.at_kill: list[Callable[[], None]] = []
        """What is called when the process was killed: each of its event loops ends."""
        self._held: list[Callable[[], None]] = []
        """What came due while the process was frozen."""

    def start_thread(self, target: Callable[[], object], name: str) -> Thread:
        """Start a thread."""
        thread = Thread(self, target, name)
        self.threads.add(thread)
        self.simulation.make_ready(thread)
        return thread

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Callable[[], None]:
        """As `Simulation.call_later`, for a callback that runs in this process: not while it is frozen, nor killed."""
        return self.simulation.call_later(delay_ms, lambda: self.deliver(callback))

    def deliver(self, callback: Callable[[], None]) -> None:
        """Call `callback` now, when the process is thawed, or never if it is dead."""
        if self.is_frozen:
            self._held.append(callback)
        elif not self.is_dead:
            callback()

    def check(self) -> None:
        """Raise Killed if the process is dead: what it still does has no effect."""
        if self.is_dead:
            raise Killed

    def freeze(self) -> None:
        """Let nothing of the process run (SIGSTOP)."""
        self.is_frozen = not self.is_dead

    def thaw(self) -> None:
        """Let the process go on."""
        self.is_frozen = False
        held, self._held = self._held, []
        for callback in held:
            self.simulation.call_later(0.0, lambda each=callback: self.deliver(each))  # type: ignore[misc]

    def kill(self) -> None:
        """End the process at once (SIGKILL); only from outside of its threads."""
        self.is_dead, self.is_frozen = True, False
        self._held.clear()
        for thread in sorted(self.threads, key=lambda one: one.name):
            self.simulation.discard(thread)
        self.threads.clear()
        for end in self.at_kill:
            end()
        self.at_kill.clear()


class Simulation:
    """A run of one seed. Everything random in it comes from `random`."""

    def __init__(self, seed: int, *, keeps_trace: bool = False) -> None:
        """`keeps_trace`: keep the lines of the trace, not only their digest."""
        self.random = random.Random(seed)
        self.now_ms = 0.0
        self.hub = getcurrent()
        self.lines: list[str] | None = [] if keeps_trace else None
        self.preemption = self.random.choice((0.0, 0.02, 0.2))
        """Probability that a thread is interrupted at an operation that another thread could see."""
        self._digest = hashlib.sha256()
        self._timers: list[tuple[float, int, list[Callable[[], None]]]] = []
        self._numbers = count()
        self._past_timers = 0
        self._ready: list[Thread] = []
        self.current: Thread | None = None
        self.failed_threads: list[Thread] = []
        """Those that an exception has ended while their process lived."""
        self.turns = 0

    def note(self, *words: object) -> None:
        """Add a line with the time to the trace."""
        line = f"{self.now_ms:.3f} {' '.join(map(str, words))}\n"
        self._digest.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        """The hash of the trace so far."""
        return self._digest.hexdigest()[:16]

    def epoch_ms(self) -> float:
        """The wall clock."""
        return _EPOCH_MS + self.now_ms

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after `delay_ms` milliseconds outside of all threads; return what cancels this."""
        entry = [callback]
        heapq.heappush(self._timers, (self.now_ms + max(0.0, delay_ms), next(self._numbers), entry))
        return entry.clear

    def make_ready(self, thread: Thread) -> None:
        """Let the thread run when the scheduler chooses it."""
        self._ready.append(thread)

    def wake(self, thread: Thread) -> None:
        """End the wait of a thread, if it waits."""
        if thread.is_blocked:
            thread.is_blocked, thread.is_woken = False, True
            self.make_ready(thread)

    def wait(self, timeout_ms: float | None = None) -> bool:
        """Let the current thread wait until it is woken; False if the time was over first."""
        thread = self._current()
        thread.is_blocked, thread.is_woken = True, False
        cancel = None if timeout_ms is None else self.call_later(timeout_ms, lambda: self._time_out(thread))
        self._switch(thread)
        if cancel is not None:
            cancel()
        return thread.is_woken

    def yield_turn(self) -> None:
        """Let another thread run, with the probability of a preemption; nothing outside of threads."""
        thread = self.current
        if thread is None:
            return
        thread.process.check()
        if self.preemption and self.random.random() < self.preemption:
            self.make_ready(thread)
            self._switch(thread)

    def run(self, until_ms: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Run until the time `until_ms` or until `is_over`; where nothing is left to do, the time passes at once."""
        turns_here = 0
        while not is_over():
            if self._ready:
                turns_here += 1
                if turns_here > _MOST_TURNS:
                    raise NoProgressError
                self._run_one()
                self.now_ms += _STEP_MS
            if self._timers and (not self._ready or self._timers[0][0] <= self.now_ms):
                due_ms, _, entry = self._timers[0]
                if due_ms > until_ms:
                    break
                heapq.heappop(self._timers)
                self._past_timers += 1
                collect_after(self._past_timers)
                if entry:
                    turns_here = turns_here if due_ms <= self.now_ms else 0
                    self.now_ms = max(self.now_ms, due_ms)
                    entry[0]()
            elif not self._ready:
                break
        self.now_ms = max(self.now_ms, until_ms) if not is_over() else self.now_ms

    def discard(self, thread: Thread) -> None:
        """End a thread of a killed process: it unwinds, and what it does meanwhile raises Killed."""
        if thread in self._ready:
            self._ready.remove(thread)
        thread.is_blocked = False
        before, self.current = self.current, thread
        try:
            # Not for a thread that has not begun: the exception would reach the caller.
            if thread.greenlet:
                thread.greenlet.throw(Killed)
        finally:
            self.current = before

    def _current(self) -> Thread:
        if self.current is None:
            raise RuntimeError("only a simulated thread can wait")
        self.current.process.check()
        return self.current

    def _time_out(self, thread: Thread) -> None:
        if thread.is_blocked:
            thread.is_blocked = False
            self.make_ready(thread)

    def _switch(self, thread: Thread) -> None:
        self.hub.switch()
        thread.process.check()

    def _run_one(self) -> None:
        index = 0 if len(self._ready) == 1 else self.random.randrange(len(self._ready))
        thread = self._ready.pop(index)
        if thread.process.is_frozen:
            thread.process.deliver(lambda: self.make_ready(thread))
            return
        if thread.is_over or thread.process.is_dead:
            return
        self.turns += 1
        self.current = thread
        try:
            thread.greenlet.switch()
        finally:
            self.current = None
