"""The topic aliases of MQTT 5 (5.0 section 3.3.2.3.4), which a connection may set and use until its end. No IO."""

from __future__ import annotations

from sys import getsizeof, maxsize

from isotherm.mqtt_proxy.codec.errors import PacketError
from isotherm.mqtt_proxy.codec.reasons import Reason

_MEAN_CHARS = 1_024
"""Mean length to which the topics of all aliases of a connection may come; `limits.topic_bytes` is as much."""
_ENTRY_BYTES = 72
"""What an alias takes beside its topic: its share of the dictionary."""


class AliasMemory:
    """Counts the bytes that the aliases of all connections take, of which there may be `maximum`."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.bytes = 0


class TopicAliases:
    """The topics of one connection by alias, from 1 to `maximum`; `memory` is shared with the other connections."""

    __slots__ = ("_bytes", "_chars", "_maximum", "_memory", "_topics")

    def __init__(self, maximum: int, memory: AliasMemory | None = None) -> None:
        self._maximum = maximum
        self._memory = AliasMemory(maxsize) if memory is None else memory
        self._topics: dict[int, str] = {}
        self._chars = 0
        self._bytes = 0

    def topic(self, alias: int, topic: str) -> str:
        """Return the topic of a publish with an alias, which is set when the publish has a `topic`.

        Raises PacketError.
        """
        if not 0 < alias <= self._maximum:
            raise PacketError(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias}")
        known = self._topics.get(alias)
        if not topic:
            if known is None:
                raise PacketError(Reason.PROTOCOL_ERROR, f"topic alias {alias} was not set")
            return known
        self._chars += len(topic) - len(known or "")
        if self._chars > self._maximum * _MEAN_CHARS:
            raise PacketError(Reason.QUOTA_EXCEEDED, "the topics of all aliases are too long")
        self._count(_size(topic) - (0 if known is None else _size(known)))
        self._topics[alias] = topic
        return topic

    def close(self) -> None:
        """Forget all aliases: the connection has ended."""
        self._topics = {}
        self._memory.bytes -= self._bytes
        self._bytes = 0

    def _count(self, size: int) -> None:
        memory = self._memory
        if size > 0 and memory.bytes + size > memory.maximum:
            raise PacketError(Reason.QUOTA_EXCEEDED, "the topic aliases of all connections take too much memory")
        memory.bytes += size
        self._bytes += size


def _size(topic: str) -> int:
    return getsizeof(topic) + _ENTRY_BYTES
