"""Runs several processes on the same ports: starts, restarts, drains them, and passes on session claims (ADR 0012)."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from isotherm.mqtt_proxy.processes.arbitration import Arbitration, LocalArbitration
from isotherm.mqtt_proxy.processes.link import Link
from isotherm.mqtt_proxy.processes.metric_totals import MetricTotals
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.servicekit import logs
from isotherm.servicekit.backoff import Backoff
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.lifecycle import Exit, Stop, run_async
from isotherm.servicekit.settings import SettingsError

_log = logs.logger(__name__)

_BEAT_S = 1.0
_SILENCE_LIMIT_S = 30.0
_STEADY_S = 10.0
_GRACE_MS = 2_000


MakeArbitration = Callable[[Health, Stop, Callable[[str], None]], Arbitration]
"""Makes the arbitration of a pod from the supervisor's health and stop, and from what ends the pod at once."""


def supervise(
    settings: ProxySettings, arguments: Sequence[str], make_arbitration: MakeArbitration | None = None
) -> int:
    """Run `settings.processes` processes with the command line `arguments` until told to stop; return the exit code.

    Without `make_arbitration` the server is this supervisor alone. Raises SettingsError when a port cannot be reserved.
    """
    ports = _reserve_all(settings)
    return run_async(
        lambda stop: Supervisor(settings, arguments, ports, stop, make_arbitration).run(),
        # The processes have a deadline of their own, which this one must not cut short.
        shutdown_timeout_ms=settings.shutdown_timeout_ms + _GRACE_MS,
    )


Ports = Mapping[str, socket.socket]
"""Sockets that reserve ports, by the argument with which a process is told the port."""


def _reserve_all(settings: ProxySettings) -> Ports:
    """Reserve the ports of the listeners for the processes."""
    if settings.role != "server":
        return {}
    ports = {"--port": _reserve("listener", settings.listener.host, settings.listener.port)}
    if settings.websocket.port is not None:
        ports["--websocket-port"] = _reserve("websocket", settings.websocket.host, settings.websocket.port)
    return ports


