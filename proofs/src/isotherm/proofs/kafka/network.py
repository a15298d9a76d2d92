"""The network between clients and brokers: requests and answers that are delayed, lost, or executed late.

One connection (a client and a broker) delivers in order. When it breaks, each request on it is lost, or is executed
later although its client has given it up, which is what a broker does with requests that it has read already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from isotherm.proofs.kafka.refusal import RefusedError
from isotherm.proofs.kafka.timers import Timers

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
    """The broker answers nobody, and executes nothing."""


@dataclass
class _Pending:
    is_over: bool = False


@dataclass
class Network:
    """Delivers requests and answers. Its faults are what a world sets in `weather`, by broker."""

    timers: Timers
    weather: dict[int, Weather] = field(default_factory=dict)
    _arrivals: dict[tuple[str, int], float] = field(default_factory=dict)

    def of(self, broker: int) -> Weather:
        """Return the weather of a broker, which the caller may change."""
        return self.weather.setdefault(broker, Weather())

    def send(self, client: str, broker: int, request: Request, answer: Answer, timeout_ms: float) -> None:
        """Send a request; `answer` gets what the broker returned, a RefusedError, or a BrokenError."""
        weather, random = self.of(broker), self.timers.random
        pending = _Pending()

        def finish(result: object) -> None:
            if not pending.is_over:
                pending.is_over = True
                cancel()
                answer(result)

        cancel = self.timers.call_later(timeout_ms, lambda: finish(BrokenError("timed out")))
        if weather.is_away or random.random() < weather.loss:
            self._break(weather, request, finish)
            return
        connection = client, broker
        arrival_ms = max(self._arrivals.get(connection, 0.0), self.timers.now_ms + random.uniform(*weather.latency_ms))
        self._arrivals[connection] = arrival_ms
        self.timers.call_later(arrival_ms - self.timers.now_ms, lambda: self._arrive(weather, request, finish))

    def _arrive(self, weather: Weather, request: Request, finish: Answer) -> None:
        def back(result: object) -> None:
            if weather.is_away or self.timers.random.random() < weather.loss:
                finish_later(BrokenError("the connection broke before the answer"))
            else:
                finish_later(result)

        def finish_later(result: object) -> None:
            self.timers.call_later(self.timers.random.uniform(*weather.latency_ms), lambda: finish(result))

        if weather.is_away:
            finish_later(BrokenError("the broker went away"))
        else:
            _execute(request, back)

    def _break(self, weather: Weather, request: Request, finish: Answer) -> None:
        random = self.timers.random
        if not weather.is_away and random.random() < 0.5:
            self.timers.call_later(random.uniform(*weather.late_ms), lambda: _execute(request, _ignore))
        delay_ms = random.uniform(*weather.latency_ms)
        if random.random() < 0.5:
            self.timers.call_later(delay_ms, lambda: finish(BrokenError("the connection broke")))


def _execute(request: Request, answer: Answer) -> None:
    try:
        request(answer)
    except RefusedError as refused:
        answer(refused)


def _ignore(_result: object) -> None:
    """Nobody waits for the answer any more."""
