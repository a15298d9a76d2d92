"""Events of one connection that cannot be handled yet: publishes that wait, and everything that came after them."""

from __future__ import annotations

from collections import deque

from isotherm.mqtt_proxy.codec.packets import Connect, Publish, Subscribe, Unsubscribe
from isotherm.mqtt_proxy.codec.properties import Properties, Property
from isotherm.mqtt_proxy.protocol.events import Disconnect, Event

_EVENT_BYTES = 300
"""About the memory that Python adds to an event, in bytes."""
_PAIR_BYTES = 200
"""About the memory that Python adds to a property, in bytes."""

_FILTER_BYTES = 150
"""About the memory that Python adds to a filter, in bytes."""


def properties_bytes(properties: Properties) -> int:
    """Return about how much memory `properties` take, in bytes."""
    size = 0
    for name, value in properties.items():
        if name is Property.USER_PROPERTY:
            size += sum(len(key) + len(text) + _PAIR_BYTES for key, text in value)
        else:
            size += _PAIR_BYTES + (len(value) if isinstance(value, str | bytes) else 0)
    return size


def publish_bytes(publish: Publish) -> int:
    """Return about how much memory a publish or a will takes, in bytes."""
    return _EVENT_BYTES + len(publish.topic) + len(publish.payload) + properties_bytes(publish.properties)


def filters_bytes(event: Subscribe | Unsubscribe) -> int:
    """Return about how much memory the filters of an event take, in bytes."""
    names = [one if isinstance(one, str) else one[0] for one in event.filters]
    return sum(len(name) + _FILTER_BYTES for name in names)


def connect_bytes(connect: Connect) -> int:
    """Return about how much memory a CONNECT takes, in bytes."""
    size = _EVENT_BYTES + len(connect.client_id) + len(connect.username or "") + len(connect.password or b"")
    return size + (publish_bytes(connect.will) if connect.will is not None else 0)


class HeldEvents:
    """A first-in, first-out queue of events that knows about how much memory they take."""

    __slots__ = ("bytes", "events")

    def __init__(self) -> None:
        self.events: deque[tuple[Event, int]] = deque()
        """Each event with its size in bytes. Only the methods of this class change it."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.events)

    @property
    def ends_with_disconnect(self) -> bool:
        """Whether the last event is a DISCONNECT that removes the will."""
        last = self.events[-1][0] if self.events else None
        return isinstance(last, Disconnect) and not last.with_will

    def add(self, event: Event) -> None:
        """Queue `event`."""
        size = _EVENT_BYTES
        if isinstance(event, Publish):
            size = publish_bytes(event)
        elif isinstance(event, Subscribe | Unsubscribe):
            size += filters_bytes(event)
        self.events.append((event, size))
        self.bytes += size

    def first(self) -> Event:
        """Return the oldest event and keep it. Raises IndexError when there is none."""
        return self.events[0][0]

    def take(self) -> Event:
        """Remove and return the oldest event. Raises IndexError when there is none."""
        event, size = self.events.popleft()
        self.bytes -= size
        return event

    def clear(self) -> None:
        """Drop all events."""
        self.events.clear()
        self.bytes = 0
