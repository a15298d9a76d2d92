"""What the real modules see instead of Kafka, sockets, threads and processes while a simulation runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

from isotherm.mqtt_proxy import service, session_source
from isotherm.mqtt_proxy.server.server import Server
from isotherm.proofs.kafka.clients.admin import AdminClient
from isotherm.proofs.kafka.clients.loop_producer import ReportSignal, ServerProducer
from isotherm.proofs.kafka.clients.thread_clients import Consumer
from isotherm.proofs.kernel.patching import simulated_modules
from isotherm.proofs.worlds.mqtt import server
from isotherm.proofs.worlds.mqtt.server import Environment, ServerHost
from isotherm.proofs.worlds.registry import Registry

_REGISTRY = Registry({1: service.READING, 2: session_source.SESSION, 3: session_source.STATUS})


@contextmanager
def wired(environment: Environment, host: list[ServerHost]) -> Iterator[None]:
    """Let the real code run in `environment`; `host` holds the machine whose supervisor runs."""
    run = environment.simulation

    def producer(config: Mapping[str, Any]) -> ServerProducer:
        process = environment.current()
        return ServerProducer(process.connection(config), run, config, process.step)

    def consumer(config: Mapping[str, Any]) -> Consumer:
        return Consumer(environment.current().connection(config), run, config)

    def admin(config: Mapping[str, Any]) -> AdminClient:
        return AdminClient(environment.current().connection(config), run)

    def build_server(*args: Any, **kwargs: Any) -> Server:
        built = service_build_server(*args, **kwargs)
        environment.current().server = built
        return built

    def exit_orphaned() -> NoReturn:
        environment.current().exit(1)
        raise asyncio.CancelledError

    async def create_process(*arguments: str, **_options: object) -> object:
        return host[-1].create_process(arguments)

    service_build_server = service.build_server
    ReportSignal.loop = staticmethod(lambda: environment.current().loop)
    replaced: dict[str, Any] = {
        "isotherm.servicekit.kafka.clients:Producer": producer,
        "isotherm.servicekit.kafka.clients:Consumer": consumer,
        "isotherm.servicekit.kafka.clients:AdminClient": admin,
        "isotherm.servicekit.producer.delivery:Producer": ServerProducer,
        "isotherm.servicekit.producer.delivery:ReportSignal": ReportSignal,
        "isotherm.servicekit.producer.delivery:is_available": lambda: True,
        "isotherm.mqtt_proxy.service:SchemaRegistry": lambda _settings: _REGISTRY,
        "isotherm.mqtt_proxy.service:ThreadPoolExecutor": server.thread_pool(environment),
        "isotherm.mqtt_proxy.session_source:NameConflicts": server.NoConflicts,
        "isotherm.mqtt_proxy.service:build_target_state": server.AlwaysRunning,
        "isotherm.mqtt_proxy.service:ensure_dead_letter_topic": lambda *_: None,
        "isotherm.mqtt_proxy.service:build_server": build_server,
        "isotherm.mqtt_proxy.processes.worker_process:generate_latest": lambda _registry: b"",
        "isotherm.mqtt_proxy.processes.worker_process:_exit_orphaned": exit_orphaned,
        "isotherm.mqtt_proxy.processes.worker_process:socket": SimpleNamespace(socket=lambda fileno: fileno),
        "isotherm.mqtt_proxy.processes.worker_process:Link": server.ModelLink,
        "isotherm.mqtt_proxy.processes.supervisor:Link": server.ModelLink,
        "isotherm.mqtt_proxy.processes.supervisor:socket": SimpleNamespace(socketpair=lambda: host[-1].socketpair()),
        "isotherm.mqtt_proxy.processes.supervisor:asyncio": SimpleNamespace(
            **{**vars(asyncio), "create_subprocess_exec": create_process}
        ),
    }
    with simulated_modules("isotherm.", replaced):
        yield
