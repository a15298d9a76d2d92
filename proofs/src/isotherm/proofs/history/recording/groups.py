"""Records the offsets that groups commit, over time, with the counts in their metadata."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException

from isotherm.proofs.history.recording.history_file import HistoryFile
from isotherm.servicekit.kafka.group_offsets import committed_offsets

_REQUEST_TIMEOUT_S = 10.0
_ASKS_ONLY = {"enable.auto.commit": False, "isolation.level": "read_uncommitted", "log_level": 0}
_QUIET_SAMPLES = 3
"""So many samples without news in a row are the end: tasks commit within seconds after they have written."""
_MOST_LAST_SAMPLES = 60
_COUNTS = ("read", "written", "dead_lettered", "filtered", "skipped")


class OffsetSampler:
    """Asks for the offsets of groups at an interval; `write` gives what it saw."""

    def __init__(self, kafka: Mapping[str, Any], groups: Collection[str], interval_s: float = 2.0) -> None:
        self._consumers = {group: Consumer({**kafka, **_ASKS_ONLY, "group.id": group}) for group in sorted(groups)}
        """One a group, which never joins it: it knows its coordinator from question to question."""
        self._interval_s = interval_s
        self._seen: dict[tuple[str, str, int], list[tuple[int, int, str]]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offsets", daemon=True)

    def start(self) -> None:
        """Begin to ask, on a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask until nothing changes any more, and close the connections."""
        self._stopped.set()
        self._thread.join()
        try:
            self._sample_until_quiet()
        finally:
            for consumer in self._consumers.values():
                consumer.close()

    def _sample_until_quiet(self) -> None:
        quiet = 0
        for _ in range(_MOST_LAST_SAMPLES):
            quiet = 0 if self.sample() else quiet + 1
            if quiet == _QUIET_SAMPLES:
                return
            time.sleep(self._interval_s)

    def sample(self) -> bool:
        """Ask once; return whether there is news. An answer that does not come is left out, and counts as news."""
        has_news = False
        for group, consumer in self._consumers.items():
            try:
                positions = committed_offsets(consumer, timeout_s=_REQUEST_TIMEOUT_S)
            except KafkaException:  # during an outage there is no answer; the next sample has it
                has_news = True
                continue
            now_ms = time.time_ns() // 1_000_000
            for position in positions:
                seen = self._seen.setdefault((group, position.topic, position.partition), [])
                if not seen or seen[-1][1] != position.offset:
                    seen.append((now_ms, position.offset, position.metadata or ""))
                    has_news = True
        return has_news

    def write(self, history: HistoryFile) -> None:
        """Write every change of an offset."""
        for (group, topic, partition), commits in self._seen.items():
            for time_ms, offset, metadata in commits:
                place = {"group": group, "topic": topic, "partition": partition}
                history.write("offset", **place, time=time_ms, offset=offset, counts=counts_of(metadata))

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self.sample()


def counts_of(metadata: str) -> dict[str, int] | None:
    """Return the counts in an offset's metadata (ADR 42); None if it has none."""
    try:
        document = json.loads(metadata)
        counts = {name: document.get(name, 0) for name in _COUNTS}
    except (ValueError, AttributeError):
        return None
    return {name: sum(of.values()) if isinstance(of, dict) else of for name, of in counts.items()}
