"""One measurement of a running demo: everything between two times, and what is only known a while after."""

from __future__ import annotations

import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field

from alert_delay import AlertProbe
from broker_requests import BrokerRequests, NotAttachedError
from consumer_lag import Lag, LagMeter
from observed_demo import LedgerTail, ObservedDemo
from process_usage import Machine, ProcessSample, Usage, machine, proportional_bytes, sample, usage
from window_delay import GIVE_UP_S, Delays, WindowTimes, WindowWatch
from window_stores import WindowStores

NOT_BALANCED = "-"
"""No reconciliation report was made."""
_SETTLE_S = 5.0
"""From the start of the observers until the measurement begins."""


@dataclass(frozen=True)
class Durations:
    """Seconds of each phase."""

    warm_up_s: float
    measured_s: float
    request_log_s: float
    """How long Kafka logs every request, after the measurement."""
    lag_every_s: float
    """In a long measurement the consumers' lag is looked at so often."""


@dataclass
class Measured:
    """What was measured of one stage."""

    seconds: float = 0.0
    usages: list[Usage] = field(default_factory=list)
    busy_s: float = 0.0
    switches: int = 0
    starts: int = 0
    events: Counter[str] = field(default_factory=Counter)
    """Of the simulators' ledgers."""
    requests: Counter[str] = field(default_factory=Counter)
    """By kind."""
    requests_logged_s: float = 0.0
    requests_by_client: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By client and kind, of the seconds of the request log."""
    lags: list[dict[str, Lag]] = field(default_factory=list)
    """Of every consumer: first, last, and those in between."""
    delays: Mapping[str, Delays] = field(default_factory=dict)
    alert_ms: array[float] = field(default_factory=lambda: array("d"))
    alerts_missing: int = 0
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """Proportional set size by process label."""
    balance: str = NOT_BALANCED


@dataclass(frozen=True)
class _Reading:
    """The counters at one time."""

    at_s: float
    samples: list[ProcessSample]
    machine: Machine
    requests: Counter[str]


def measure(
    demo: ObservedDemo, durations: Durations, *, is_loaded: bool, check: Callable[[], None] = lambda: None
) -> Measured:
    """Warm up, measure, and wait for the last windows; `check` is called every second and may raise.

    A system at rest (`is_loaded` false) is asked for no window and gets no reading from here.
    """
    result = Measured()
    with ExitStack() as opened:
        requests = _attach(demo, opened)
        lag_meter = opened.enter_context(closing(LagMeter(demo.addresses.kafka)))
        _wait(durations.warm_up_s, check)
        with _observed(demo, durations, opened, result, is_loaded=is_loaded) as wait_for_windows:
            result.lags.append(_lags(demo, lag_meter))
            ledgers = LedgerTail(demo.ledgers())
            begin = _read(demo, requests)
            left_s = durations.measured_s
            while left_s > durations.lag_every_s:
                _wait(durations.lag_every_s, check)
                result.lags.append(_lags(demo, lag_meter))
                left_s = durations.measured_s - (time.monotonic() - begin.at_s)
            _wait(left_s, check)
            end = _read(demo, requests)
            result.events = ledgers.count()
            result.lags.append(_lags(demo, lag_meter))
            _compare(begin, end, result)
            result.memory_bytes = _memory(result.usages)
            wait_for_windows(check)
        if requests is not None:
            result.requests_by_client = requests.by_client(demo.kafka_log, durations.request_log_s)
            result.requests_logged_s = durations.request_log_s
    return result


def _attach(demo: ObservedDemo, opened: ExitStack) -> BrokerRequests | None:
    try:
        return opened.enter_context(BrokerRequests(demo.parts()["kafka"]))
    except NotAttachedError as error:
        sys.stderr.write(f"Kafka's requests are not counted: {error}\n")
        return None


@contextmanager
def _observed(
    demo: ObservedDemo, durations: Durations, opened: ExitStack, result: Measured, *, is_loaded: bool
) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Watch windows and alerts of a system under load; yields what waits until the last windows are seen."""
    if not is_loaded:
        yield lambda _check: None
        return
    stores = opened.enter_context(WindowStores(demo.addresses))
    probe = AlertProbe(demo.addresses, demo.mqtt_port)
    probe.start()
    time.sleep(_SETTLE_S)
    from_ms = time.time_ns() // 1_000_000
    until_ms = from_ms + round(durations.measured_s * 1_000)
    watch = WindowWatch(stores, demo.sampled_devices(), WindowTimes.read(demo.settings), from_ms, until_ms)
    watch.start()

    def wait_for_windows(check: Callable[[], None]) -> None:
        deadline = time.monotonic() + GIVE_UP_S + _SETTLE_S
        while watch.is_alive() and time.monotonic() < deadline:
            _wait(1.0, check)
        for store, error in watch.errors.items():
            sys.stderr.write(f"{store} could not answer at times, the last time: {error!r}\n")
        result.delays = watch.delays

    try:
        yield wait_for_windows
    finally:
        probe.stop()
        watch.stop()
        watch.join()
        result.alert_ms, result.alerts_missing = probe.delays_ms, probe.missing


def _wait(seconds: float, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while (left_s := deadline - time.monotonic()) > 0:
        check()
        pause.wait(min(1.0, left_s))


def _read(demo: ObservedDemo, requests: BrokerRequests | None) -> _Reading:
    counts = Counter[str]() if requests is None else requests.counts()
    return _Reading(time.monotonic(), sample(demo.parts()), machine(), counts)


def _compare(begin: _Reading, end: _Reading, result: Measured) -> None:
    result.seconds = end.at_s - begin.at_s
    result.usages = usage(begin.samples, end.samples)
    result.busy_s = end.machine.busy_s - begin.machine.busy_s
    result.switches = end.machine.switches - begin.machine.switches
    result.starts = end.machine.starts - begin.machine.starts
    result.requests = end.requests - begin.requests


def _lags(demo: ObservedDemo, meter: LagMeter) -> dict[str, Lag]:
    return meter.of_groups() | meter.of_aggregator(demo.aggregator_metrics())


def _memory(usages: list[Usage]) -> dict[str, int]:
    """The memory of each process by its label."""
    found: dict[str, int] = {}
    for one in usages:
        with suppress(OSError):
            found[one.label] = proportional_bytes(one.pid)
    return found
