"""Pods of one server on one machine, and the balancer before them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mqtt_world import Proxy, Topics, children_of, opened, wait_until

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry


class Balancer:
    """Passes TCP connections on to the backends, one after the other, whether they are ready or not.

    What a test does to a pod takes its backend away only when it says so; a connection to a dead one is refused, and
    the client tries again.
    """

    def __init__(self) -> None:
        self.backends: list[tuple[str, int]] = []
        self.hosts: dict[int, str] = {}
        """Where the connection from each port of a client went last."""
        self._turn = 0
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_over = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()), daemon=True)
        self._thread.start()

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._accept, sock=self._listener):
            await self._is_over.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            self._turn += 1
            host, port = self.backends[self._turn % len(self.backends)]
            self.hosts[writer.get_extra_info("peername")[1]] = host
            # A connection that `cut_all` cancels ends as one that breaks.
            with suppress(OSError, asyncio.CancelledError):
                their_reader, their_writer = await asyncio.open_connection(host, port)
                copies = [
                    asyncio.create_task(_copy(reader, their_writer)),
                    asyncio.create_task(_copy(their_reader, writer)),
                ]
                try:
                    await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for copy in copies:
                        copy.cancel()
                    await asyncio.gather(*copies, return_exceptions=True)
                    their_writer.close()
        finally:
            writer.close()

    def cut_all(self) -> None:
        """Break all connections, so that their devices come back, to another pod perhaps."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])

    def close(self) -> None:
        """End, with all connections."""
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()
        self._loop.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


class Pods:
    """Pods of one server: each is a process group with a host name, a loopback address and a folder of its own."""

    def __init__(self, make: Callable[[int], Proxy]) -> None:
        self._make = make
        self.pods: list[Proxy] = []
        self.balancer = Balancer()

    @property
    def topics(self) -> Topics:
        """What readers of Kafka find."""
        return self.pods[0].topics

    @property
    def device(self) -> str:
        """The name of the server, with which the ids of its devices begin."""
        return self.pods[0].device

    @property
    def entrance(self) -> Proxy:
        """The server as its devices see it: the balancer's port."""
        proxy = self.pods[0]
        return _Entrance(proxy, self.balancer.port)  # type: ignore[return-value]  # devices ask for the port only

    def add(self) -> Proxy:
        """Add a pod that is not started yet."""
        pod = self._make(len(self.pods))
        self.pods.append(pod)
        return pod

    def admit(self, pod: Proxy) -> None:
        """Let the balancer send clients to a pod."""
        self.balancer.backends.append((pod.host, pod.port))

    def start(self, number: int) -> None:
        """Start so many pods and admit them when they are ready."""
        for _ in range(number):
            self.add().launch()
        for pod in self.pods:
            wait_until("the pod is ready", pod.is_ready)
            self.admit(pod)


class _Entrance:
    def __init__(self, proxy: Proxy, port: int) -> None:
        self.device, self.port, self.host, self.at_end = proxy.device, port, "127.0.0.1", proxy.at_end


def send_signal(pod: Proxy, number: signal.Signals) -> list[int]:
    """Send a signal to all processes of a pod, as the end or the freeze of its host does; return them."""
    processes = [pod.pid, *children_of(pod)]
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
    return processes


def kill(pod: Proxy) -> None:
    """`kill -9` of all processes of a pod."""
    processes = send_signal(pod, signal.SIGKILL)
    pod.wait()
    wait_until("nobody serves", lambda: not any(Path(f"/proc/{process}").exists() for process in processes))


@contextmanager
def opened_pods(
    kafka: Kafka, registry: Registry, folder: Path, free_port: Callable[[], int], **settings: object
) -> Iterator[Pods]:
    """Pods that are not started yet; their topics exist."""
    with opened(kafka, registry, folder, free_port) as first:
        name = first.device

        def make(number: int) -> Proxy:
            home = folder / f"pod-{number}"
            home.mkdir()
            pod = Proxy(home, first.topics, free_port(), free_port())
            pod.device, pod.host = name, f"127.0.0.{11 + number}"
            pod.configure(
                name=name,
                ordinal=0,
                listener__host=pod.host,
                pods__enabled="true",
                pods__host=f"pod-{number}",
                pods__drain_ms=500,
                **settings,
            )
            return pod

        pods = Pods(make)
        try:
            yield pods
        finally:
            pods.balancer.close()
            for pod in pods.pods:
                with suppress(AssertionError):
                    send_signal(pod, signal.SIGKILL)
                pod.close()


class Hops:
    """Counts the accepted connections of devices, and how many went to another pod than the device's one before."""

    def __init__(self, balancer: Balancer) -> None:
        self.connections = self.hops = 0
        self.by_host: Counter[str] = Counter()
        self._balancer = balancer
        self._last: dict[str, str] = {}

    def note(self, device: str, port: int) -> None:
        """Count an accepted connection of a device from its own `port`."""
        host = self._balancer.hosts[port]
        self.connections += 1
        self.by_host[host] += 1
        self.hops += self._last.get(device, host) != host
        self._last[device] = host
