"""The network of many paho clients on the caller's thread: reads, writes, keep-alives and new connections.

With paho's own thread for each client a publish wakes two threads, and each of its acknowledgements two more, all of
which wait for one interpreter lock: 13 % of a core at 220 readings/s, 26 % at 2,000.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode

_RECONNECT_MIN_S = 1.0
_RECONNECT_MAX_S = 4.0
_KEEP_ALIVE_CHECK_S = 1.0


class NetworkLoop:
    """Connects clients, and connects them again whenever a connection is lost. Needs `close`.

    Only `wake` may be called from another thread or from a signal handler. paho connects blocking, so a TLS server that
    accepts connections and says nothing holds up the others.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Callable[[], None]] = deque()
        self._pause_s: dict[Client, float] = {}
        """The pause before the next attempt to connect, of every client that is to be connected."""
        self._due_s: dict[Client, float] = {}
        """When a client without a connection is connected next."""
        self._keep_alive_due_s = 0.0
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def close(self) -> None:
        """Handle nothing any more."""
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def add(self, client: Client) -> None:
        """Connect a client, at the next `run_once`."""
        client.on_socket_open = self._opened
        client.on_socket_close = self._closed
        self._pause_s[client] = _RECONNECT_MIN_S
        self._due_s[client] = time.monotonic()

    def release(self, client: Client) -> None:
        """Do not connect a client again."""
        self._pause_s.pop(client, None)
        self._due_s.pop(client, None)

    def accepted(self, client: Client) -> None:
        """Note that the server has accepted a client: the next attempts begin with the shortest pause."""
        if client in self._pause_s:
            self._pause_s[client] = _RECONNECT_MIN_S

    def post(self, work: Callable[[], None]) -> None:
        """Do something after the current callback has returned; paho sends nothing at once within its callbacks."""
        self._posted.append(work)

    def wake(self) -> None:
        """Let `run_once` return."""
        # A full pipe wakes it as well; after `close` there is nothing to wake.
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def run_once(self, timeout_s: float) -> None:
        """Wait until something comes or is due, or until the timeout, and handle it."""
        now_s = time.monotonic()
        self._connect_due(now_s)
        if now_s >= self._keep_alive_due_s:
            self._keep_alive_due_s = now_s + _KEEP_ALIVE_CHECK_S
            for client in list(self._pause_s):
                client.loop_misc()
        until_s = min(now_s + timeout_s, self._keep_alive_due_s, *self._due_s.values())
        for key, events in self._selector.select(0 if self._posted else max(0.0, until_s - now_s)):
            if key.data is None:
                self._woken.recv(4096)
            else:
                self._handle(key.data, events)
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    def watch_output(self, client: Client) -> None:
        """Wait until the socket takes more, if a publish did not fit into it."""
        open_socket: Any = client.socket()
        if open_socket is not None:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.want_write() else 0)
            if self._selector.get_key(open_socket).events != wanted:
                self._selector.modify(open_socket, wanted, client)

    def _handle(self, client: Client, events: int) -> None:
        if events & selectors.EVENT_READ:
            self._read(client)
        if events & selectors.EVENT_WRITE:
            client.loop_write()
        self.watch_output(client)

    def _read(self, client: Client) -> None:
        """Read until nothing is left, also of what TLS has decrypted already, which the selector does not see."""
        while client.loop_read() == MQTTErrorCode.MQTT_ERR_SUCCESS:
            open_socket: Any = client.socket()
            if not hasattr(open_socket, "pending") or not open_socket.pending():
                return

    def _connect_due(self, now_s: float) -> None:
        for client in [one for one, due_s in self._due_s.items() if due_s <= now_s]:
            del self._due_s[client]
            try:
                client.reconnect()
            except OSError:
                self._connect_later(client)
            else:
                self.watch_output(client)

    def _connect_later(self, client: Client) -> None:
        pause_s = self._pause_s[client]
        self._pause_s[client] = min(2 * pause_s, _RECONNECT_MAX_S)
        self._due_s[client] = time.monotonic() + pause_s

    def _opened(self, client: Client, _data: Any, opened: Any) -> None:
        self._selector.register(opened, selectors.EVENT_READ, client)

    def _closed(self, client: Client, _data: Any, closed: Any) -> None:
        # After `close` nothing is registered.
        with contextlib.suppress(KeyError):
            self._selector.unregister(closed)
        if client in self._pause_s:
            self._connect_later(client)
