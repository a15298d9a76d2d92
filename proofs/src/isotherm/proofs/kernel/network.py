"""A model of TCP: connections that delay, stall, cut and lose, between model clients and the loops of processes.

Each direction of a connection is a stream of bytes that arrive in order, in segments that the seed cuts anywhere. The
connections of one simulation do not wait for each other, so their bytes overtake each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from isotherm.proofs.kernel.simulation import Simulation

Cancel = Callable[[], None]

_WINDOW_BYTES = 65_536
"""How many bytes a receiver that does not read takes; what is sent beyond them waits with the sender."""
_HIGH_WATER_BYTES = 65_536
"""So many bytes that wait with the sender stop it (asyncio's default)."""
_SEGMENT_BYTES = 1_460
_LONGEST_GAP_MS = 1.0
"""Between segments that are on their way together."""


class Host(Protocol):
    """Where one end of a connection lives: a process, or the outside world."""

    @property
    def is_dead(self) -> bool:
        """Whether the process was killed."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object:
        """Run `callback` soon."""


class Outside:
    """The host of model clients: a callback runs at once."""

    is_dead = False

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Run `callback` now."""
        callback(*args)


@dataclass
class Weather:
    """How the network treats a connection."""

    delay_ms: tuple[float, float] = (0.1, 3.0)
    """Shortest and longest delay of a segment."""
    cut_rate: float = 0.5
    """Share of the writes that arrive in several segments, cut anywhere."""


class End(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, simulation: Simulation, host: Host, weather: Weather, address: tuple[str, int]) -> None:
        super().__init__()
        self.peer: End
        self.protocol: Any = None
        self.is_open = True
        """Whether this end's protocol takes part: neither closed by itself nor told of the end."""
        self.is_local = False
        """Whether it belongs to a socket pair, which no network disturbs."""
        self._simulation = simulation
        self.host = host
        self._weather = weather
        self._address = address
        self.unheard = bytearray()
        """What was sent to this end and lost, or arrived after its end: for judges, who know more than the protocol."""
        self._is_reading = True
        self._is_closing = False
        self._waiting = bytearray()
        """Sent bytes that the receiver's window does not admit."""
        self._is_writer_paused = False
        self._arrived: deque[bytes | None] = deque()
        """Segments that the protocol has not read; None is the end of the stream."""
        self._arrived_bytes = 0
        self._on_way: deque[tuple[bytes | None, Cancel]] = deque()
        self._on_way_bytes = 0
        self._last_arrival_ms = 0.0
        self._is_notified = False

    # -- asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the address of the peer; nothing else is known."""
        return self._address if name == "peername" else default

    def is_closing(self) -> bool:
        """Return whether this end was closed."""
        return self._is_closing or not self.is_open

    def is_reading(self) -> bool:
        """Return whether the protocol takes bytes."""
        return self._is_reading

    def pause_reading(self) -> None:
        """Deliver nothing to the protocol."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Deliver what arrives."""
        self._is_reading = True
        self._notify()

    def write(self, data: Any) -> None:
        """Send bytes."""
        if self._is_closing or not self.is_open or self.host.is_dead or not data:
            return
        self._waiting += data
        self._send()

    def close(self) -> None:
        """Send what waits and the end of the stream, and tell the protocol that the connection is lost."""
        if self._is_closing or not self.is_open or self.host.is_dead:
            return
        self._is_closing = True
        self._send()
        self.host.call_soon(self._lose, None)

    def abort(self) -> None:
        """Reset the connection: what is on its way is lost."""
        if self.is_open and not self.host.is_dead:
            self._is_closing = True
            self.drop_sent()
            self._put_on_way(None)
            self.host.call_soon(self._lose, None)

    # -- the stream

    def _send(self) -> None:
        peer, random = self.peer, self._simulation.random
        while self._waiting and peer._room():
            size = min(len(self._waiting), peer._room(), _SEGMENT_BYTES)
            if size > 1 and random.random() < self._weather.cut_rate:
                size = random.randint(1, size - 1)
            self._put_on_way(bytes(self._waiting[:size]))
            del self._waiting[:size]
        if self._is_closing and not self._waiting:
            self._put_on_way(None)
        is_full = len(self._waiting) > _HIGH_WATER_BYTES
        if is_full is not self._is_writer_paused and not self._is_closing:
            self._is_writer_paused = is_full
            self.host.call_soon(self.protocol.pause_writing if is_full else self.protocol.resume_writing)

    def _put_on_way(self, segment: bytes | None) -> None:
        if self._on_way and self._on_way[-1][0] is None:
            return
        now_ms = self._simulation.now_ms
        random, gap_ms = self._simulation.random, _LONGEST_GAP_MS
        arrival_ms = now_ms + random.uniform(*self._weather.delay_ms)
        if arrival_ms < self._last_arrival_ms + gap_ms:
            arrival_ms = max(arrival_ms, self._last_arrival_ms) + random.uniform(0.0, gap_ms)
        self._last_arrival_ms = arrival_ms
        self._on_way_bytes += len(segment or b"")
        self._on_way.append((segment, self._simulation.call_later(arrival_ms - now_ms, self._arrive)))

    def _arrive(self) -> None:
        segment, _ = self._on_way.popleft()
        self._on_way_bytes -= len(segment or b"")
        self.peer._take(segment)

    def _room(self) -> int:
        return _WINDOW_BYTES - self._arrived_bytes - self.peer._on_way_bytes

    def _take(self, segment: bytes | None) -> None:
        if not self.is_open or self._is_closing or self.host.is_dead:
            self.unheard += segment or b""
            return
        self._arrived.append(segment)
        self._arrived_bytes += len(segment or b"")
        self._notify()

    def _notify(self) -> None:
        if self._arrived and self._is_reading and not self._is_notified:
            self._is_notified = True
            self.host.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_notified = False
        data = bytearray()
        while self._arrived and self._arrived[0] is not None:
            data += self._arrived.popleft() or b""
        self._arrived_bytes -= len(data)
        if data and self.is_open and not self._is_closing:
            self._give(bytes(data))
            self.peer._send()
        if self._arrived and self._arrived[0] is None and self._is_reading and self.is_open and not self._is_closing:
            self._arrived.clear()
            if not self.protocol.eof_received():
                self._is_closing = True
                self._send()
                self._lose(None)

    def _give(self, data: bytes) -> None:
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.data_received(data)
            return
        while data and self.is_open and not self._is_closing:
            buffer: Any = self.protocol.get_buffer(-1)
            size = min(len(data), len(buffer))
            buffer[:size] = data[:size]
            self.protocol.buffer_updated(size)
            data = data[size:]

    def _lose(self, error: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            self.protocol.connection_lost(error)

    # -- faults

    def stall(self, delay_ms: float) -> None:
        """Deliver what this end sends from now on no earlier than in `delay_ms` milliseconds."""
        self._last_arrival_ms = max(self._last_arrival_ms, self._simulation.now_ms + delay_ms)

    def drop_sent(self) -> None:
        """Lose what this end has sent and the peer has not received."""
        for segment, cancel in self._on_way:
            self.peer.unheard += segment or b""
            cancel()
        self.peer.unheard += self._waiting
        self._on_way.clear()
        self._on_way_bytes = 0
        self._waiting.clear()

    def lose_unread(self) -> None:
        """Lose what was sent to this end and is not read."""
        self.peer.drop_sent()
        self._arrived.clear()
        self._arrived_bytes = 0

    def end_abruptly(self, *, loses_sent: bool) -> None:
        """End this end without its protocol's doing, as the kernel does for a process that is killed."""
        if self.is_open:
            self.is_open = False
            if loses_sent:
                self.drop_sent()
            self._put_on_way(None)

    def reset(self) -> None:
        """Tell the protocol that the connection broke."""
        if self.is_open and not self.host.is_dead:
            self.drop_sent()
            self.host.call_soon(self._lose, ConnectionResetError("the connection broke"))


class Listener:
    """A listening socket of one process; what `asyncio.Server` offers of it."""

    def __init__(self, network: Network, host: Host, port: int, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self.host, self.port, self.make = host, port, make
        self._network = network

    @property
    def sockets(self) -> tuple[Listener]:
        """The socket, which is this object, too."""
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        """Return the address."""
        return "127.0.0.1", self.port

    def close(self) -> None:
        """Accept no connection any more."""
        self._network.forget(self)


class Network:
    """All listeners and connections of a simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._listeners: list[Listener] = []
        self._ends: dict[End, None] = {}
        """The ends of processes."""

    def listen(self, host: Host, port: int, make: Callable[[], asyncio.BaseProtocol]) -> Listener:
        """Listen on a port, beside other listeners of it (SO_REUSEPORT)."""
        listener = Listener(self, host, port, make)
        self._listeners.append(listener)
        return listener

    def forget(self, listener: Listener) -> None:
        """Remove a listener."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def connect(self, protocol: Any, port: int, weather: Weather, address: str = "10.0.0.1") -> End | None:
        """Connect a model client to one of the listeners on a port, which the seed chooses; None without a listener.

        The client's end is open at once. What it writes waits for the listener's process to accept the connection.
        """
        listeners = [each for each in self._listeners if each.port == port and not each.host.is_dead]
        if not listeners:
            return None
        listener = listeners[self._simulation.random.randrange(len(listeners))]
        client = End(self._simulation, Outside(), weather, ("127.0.0.1", port))
        server = End(self._simulation, listener.host, weather, (address, 0))
        client.peer, server.peer = server, client
        client.protocol = protocol
        self._ends[server] = None
        server._is_reading = False
        delay_ms = self._simulation.random.uniform(*weather.delay_ms)

        def arrive() -> None:
            listener.host.call_soon(self._accept, listener, server)

        self._simulation.call_later(delay_ms, arrive)
        return client

    def pair(self, host: Host, weather: Weather) -> tuple[End, End]:
        """Return the ends of a socket pair, both of `host` until another one takes over an end.

        Nothing is delivered to an end before its user sets a protocol and resumes reading.
        """
        ends = End(self._simulation, host, weather, ("", 0)), End(self._simulation, host, weather, ("", 0))
        ends[0].peer, ends[1].peer = ends[1], ends[0]
        for end in ends:
            self._ends[end] = None
            end._is_reading, end.is_local = False, True
        return ends

    def _accept(self, listener: Listener, server: End) -> None:
        if not server.is_open:
            return
        server.protocol = listener.make()
        server._is_reading = True
        server.protocol.connection_made(server)
        server._notify()

    def close_all(self, host: Host) -> None:
        """End all listeners and connections of a process that is killed, as its kernel does."""
        self._listeners = [each for each in self._listeners if each.host is not host]
        for end in list(self._ends):
            if end.host is host:
                del self._ends[end]
                end.end_abruptly(loses_sent=self._simulation.random.random() < 0.5)

    def open_ends(self) -> list[End]:
        """Return the ends of processes that have a connection to the outside, in the order of their making."""
        self._ends = {end: None for end in self._ends if end.is_open}
        return [end for end in self._ends if not end.is_local]
