"""What one connection received and cannot go on with: publishes that wait, and what must not overtake them."""

from __future__ import annotations

from collections import deque

from isotherm.mqtt_proxy.codec.packets import Connect, Publish
from isotherm.mqtt_proxy.codec.properties import Properties, Property
from isotherm.mqtt_proxy.protocol.state_machine import Disconnect, Event

_EVENT_BYTES = 300
_PAIR_BYTES = 200
"""What Python adds to an event and to a user property, about."""


def properties_bytes(properties: Properties) -> int:
    """About the memory that properties take, in bytes."""
    size = 0
    for name, value in properties.items():
        if name is Property.USER_PROPERTY:
            size += sum(len(key) + len(text) + _PAIR_BYTES for key, text in value)
        else:
            size += _PAIR_BYTES + (len(value) if isinstance(value, str | bytes) else 0)
    return size


def publish_bytes(publish: Publish) -> int:
    """About the memory that a publish or a will takes, in bytes."""
    return _EVENT_BYTES + len(publish.topic) + len(publish.payload) + properties_bytes(publish.properties)


def connect_bytes(connect: Connect) -> int:
    """About the memory that a CONNECT takes, in bytes."""
    size = _EVENT_BYTES + len(connect.client_id) + len(connect.username or "") + len(connect.password or b"")
    return size + (publish_bytes(connect.will) if connect.will is not None else 0)


class HeldEvents:
    """The events of one connection that wait, first in first out, and about how many bytes they take."""

    __slots__ = ("bytes", "events")

    def __init__(self) -> None:
        self.events: deque[tuple[Event, int]] = deque()
        """Each with its size; to be changed by the methods only."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.events)

    @property
    def ends_normally(self) -> bool:
        """Whether the device said goodbye at the end and wants no will."""
        last = self.events[-1][0] if self.events else None
        return isinstance(last, Disconnect) and not last.with_will

    def add(self, event: Event) -> None:
        """`event` goes on after those that wait already."""
        size = publish_bytes(event) if isinstance(event, Publish) else _EVENT_BYTES
        self.events.append((event, size))
        self.bytes += size

    def first(self) -> Event:
        """The event that is next; there must be one."""
        return self.events[0][0]

    def take(self) -> Event:
        """The event that is next, which waits no longer."""
        event, size = self.events.popleft()
        self.bytes -= size
        return event

    def clear(self) -> None:
        """Nothing waits any more."""
        self.events.clear()
        self.bytes = 0
