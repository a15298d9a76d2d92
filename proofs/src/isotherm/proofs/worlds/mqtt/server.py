"""The server: the real supervisor and its real processes on models of everything below them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from isotherm.mqtt_proxy import service
from isotherm.mqtt_proxy.ingest.configuration import build_router
from isotherm.mqtt_proxy.ingest.routes import Router
from isotherm.mqtt_proxy.processes.link import Link
from isotherm.mqtt_proxy.processes.supervisor import Supervisor
from isotherm.mqtt_proxy.server.server import Server
from isotherm.mqtt_proxy.sessions.worker_slot import WorkerSlot
from isotherm.mqtt_proxy.settings import LimitSettings, ProxySettings, SessionSettings, TransactionSettings
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.cluster import Cluster
from isotherm.proofs.kafka.network import Network as KafkaNetwork
from isotherm.proofs.kernel.event_loop import ThreadPool, VirtualEventLoop
from isotherm.proofs.kernel.network import End, Network, Weather
from isotherm.proofs.kernel.simulation import Process, Simulation
from isotherm.servicekit.lifecycle import Stop

READINGS, SESSIONS = "readings", "sessions"
_SLOW_TURN_MS = 50.0
_LOCAL = Weather(delay_ms=(0.01, 0.5), cut_rate=0.1)


def proxy_settings(**limits: Any) -> ProxySettings:
    """Return the settings of the server, with other `limits`."""
    return ProxySettings(
        routes="INSERT INTO readings SELECT * FROM dev/+/+",
        device_level=1,
        units={"qos0": "1", "qos1": "1", "qos2": "1"},
        allow_anonymous=True,
        limits=LimitSettings(receive_maximum=20, **limits),
        session=SessionSettings(topic=SESSIONS),
        transactions=TransactionSettings(timeout_ms=60_000),
    )


@dataclass
class Environment:
    """What everything in a simulation shares."""

    simulation: Simulation
    network: Network
    kafka_network: KafkaNetwork
    cluster: Cluster
    settings: ProxySettings
    router: Router = field(init=False)
    at_step: dict[str, Callable[[ProxyProcess], None]] = field(default_factory=dict)
    """What is called at each step of a producer that others can see: a process may die just there."""
    processes: list[ProxyProcess] = field(default_factory=list)
    """Those that run, zombies among them."""
    by_process: dict[Process, ProxyProcess] = field(default_factory=dict)
    ends: dict[int, End] = field(default_factory=dict)
    """The ends of links by the descriptor that a process is given."""
    started: int = 0
    kills: int = 0
    problems: list[str] = field(default_factory=list)
    """Exceptions that nobody handled, and ends of processes that are no recovery."""

    def __post_init__(self) -> None:
        self.router = build_router(self.settings)

    def latency_ms(self) -> float:
        """Return how long a process takes to get to what is ready; now and then it is busy."""
        random = self.simulation.random
        return random.uniform(0.0, 0.2) if random.random() < 0.98 else random.uniform(0.2, 60.0)

    def current(self) -> ProxyProcess:
        """Return the process whose code runs now."""
        thread = self.simulation.current
        if thread is not None:
            return self.by_process[thread.process]
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualEventLoop)
        return self.by_process[loop.process]


class ProxyProcess:
    """A process of the server, as the supervisor sees it (`asyncio.subprocess.Process`)."""

    def __init__(self, environment: Environment, number: int, processes: int, link: End) -> None:
        environment.started += 1
        self.environment, self.number = environment, number
        self.name = f"proxy-{number}.{environment.started}"
        self.returncode: int | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.process = Process(environment.simulation, self.name)
        self._slow_until_ms = 0.0
        self.loop = VirtualEventLoop(self.process, environment.network, latency_ms=self.latency_ms)
        self.stop: Stop | None = None
        self.server: Server | None = None
        """Its MQTT server, once its sessions are restored."""
        environment.by_process[self.process] = self
        environment.processes.append(self)
        link.host = self.loop
        settings = environment.settings.model_copy(update={"ordinal": number, "processes": processes})
        slot = WorkerSlot(number, processes, 0)
        delay_ms = environment.simulation.random.uniform(5.0, 300.0)
        self.loop.call_later(delay_ms / 1000, self._begin, settings, slot, link)
        environment.simulation.note(self.name, "starts as one of", processes)

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
        environment = self.environment
        environment.simulation.note(self.name, "ends with", code)
        environment.problems += [f"{self.name}: {text}" for text in self.loop.unheard_failures()]
        self.returncode = code
        self.loop.kill()
        environment.processes.remove(self)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def kill(self) -> None:
        """End the process at once, as SIGKILL does."""
        if self.returncode is None:
            self.environment.kills += 1
            self.exit(-signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Kill the process or tell it to stop."""
        if number == signal.SIGKILL:
            self.kill()
        elif self.stop is not None:
            self.process.deliver(self.stop.set)

    async def wait(self) -> int:
        """Return the exit code when the process has ended."""
        if self.returncode is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        assert self.returncode is not None
        return self.returncode

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

    def connection(self, config: Mapping[str, Any]) -> Connection:
        """Return a Kafka client's connection from this process."""
        environment = self.environment
        return Connection(
            self.process,
            environment.cluster,
            environment.kafka_network,
            environment.simulation,
            str(config.get("client.id")),
        )


