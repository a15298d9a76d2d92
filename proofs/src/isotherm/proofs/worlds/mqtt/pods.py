"""Several pods of one server: each incarnation of one, and what keeps them running, as Kubernetes does."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial

from isotherm.mqtt_proxy import pod_service
from isotherm.mqtt_proxy.processes.supervisor import Supervisor
from isotherm.mqtt_proxy.sections.pods import PodSettings
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.proofs.worlds.mqtt.programs import Environment, Program, ProxyProcess
from isotherm.proofs.worlds.mqtt.server import Host, proxy_settings
from isotherm.servicekit.lifecycle import Exit, Stop

CLAIMS = "isotherm.mqtt.claims"
_GRACE_MS = 45_000.0
"""How long a pod that is told to stop may take before it is killed."""
_AFTERMATH_MS = 150_000.0
"""How long after the end of a fault its consequences may be felt: time-outs of transactions, late requests."""
_KAFKA = "kafka"


def pod_settings(**limits: int) -> ProxySettings:
    """Return the settings of a pod, with other `limits`."""
    pods = PodSettings(enabled=True, topic=CLAIMS, drain_ms=2_000)
    return proxy_settings(**limits).model_copy(update={"pods": pods})


class PodHost(Host):
    """One incarnation of a pod: a supervisor with its processes, which `owner` keeps running."""

    def __init__(self, environment: Environment, name: str, processes: int, owner: Deployment) -> None:
        environment.started += 1
        pods = environment.settings.pods.model_copy(update={"host": name})
        settings = environment.settings.model_copy(update={"processes": processes, "pods": pods})
        super().__init__(environment, f"{name}.{environment.started}", name, settings)
        self._owner = owner
        self._stop = Stop()
        self._is_cut_off = False
        self.loop.call_soon(self._begin)

    def _begin(self) -> None:
        supervisor = Supervisor(
            self.settings, [], {}, self._stop, partial(pod_service.build_arbitration, self.settings)
        )
        self.loop.create_task(supervisor.run()).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[int]) -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self.environment.problems.append(f"{self.name} ended with {failure!r}")
        self._exit(1 if task.cancelled() or failure is not None else task.result())

    def _exit(self, code: int) -> None:
        if self.loop.is_dead:
            return
        self.environment.simulation.note(self.name, "ends with", code)
        self.end()
        self._owner.ended(self, code)

    @property
    def programs(self) -> list[Program]:
        """The supervisor and its processes, which run."""
        return [self, *(child for child in self.children if child.returncode is None)]

    def create_process(self, arguments: tuple[str, ...]) -> ProxyProcess:
        """Start the process that a command line describes."""
        child = super().create_process(arguments)
        child.on_exit = lambda: self._owner.process_ended(child, self)
        if self._is_cut_off:
            self.environment.kafka_network.cut_off.add(child.name)
        return child

    # -- what befalls it

    def kill_supervisor(self) -> None:
        """Kill the supervisor. Its processes end when they notice."""
        self._exit(-signal.SIGKILL)

    def kill(self) -> None:
        """End the supervisor and its processes at once, as the end of their container does."""
        self.environment.kills += not self.loop.is_dead
        for child in self.children:
            child.kill()
        self._exit(-signal.SIGKILL)

    def terminate(self) -> None:
        """Tell the pod to stop (SIGTERM), and kill it when it takes too long."""
        self.process.deliver(self._stop.set)
        self.environment.simulation.call_later(_GRACE_MS, self.kill)

    def freeze(self) -> Callable[[], None]:
        """Let nothing of the pod run; return what lets it go on."""
        frozen = self.programs
        for program in frozen:
            program.process.freeze()

        def thaw() -> None:
            for program in frozen:
                program.thaw()

        return thaw

    def cut_off(self) -> Callable[[], None]:
        """Let no packet pass between the pod and the brokers; return what ends this."""
        cut_off = self.environment.kafka_network.cut_off
        self._is_cut_off = True
        cut_off.update(program.name for program in self.programs)

        def reconnect() -> None:
            self._is_cut_off = False
            cut_off.difference_update([self.name, *(child.name for child in self.children)])

        return reconnect


class Deployment:
    """The pods of the server: one that ends is started again under its name, until it is to leave.

    A pod that ends by itself, or one of its processes, must have had a fault: fencing one that is well is a problem.
    """

    def __init__(self, environment: Environment, processes: int) -> None:
        self.counts: Counter[str] = Counter()
        self._environment, self._processes = environment, processes
        self._pods: dict[str, PodHost | None] = {}
        """Those that are to run, by name; None while one is not started again."""
        self._pauses_ms: dict[str, float] = {}
        self._troubled_until_ms: dict[str, float] = {}
        self._names = 0

    @property
    def size(self) -> int:
        """How many pods are to run."""
        return len(self._pods)

    @property
    def running(self) -> list[PodHost]:
        """The incarnations that run and are to run, frozen ones among them."""
        return [pod for pod in self._pods.values() if pod is not None]

    def pod_of(self, program: Program) -> PodHost | None:
        """Return the pod to which a program belongs; None when its supervisor has ended."""
        return next((pod for pod in self.running if program in pod.programs), None)

    def add(self) -> None:
        """Start one more pod."""
        self._names += 1
        self._start(f"pod-{self._names}")

    def remove(self, pod: PodHost) -> None:
        """Let a pod that ends now not start again."""
        self._pods.pop(pod.machine, None)

    def pause(self, pod: PodHost, pause_ms: float) -> None:
        """Let so much time pass before a pod that ends now is started again."""
        self._pauses_ms[pod.machine] = pause_ms

    def shut(self) -> None:
        """End everything."""
        running = self.running
        self._pods.clear()
        for pod in running:
            pod.end()

    # -- who has an excuse

    def trouble(self, for_ms: float, pod: PodHost | None = None) -> None:
        """Note a fault of a pod, or of Kafka, that lasts for `for_ms`."""
        name = _KAFKA if pod is None else pod.machine
        until_ms = self._environment.simulation.now_ms + for_ms + _AFTERMATH_MS
        self._troubled_until_ms[name] = max(until_ms, self._troubled_until_ms.get(name, 0.0))

    def _is_excused(self, name: str) -> bool:
        now_ms = self._environment.simulation.now_ms
        return any(now_ms <= self._troubled_until_ms.get(one, -1.0) for one in (name, _KAFKA))

    def _convict(self, name: str, what: str, code: int) -> None:
        self.counts["fenced"] += 1
        if not self._is_excused(name):
            self._environment.problems.append(f"{what} ended with code {code}, and nothing was wrong with it")

    # -- life

    def _start(self, name: str) -> None:
        self._pods[name] = PodHost(self._environment, name, self._processes, self)
        self.counts["pods"] += 1

    def ended(self, pod: PodHost, code: int) -> None:
        """Note that an incarnation ended, and start the pod again."""
        name, simulation = pod.machine, self._environment.simulation
        if code not in (Exit.OK, -signal.SIGKILL):
            self._convict(name, pod.name, code)
        if self._pods.get(name) is not pod:
            return
        self._pods[name] = None
        pause_ms = self._pauses_ms.pop(name, simulation.random.uniform(200.0, 5_000.0))
        simulation.call_later(pause_ms, lambda: self._start_again(name))

    def _start_again(self, name: str) -> None:
        if name in self._pods and self._pods[name] is None:
            self._start(name)

    def process_ended(self, child: ProxyProcess, pod: PodHost) -> None:
        """Note that a process of a pod ended."""
        code = child.returncode or 0
        if code not in (Exit.OK, Exit.DEADLINE) and code > 0 and not pod.loop.is_dead:
            self._convict(child.machine, child.name, code)
