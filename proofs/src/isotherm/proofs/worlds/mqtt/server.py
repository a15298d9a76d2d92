"""The server on one machine: the real supervisor and its real processes on models of everything below them."""

from __future__ import annotations

import asyncio
from typing import Any

from isotherm.mqtt_proxy.processes.supervisor import Supervisor
from isotherm.mqtt_proxy.settings import LimitSettings, ProxySettings, SessionSettings, TransactionSettings
from isotherm.proofs.kernel.network import End, Weather
from isotherm.proofs.worlds.mqtt.programs import Environment, Program, ProxyProcess
from isotherm.servicekit.lifecycle import Stop

READINGS, SESSIONS = "readings", "sessions"
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


class Host(Program):
    """A machine on which a supervisor runs, with the processes that it starts.

    `name` is the supervisor's, `machine` begins the names of its processes.
    """

    def __init__(self, environment: Environment, name: str, machine: str, settings: ProxySettings) -> None:
        super().__init__(environment, name, machine)
        self.settings = settings
        self.children: list[ProxyProcess] = []
        environment.simulation.note(self.name, "starts", settings.processes)

    def kill(self) -> None:
        """Kill the supervisor. Its processes end when they notice."""
        self.environment.simulation.note(self.name, "is killed")
        self.end()

    # -- what the supervisor calls

    def socketpair(self) -> tuple[End, Any]:
        """Return both ends of a link; the second one has a descriptor that `create_process` understands."""
        environment = self.environment
        ours, theirs = environment.network.pair(self.loop, _LOCAL)
        descriptor = len(environment.ends)
        environment.ends[descriptor] = theirs
        return ours, _Inherited(descriptor)

    def create_process(self, arguments: tuple[str, ...]) -> ProxyProcess:
        """Start the process that a command line describes."""
        number = int(arguments[arguments.index("--process") + 1])
        link = self.environment.ends[int(arguments[arguments.index("--link") + 1])]
        child = ProxyProcess(self.environment, self.machine, self.settings, number, link)
        self.children = [each for each in self.children if each.returncode is None] + [child]
        return child


class ServerHost(Host):
    """The machine of a server that is one supervisor. A new one takes over when the supervisor was killed."""

    def __init__(self, environment: Environment, processes: int) -> None:
        environment.started += 1
        settings = environment.settings.model_copy(update={"processes": processes})
        super().__init__(environment, f"supervisor.{environment.started}", "proxy", settings)
        self._supervisor: Supervisor | None = None
        self.loop.call_soon(self._begin)

    @property
    def supervisor(self) -> Supervisor | None:
        """The supervisor, once it runs."""
        return self._supervisor

    def _begin(self) -> None:
        self._supervisor = Supervisor(self.settings, [], {}, Stop())
        for number in range(self.settings.processes):
            self.loop.create_task(self._supervisor._keep_running(number)).add_done_callback(self._watch_ended)

    def _watch_ended(self, task: asyncio.Task[None]) -> None:
        self.environment.problems.append(f"the supervisor does not watch a process any more: {task!r}")


class _Inherited:
    """A descriptor that the child inherits."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def fileno(self) -> int:
        return self._descriptor
