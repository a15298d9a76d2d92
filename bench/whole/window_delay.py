"""How soon after it became final each window of some devices can be read from each store.

A window is final when no reading for it can come any more: allowed lateness, clock skew and publish delay after its
end, by the wall clock. From then on every store is asked for it, several times a second, until it has it.
"""

from __future__ import annotations

import threading
import time
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

POLL_S = 0.25
"""The pause between two questions: a delay is known this exactly."""
GIVE_UP_S = 60.0
METRIC = "temperature"
_FORMER_PUBLISH_DELAY = "read_slack_ms"
"""The name of `max_publish_delay_ms` in the files of revisions before 0.9, which can be measured from outside."""


class Store(Protocol):
    """A store that is asked for windows."""

    @property
    def name(self) -> str:
        """For the table."""

    def present(self, begin_ms: int, end_ms: int, devices: Collection[str]) -> set[str]:
        """The devices among these of which a reader finds the window."""


@dataclass(frozen=True)
class WindowTimes:
    """The aggregator's settings that say when a window is final."""

    window_ms: int
    final_after_ms: int
    """From the window's end."""

    @classmethod
    def read(cls, path: Path) -> WindowTimes:
        """Read an aggregator's file of settings. Raises KeyError if it leaves one of these to the default."""
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
        publish_delay = "max_publish_delay_ms" if "max_publish_delay_ms" in settings else _FORMER_PUBLISH_DELAY
        final_after_ms = sum(settings[name] for name in ("allowed_lateness_ms", "max_skew_ms", publish_delay))
        return cls(settings["window_ms"], final_after_ms)

    def ends(self, from_ms: int, until_ms: int) -> list[int]:
        """The ends of the windows that become final from one time to another."""
        first_ms, last_ms = from_ms - self.final_after_ms, until_ms - self.final_after_ms
        return list(range(-(-first_ms // self.window_ms) * self.window_ms, last_ms, self.window_ms))


@dataclass
class Delays:
    """What was seen of one store."""

    found_ms: list[int] = field(default_factory=list)
    """Milliseconds from final to found."""
    missing: int = 0
    """Windows of a device that were not found within `GIVE_UP_S`."""

    def percentile_s(self, share: float) -> float:
        """The delay that so many did not exceed; infinite for one that was not found."""
        ordered = [*sorted(self.found_ms), *[float("inf")] * self.missing]
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1_000 if ordered else float("nan")


class ExpectedWindows:
    """The windows that are still to be found, by store. Pure: the caller asks the stores and knows the time."""

    def __init__(self, times: WindowTimes, ends: Sequence[int], stores: Sequence[str], devices: Sequence[str]) -> None:
        self._times = times
        self._missing = {(end, store): set(devices) for end in ends for store in stores}
        self._delays: dict[str, Delays] = {store: Delays() for store in stores}

    def due(self, now_ms: int) -> list[tuple[int, str, set[str]]]:
        """The end of each window that is final, with the store and the devices that it lacks; drops those given up."""
        for (end, store), devices in list(self._missing.items()):
            if now_ms - self._final_ms(end) > GIVE_UP_S * 1_000:
                self._delays[store].missing += len(devices)
                del self._missing[end, store]
        return [
            (end, store, set(devices))
            for (end, store), devices in self._missing.items()
            if self._final_ms(end) <= now_ms
        ]

    def found(self, end: int, store: str, devices: Collection[str], now_ms: int) -> None:
        """Note that the store has the windows of these devices."""
        missing = self._missing[end, store]
        self._delays[store].found_ms += [now_ms - self._final_ms(end)] * len(missing & set(devices))
        missing -= set(devices)
        if not missing:
            del self._missing[end, store]

    def next_ms(self) -> int | None:
        """When the next window becomes final; None if none is to be found any more."""
        return min((self._final_ms(end) for end, _ in self._missing), default=None)

    @property
    def delays(self) -> Mapping[str, Delays]:
        """What was seen so far, by store."""
        return self._delays

    def _final_ms(self, end: int) -> int:
        return end + self._times.final_after_ms


class WindowWatch(threading.Thread):
    """Asks the stores until every window is found or given up; `delays` holds the result after `join`."""

    def __init__(
        self,
        stores: Sequence[Store],
        devices: Sequence[str],
        times: WindowTimes,
        from_ms: int,
        until_ms: int,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__(name="window-watch", daemon=True)
        self._stores = {store.name: store for store in stores}
        self._times = times
        self._clock_ms = clock_ms
        self._expected = ExpectedWindows(times, times.ends(from_ms, until_ms), list(self._stores), devices)
        self._stopped = threading.Event()
        self.errors: dict[str, Exception] = {}
        """The last error of each store that could not answer a question; it was asked again."""

    @property
    def delays(self) -> Mapping[str, Delays]:
        """What was seen, by store."""
        return self._expected.delays

    def stop(self) -> None:
        """End without waiting for what is not found yet."""
        self._stopped.set()

    def run(self) -> None:
        """Ask until nothing is expected; while a store cannot answer, nothing is found in it."""
        while not self._stopped.is_set() and (next_ms := self._expected.next_ms()) is not None:
            self._ask()
            self._stopped.wait(max(POLL_S, (next_ms - self._clock_ms()) / 1_000))

    def _ask(self) -> None:
        for end, store, devices in self._expected.due(self._clock_ms()):
            if found := self._present(store, end, devices):
                self._expected.found(end, store, found, self._clock_ms())

    def _present(self, store: str, end: int, devices: Collection[str]) -> set[str]:
        try:
            return self._stores[store].present(end - self._times.window_ms, end, devices)
        except Exception as error:
            # A table or an index that is just being made answers with errors of many kinds.
            self.errors[store] = error
            return set()
