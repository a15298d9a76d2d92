"""What a simulation of the server shares, and its programs: the supervisor's processes on models of all below them."""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from isotherm.mqtt_proxy import service
from isotherm.mqtt_proxy.ingest.configuration import build_router
from isotherm.mqtt_proxy.ingest.routes import Router
from isotherm.mqtt_proxy.server.server import Server
from isotherm.mqtt_proxy.sessions.worker_slot import WorkerSlot
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.cluster import Cluster
from isotherm.proofs.kafka.network import Network as KafkaNetwork
from isotherm.proofs.kernel.event_loop import VirtualEventLoop
from isotherm.proofs.kernel.network import End, Network
from isotherm.proofs.kernel.simulation import Process, Simulation
from isotherm.servicekit.lifecycle import Exit, Stop

_SLOW_TURN_MS = 50.0


@dataclass
class Environment:
    """What everything in a simulation shares."""

    simulation: Simulation
    network: Network
    kafka_network: KafkaNetwork
    cluster: Cluster
    settings: ProxySettings
    router: Router = field(init=False)
    at_step: dict[str, Callable[[Program], None]] = field(default_factory=dict)
    """What is called at each step of a producer that others can see: a process may die just there."""
    processes: list[ProxyProcess] = field(default_factory=list)
    """Those that run, zombies among them."""
    by_process: dict[Process, Program] = field(default_factory=dict)
    ends: dict[int, End] = field(default_factory=dict)
    """The ends of links by the descriptor that a process is given."""
    started: int = 0
    kills: int = 0
    attested: int = 0
    """Records that processes have attested."""
    problems: list[str] = field(default_factory=list)
    """Exceptions that nobody handled, and ends of processes that are no recovery."""

    def __post_init__(self) -> None:
        self.router = build_router(self.settings)

    def latency_ms(self) -> float:
        """Return how long a process takes to get to what is ready; now and then it is busy."""
        random = self.simulation.random
        return random.uniform(0.0, 0.2) if random.random() < 0.98 else random.uniform(0.2, 60.0)

    def current(self) -> Program:
        """Return the program whose code runs now."""
        thread = self.simulation.current
        if thread is not None:
            return self.by_process[thread.process]
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualEventLoop)
        return self.by_process[loop.process]


class Program(ABC):
    """A process of the operating system in which code of the server runs, on a `machine`."""

    def __init__(self, environment: Environment, name: str, machine: str) -> None:
        self.environment, self.name, self.machine = environment, name, machine
        self.process = Process(environment.simulation, name)
        self._slow_until_ms = 0.0
        self.loop = VirtualEventLoop(self.process, environment.network, latency_ms=self.latency_ms)
        environment.by_process[self.process] = self

    @abstractmethod
    def kill(self) -> None:
        """End the process at once, as SIGKILL does."""

    def step(self) -> None:
        """Note a step that other processes can see."""
        for call in tuple(self.environment.at_step.values()):
            call(self)

    def latency_ms(self) -> float:
        """Return how long the process takes to get to what is ready; longer when it is busy or was frozen."""
        random, now_ms = self.environment.simulation.random, self.environment.simulation.now_ms
        if now_ms < self._slow_until_ms:
            return random.uniform(0.0, _SLOW_TURN_MS)
        return self.environment.latency_ms()

    def thaw(self) -> None:
        """Let the process go on after a freeze. Its threads do so at different moments."""
        self._slow_until_ms = self.environment.simulation.now_ms + 4 * _SLOW_TURN_MS
        self.process.thaw()

    def end(self) -> None:
        """End the process at once, with what it has open, and keep the exceptions that it has not handled."""
        self.environment.problems += [f"{self.name}: {text}" for text in self.loop.unheard_failures()]
        self.loop.kill()

    def connection(self, config: Mapping[str, object]) -> Connection:
        """Return a Kafka client's connection from this process."""
        environment = self.environment
        return Connection(
            self.process,
            environment.cluster,
            environment.kafka_network,
            environment.simulation,
            str(config.get("client.id")),
        )


class ProxyProcess(Program):
    """A process of the server, as the supervisor sees it (`asyncio.subprocess.Process`)."""

    def __init__(self, environment: Environment, machine: str, settings: ProxySettings, number: int, link: End) -> None:
        environment.started += 1
        super().__init__(environment, f"{machine}-{number}.{environment.started}", machine)
        self.number = number
        self.returncode: int | None = None
        self.was_killed = False
        self.on_exit: Callable[[], None] = lambda: None
        self._waiters: list[asyncio.Future[None]] = []
        self.stop: Stop | None = None
        self.server: Server | None = None
        """Its MQTT server, once its sessions are restored."""
        environment.processes.append(self)
        link.host = self.loop
        slot = WorkerSlot(number, settings.processes, 0)
        delay_ms = environment.simulation.random.uniform(5.0, 300.0)
        ours = settings.model_copy(update={"ordinal": number})
        self.loop.call_later(delay_ms / 1000, self._begin, ours, slot, link)
        environment.simulation.note(self.name, "starts as one of", settings.processes)

    def _begin(self, settings: ProxySettings, slot: WorkerSlot, link: End) -> None:
        self.stop = Stop()
        proxy = service.Proxy(settings, self.environment.router, None, self.stop, slot, cast(int, link))
        self.loop.create_task(proxy.run()).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[int]) -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self.environment.problems.append(f"{self.name} ended with {failure!r}")
        self.exit(1 if task.cancelled() or failure is not None else task.result())

    def exit(self, code: int) -> None:
        """End the process; from outside of its threads."""
        if self.returncode is not None:
            return
        self.environment.simulation.note(self.name, "ends with", code)
        self.returncode = code
        self.end()
        self.environment.processes.remove(self)
        self.on_exit()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def kill(self) -> None:
        """End the process at once, as SIGKILL does."""
        if self.returncode is None:
            self.environment.kills += 1
            self.was_killed = True
            self.exit(-signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Kill the process or tell it to stop."""
        if number == signal.SIGKILL:
            self.kill()
        elif self.stop is not None:
            self.process.deliver(self.stop.set)
            # As `servicekit.lifecycle.run` does: nothing recovers a process that hangs.
            self.process.call_later(self.environment.settings.shutdown_timeout_ms, lambda: self.exit(Exit.DEADLINE))
        else:
            # It has not installed its signal handler yet.
            self.process.deliver(lambda: self.exit(-number))

    async def wait(self) -> int:
        """Return the exit code when the process has ended."""
        if self.returncode is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        assert self.returncode is not None
        return self.returncode
