"""Follows the topics of a connector with `topics.regex` in a thread: topics are created and deleted while it runs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Sequence

from confluent_kafka import KafkaException

from isotherm.connector.config.topic_patterns import matching
from isotherm.servicekit import logs

_log = logs.logger(__name__)

_INTERVAL_S = 10.0
"""A new topic is read within 30 s: this interval and a rebalance."""
_RETRY_S = 1.0
_JOIN_S = 2.0


class MatchingTopics:
    """Knows which topics match the pattern now."""

    def __init__(
        self,
        pattern: str,
        list_topics: Callable[[], Iterable[str]],
        excluded: Collection[str] = (),
        interval_s: float = _INTERVAL_S,
    ) -> None:
        """Take the pattern.

        Args:
            pattern: the regular expression of `topics.regex`.
            list_topics: returns all topics; it may block, and may raise KafkaException.
            excluded: topics that never match.
            interval_s: seconds between two queries.
        """
        self.pattern = pattern
        self.topics: Sequence[str] = ()
        """The topics of the last successful query."""
        self.error: str | None = None
        """Why the last query failed; None if it did not."""
        self._list_topics = list_topics
        self._excluded = excluded
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topics", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join(_JOIN_S)

    def query(self) -> None:
        """Ask once which topics there are."""
        try:
            found = matching(self.pattern, self._list_topics(), self._excluded)
        except (KafkaException, re.error) as error:
            self.error = str(error)
            return
        self.error = None
        if found != self.topics:
            _log.info("topics of the pattern", pattern=self.pattern, topics=found)
            self.topics = found

    def _run(self) -> None:
        while not self._ended.is_set():
            self.query()
            self._ended.wait(self._interval_s if self.topics else _RETRY_S)
