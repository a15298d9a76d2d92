"""The network between clients and brokers: requests and answers that are delayed, lost, or executed late.

One connection (a client and a broker) delivers in order. When it breaks, all of its requests have an unknown outcome:
each is lost, or is executed later, which is what a broker does with requests that it has read already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from isotherm.proofs.kafka.refusal import RefusedError
from isotherm.proofs.kafka.timers import Cancel, Timers

Answer = Callable[[object], None]
Request = Callable[[Answer], None]
"""Executes the request at the broker. It calls the answer once, now or later, or raises RefusedError."""


def acknowledged(call: Callable[[], None]) -> Request:
    """Return the request that calls `call` and is answered with None."""

    def request(answer: Answer) -> None:
        call()
        answer(None)

    return request


class BrokenError(Exception):
    """The connection broke, or the broker did not answer in time: nobody knows whether the request was executed."""


@dataclass
class Weather:
    """How the network is for one broker."""

    latency_ms: tuple[float, float] = (0.3, 3.0)
    loss: float = 0.0
    """Probability that a request breaks its connection."""
    late_ms: tuple[float, float] = (0.0, 3_000.0)
    """When a lost request is executed after all, if it is."""
    is_away: bool = False
    """The broker refuses connections."""
    is_frozen: bool = False
    """The broker answers nothing, and executes later what it got."""


@dataclass(eq=False)
class _Pending:
    """A request without an answer."""

    request: Request
    answer: Answer
    cancel_timeout: Cancel = lambda: None
    is_over: bool = False
    """The client has an answer, or its connection broke."""
    is_executed: bool = False


@dataclass(eq=False)
class _Link:
    """The connection of a client and a broker."""

    host: str
    weather: Weather
    pending: list[_Pending] = field(default_factory=list)
    next_arrival_ms: float = 0.0


@dataclass
class Network:
    """Delivers requests and answers. Its faults are what a world sets in `weather`, by broker, and in `cut_off`."""

    timers: Timers
    weather: dict[int, Weather] = field(default_factory=dict)
    cut_off: set[str] = field(default_factory=set)
    """Processes whose packets do not arrive: they are sent again and again, as TCP does."""
    is_late: bool = False
    """Whether the request that is being executed is one that its client has given up."""
    _links: dict[tuple[str, int], _Link] = field(default_factory=dict)

    def of(self, broker: int) -> Weather:
        """Return the weather of a broker, which the caller may change."""
        return self.weather.setdefault(broker, Weather())

    def send(self, client: str, broker: int, request: Request, answer: Answer, timeout_ms: float) -> None:
        """Send a request; `answer` gets what the broker returned, a RefusedError, or a BrokenError.

        A request that times out breaks its connection. `client` begins with the name of its process and a slash.
        """
        weather, timers = self.of(broker), self.timers
        link = self._links.get((client, broker))
        if link is None:
            link = self._links[client, broker] = _Link(client.partition("/")[0], weather)
        pending = _Pending(request, answer)
        link.pending.append(pending)

        pending.cancel_timeout = timers.call_later(timeout_ms, lambda: self._break(link, pending))
        if timers.random.random() < weather.loss:
            timers.call_later(timers.random.uniform(*weather.latency_ms), lambda: self._break(link))
            return
        link.next_arrival_ms = max(link.next_arrival_ms, timers.now_ms + timers.random.uniform(*weather.latency_ms))
        timers.call_later(link.next_arrival_ms - timers.now_ms, lambda: self._deliver(link, pending))

    def _is_silent(self, link: _Link) -> bool:
        return link.host in self.cut_off or link.weather.is_frozen

    def _deliver(self, link: _Link, pending: _Pending) -> None:
        if pending.is_over:
            return
        if self._is_silent(link):
            self._again_later(lambda: self._deliver(link, pending))
        elif link.weather.is_away:
            self._break(link)
        else:
            pending.is_executed = True
            _execute(pending.request, lambda result: self._send_back(link, pending, result))

    def _send_back(self, link: _Link, pending: _Pending, result: object) -> None:
        weather, timers = link.weather, self.timers
        if pending.is_over:
            return
        if self._is_silent(link):
            self._again_later(lambda: self._send_back(link, pending, result))
        elif weather.is_away or timers.random.random() < weather.loss:
            self._break(link)
        else:
            delay_ms = timers.random.uniform(*weather.latency_ms)
            timers.call_later(delay_ms, lambda: self._finish(link, pending, result))

    def _again_later(self, callback: Callable[[], None]) -> None:
        self.timers.call_later(self.timers.random.uniform(300.0, 1_500.0), callback)

    def _break(self, link: _Link, timed_out: _Pending | None = None) -> None:
        """Break a connection: nobody knows what became of its requests. A broker may execute one that it has read."""
        random = self.timers.random
        for pending in sorted(link.pending, key=lambda one: one is not timed_out):
            if not pending.is_executed and not link.weather.is_away and random.random() < 0.5:
                self._execute_late(link, pending.request, random.uniform(*link.weather.late_ms))
            what = "timed out" if pending is timed_out else "the connection broke"
            self._finish(link, pending, BrokenError(what))

    def _execute_late(self, link: _Link, request: Request, delay_ms: float) -> None:
        def execute() -> None:
            if link.weather.is_frozen:
                # A broker reads what its socket got, also when it goes on long after the connection has ended.
                self._again_later(execute)
                return
            self.is_late = True
            try:
                _execute(request, _ignore)
            finally:
                self.is_late = False

        # What did not reach the broker before its connection broke never does.
        if link.host not in self.cut_off:
            self.timers.call_later(delay_ms, execute)

    @staticmethod
    def _finish(link: _Link, pending: _Pending, result: object) -> None:
        if not pending.is_over:
            pending.is_over = True
            pending.cancel_timeout()
            link.pending.remove(pending)
            pending.answer(result)


def _execute(request: Request, answer: Answer) -> None:
    try:
        request(answer)
    except RefusedError as refused:
        answer(refused)


def _ignore(_result: object) -> None:
    """Nobody waits for the answer any more."""
