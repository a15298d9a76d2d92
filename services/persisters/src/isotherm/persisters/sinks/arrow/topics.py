"""The ids of the topics that a task reads, each asked for once between two assignments."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class TopicIdCache:
    """Remembers the ids of topics; safe for several threads."""

    def __init__(self, ask: Callable[[str], str]) -> None:
        """`ask` returns a topic's current id, and may raise Unavailable."""
        self._ask = ask
        self._known: dict[str, str] = {}

    def __call__(self, topic: str) -> str:
        """Return the id of a topic. Raises what `ask` raises."""
        known = self._known.get(topic)
        if known is None:
            known = self._known[topic] = self._ask(topic)
        return known

    def forget(self, topics: Iterable[str]) -> None:
        """Ask again: a topic that is assigned anew may be another one of its name."""
        for topic in topics:
            self._known.pop(topic, None)