def _reserve(setting: str, host: str, port: int) -> socket.socket:
    """Return a socket that reserves a port. It never listens, so it receives no connection."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With SO_REUSEPORT alone, a second proxy on the same port would take half of the connections unnoticed.
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            address = probe.getsockname()
        kept = socket.socket(family, socket.SOCK_STREAM)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(address)
    except OSError as error:
        raise SettingsError([f"{setting}.host, {setting}.port: {host}:{port}: {error}"]) from None
    return kept


class Supervisor(Collector):
    """Watches the processes. Devices wait for it only when it passes on a claim of a session."""

    def __init__(
        self,
        settings: ProxySettings,
        arguments: Sequence[str],
        ports: Ports,
        stop: Stop,
        make_arbitration: MakeArbitration | None = None,
    ) -> None:
        self._settings = settings
        self._ports = ports
        self._stop = stop
        self._command = [sys.executable, "-m", "isotherm.mqtt_proxy", *arguments]
        self._health = Health()
        self._totals = MetricTotals()
        self._arbitration: Arbitration = (
            LocalArbitration(settings.processes, settings.ordinal)
            if make_arbitration is None
            else make_arbitration(self._health, stop, self._end_at_once)
        )
        self._arbitration.send = self._send
        self._links: dict[int, Link] = {}
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._restarts = 0
        self._exit = Exit.OK

    async def run(self) -> int:
        """Start all processes, watch them until told to stop, and drain them."""
        registry = CollectorRegistry()
        registry.register(self._totals)
        registry.register(self)
        with_exemplars = bool(self._settings.tracing.endpoint)
        monitoring = MonitoringServer(self._settings.http, self._health, registry, with_exemplars=with_exemplars)
        monitoring.start()
        _log.info("monitoring", port=monitoring.port)
        for reserved in self._ports.values():
            host, port = reserved.getsockname()[:2]
            _log.info("several processes", host=host, port=port, processes=self._settings.processes)
        for index in range(self._settings.processes):
            self._health.not_ready(_part(index), "starting")
        self._health.ready()
        beats = asyncio.create_task(self._beat())
        try:
            if not await self._arbitration.open():
                return self._exit
            watchers = [asyncio.create_task(self._keep_running(index)) for index in range(self._settings.processes)]
            await self._stop.wait_async()
            self._health.not_ready("start", "stopping")
            for process in self._running.values():
                _signal(process, signal.SIGTERM)
            await asyncio.gather(*watchers)
            _log.info("all processes ended")
        finally:
            await self._arbitration.close()
            beats.cancel()
            monitoring.stop()
            for reserved in self._ports.values():
                reserved.close()
        return self._exit

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of the supervisor itself."""
        yield GaugeMetricFamily("isotherm_mqtt_proxy_processes", "Running processes.", value=len(self._running))
        yield GaugeMetricFamily(
            "isotherm_mqtt_proxy_session_claims",
            "Clients with an undecided claim of their session.",
            self._arbitration.claims,
        )
        yield GaugeMetricFamily("isotherm_mqtt_proxy_pods", "Pods of the server that are live.", self._arbitration.pods)
        yield CounterMetricFamily(
            "isotherm_mqtt_proxy_process_restarts", "Restarts of processes.", value=self._restarts
        )

    async def _beat(self) -> None:
        while True:
            self._health.beat()
            await asyncio.sleep(_BEAT_S)

    async def _keep_running(self, index: int) -> None:
        """Run a process, and restart it when it ends, until told to stop."""
        backoff = Backoff(base_ms=200, cap_ms=10_000)
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            await self._arbitration.wait_to_start(index)
            if self._stop.is_set():
                return
            started_s = loop.time()
            code = await self._run_once(index)
            if self._stop.is_set():
                self._exit = max(self._exit, _as_exit(code))
                return
            if code == Exit.CONFIGURATION:
                _log.error("a process cannot use the settings; ending", process=index)
                self._exit = Exit.CONFIGURATION
                self._stop.set()
                return
            if loop.time() - started_s > _STEADY_S:
                backoff.reset()
            wait_ms = backoff.next_ms()
            self._restarts += 1
            self._health.not_ready(_part(index), f"ended with code {code}; restarting")
            _log.error("a process ended; restarting it", process=index, code=code, in_ms=round(wait_ms))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait_async(), wait_ms / 1000)

    async def _run_once(self, index: int) -> int:
        """Run a process to its end; return its exit code, negative for a signal."""
        ours, theirs = socket.socketpair()
        with theirs:
            slot = ["--process", str(self._arbitration.number(index)), "--link", str(theirs.fileno())]
            for argument, reserved in self._ports.items():
                slot += [argument, str(reserved.getsockname()[1])]
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *slot,
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                # So Ctrl-C in a terminal reaches only the supervisor, which then drains all.
                start_new_session=True,
            )
        link = await Link.over(ours)
        link.send("hello", *self._arbitration.greeting(index))
        self._links[index], self._running[index] = link, process
        if self._stop.is_set():
            _signal(process, signal.SIGTERM)
        try:
            await self._receive_messages(index, link, process)
            return await process.wait()
        finally:
            del self._links[index], self._running[index]
            link.close()
            self._totals.ended(index)
            self._arbitration.left(index)

    async def _receive_messages(self, index: int, link: Link, process: asyncio.subprocess.Process) -> None:
        while True:
            try:
                message = await asyncio.wait_for(link.receive(), _SILENCE_LIMIT_S)
            except TimeoutError:
                _log.error("a process is silent; killing it", process=index, silent_s=_SILENCE_LIMIT_S)
                _signal(process, signal.SIGKILL)
                return
            if message is None:
                return
            kind, values = message
            self._handle_message(index, kind, values)

    def _handle_message(self, index: int, kind: str, values: Sequence[object]) -> None:
        if kind != "report":
            self._arbitration.receive(index, kind, values)
            return
        problems, metrics = values
        assert isinstance(problems, dict)
        assert isinstance(metrics, str)
        self._totals.report(index, metrics)
        if problems:
            self._health.not_ready(_part(index), "; ".join(f"{part}: {text}" for part, text in problems.items()))
        else:
            self._health.ready(_part(index))

    def _send(self, index: int, kind: str, *values: object) -> None:
        link = self._links.get(index)
        if link is not None:
            link.send(kind, *values)

    def _end_at_once(self, reason: str) -> None:
        """Kill all processes, because other pods may own their sessions."""
        _log.error("this pod does not belong to the server any more; ending", reason=reason)
        self._exit = Exit.FAILED
        for process in self._running.values():
            _signal(process, signal.SIGKILL)
        self._stop.set()


def _part(index: int) -> str:
    return f"process {index}"


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        process.send_signal(number)


def _as_exit(code: int) -> Exit:
    if code == -signal.SIGTERM:
        # It was told to stop before it installed its signal handler.
        return Exit.OK
    try:
        return Exit(code)
    except ValueError:
        return Exit.FAILED