class ServerHost:
    """A machine on which the supervisor runs. A new one takes over when the supervisor was killed."""

    def __init__(self, environment: Environment, processes: int) -> None:
        self._environment, self._processes = environment, processes
        environment.started += 1
        self.process = Process(environment.simulation, f"supervisor.{environment.started}")
        self.loop = VirtualEventLoop(self.process, environment.network, latency_ms=environment.latency_ms)
        self.children: list[ProxyProcess] = []
        self._supervisor: Supervisor | None = None
        environment.simulation.note(self.process.name, "starts", processes)
        self.loop.call_soon(self._begin)

    @property
    def supervisor(self) -> Supervisor | None:
        """The supervisor, once it runs."""
        return self._supervisor

    def _begin(self) -> None:
        settings = self._environment.settings.model_copy(update={"processes": self._processes})
        self._supervisor = Supervisor(settings, [], {}, Stop())
        for number in range(self._processes):
            self.loop.create_task(self._supervisor._keep_running(number)).add_done_callback(self._watch_ended)

    def _watch_ended(self, task: asyncio.Task[None]) -> None:
        self._environment.problems.append(f"the supervisor does not watch a process any more: {task!r}")

    def kill(self) -> None:
        """Kill the supervisor. Its processes end when they notice."""
        self._environment.simulation.note(self.process.name, "is killed")
        self._environment.problems += [f"{self.process.name}: {text}" for text in self.loop.unheard_failures()]
        self.loop.kill()

    # -- what the supervisor calls

    def socketpair(self) -> tuple[End, Any]:
        """Return both ends of a link; the second one has a descriptor that `create_process` understands."""
        environment = self._environment
        ours, theirs = environment.network.pair(self.loop, _LOCAL)
        descriptor = len(environment.ends)
        environment.ends[descriptor] = theirs
        return ours, _Inherited(descriptor)

    def create_process(self, arguments: tuple[str, ...]) -> ProxyProcess:
        """Start the process that a command line describes."""
        number = int(arguments[arguments.index("--process") + 1])
        link = self._environment.ends[int(arguments[arguments.index("--link") + 1])]
        child = ProxyProcess(self._environment, number, self._processes, link)
        self.children = [each for each in self.children if each.returncode is None] + [child]
        return child


class _Inherited:
    """A descriptor that the child inherits."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def fileno(self) -> int:
        return self._descriptor


class ModelLink(Link):
    """The real link over a pair of the model network."""

    @classmethod
    async def over(cls, end: Any) -> ModelLink:
        """Return a link over one end."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        end.protocol = protocol
        protocol.connection_made(end)
        end.resume_reading()
        return cls(reader, asyncio.StreamWriter(end, protocol, reader, loop))


class AlwaysRunning:
    """A target state that nobody changes (`processes.target_state`)."""

    def __init__(self, *_: object) -> None: ...

    def start(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def reporter(self, _registry: object) -> SimpleNamespace:
        """Return a reporter that sends nothing."""
        return SimpleNamespace(start=lambda: None, close=lambda _trace=None: None)

    async def wait_until_known(self, _stop: Stop) -> None:
        """Return at once."""

    async def run(self, stop: Stop, work: Callable[[Stop], Any]) -> None:
        """Run `work` until told to stop."""
        await work(stop)


class NoConflicts:
    """Finds no other server with the same name (`processes.name_conflicts`)."""

    def __init__(self, *_: object) -> None: ...

    def hold(self, *_: object) -> None:
        """Return at once."""

    def check(self, *_: object) -> None:
        """Return at once."""

    def others(self, *_: object) -> dict[int, str]:
        """Return nobody at once."""
        return {}


def thread_pool(environment: Environment) -> Callable[..., ThreadPool]:
    """Return what makes the executors of the current process."""
    return lambda _most=1, thread_name_prefix="pool": ThreadPool(environment.current().process, thread_name_prefix)
