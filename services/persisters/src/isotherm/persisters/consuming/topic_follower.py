"""The topics of a connector with `topics.regex`, followed in a thread: topics come and go while a task runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence

from confluent_kafka import KafkaException

from isotherm.connector.config.topic_patterns import matching
from isotherm.servicekit import logs

_log = logs.logger(__name__)

_INTERVAL_S = 10.0
"""A new topic is read within 30 s: this long until it is seen, and a rebalance."""
_RETRY_S = 1.0
_JOIN_S = 2.0


class TopicFollower:
    """Knows which topics the pattern means by now."""

    def __init__(
        self,
        pattern: str,
        list_topics: Callable[[], Iterable[str]],
        excluded: Collection[str] = (),
        interval_s: float = _INTERVAL_S,
    ) -> None:
        """`list_topics` may take its time, and may raise KafkaException; `excluded` are never meant."""
        self.pattern = pattern
        self.topics: Sequence[str] = ()
        """As they were last seen; a Kafka that does not answer changes nothing."""
        self.trouble: str | None = None
        """Why it is not known which topics there are."""
        self._list_topics = list_topics
        self._excluded = excluded
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topics", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Follow no more."""
        self._ended.set()
        self._thread.join(_JOIN_S)

    def look(self) -> None:
        """Ask once which topics there are."""
        try:
            found = matching(self.pattern, self._list_topics(), self._excluded)
        except KafkaException as error:
            self.trouble = str(error)
            return
        self.trouble = None
        if found != self.topics:
            _log.info("topics of the pattern", pattern=self.pattern, topics=found)
            self.topics = found

    def _run(self) -> None:
        while not self._ended.is_set():
            self.look()
            self._ended.wait(self._interval_s if self.topics else _RETRY_S)
