"""What the real modules see instead of Kafka, sockets, threads and processes while a simulation runs."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

from isotherm.connector.attestation import attester
from isotherm.mqtt_proxy import assembly, pod_service, service, session_source
from isotherm.mqtt_proxy.server.server import Server
from isotherm.proofs.kafka.clients.admin import AdminClient
from isotherm.proofs.kafka.clients.direct_librdkafka import direct_producer
from isotherm.proofs.kafka.clients.loop_producer import ReportSignal, ServerProducer
from isotherm.proofs.kafka.clients.thread_clients import Consumer
from isotherm.proofs.kernel.patching import simulated_modules
from isotherm.proofs.worlds.mqtt import substitutes
from isotherm.proofs.worlds.mqtt.programs import Environment, ProxyProcess
from isotherm.proofs.worlds.mqtt.server import Host
from isotherm.proofs.worlds.registry import Registry

_SCHEMAS = service.READING, session_source.SESSION, session_source.STATUS, pod_service.CLAIMS, attester.SCHEMA
_REGISTRY = Registry(dict(enumerate(_SCHEMAS, 1)))


def _kafka_clients(environment: Environment) -> dict[str, Any]:
    """Return the model's clients by the names that they replace."""
    run = environment.simulation

    def producer(config: Mapping[str, Any]) -> ServerProducer:
        program = environment.current()
        return ServerProducer(program.connection(config), run, config, program.step)

    def consumer(config: Mapping[str, Any]) -> Consumer:
        return Consumer(environment.current().connection(config), run, config)

    def admin(config: Mapping[str, Any]) -> AdminClient:
        return AdminClient(environment.current().connection(config), run)

    ReportSignal.loop = staticmethod(lambda: environment.current().loop)
    return {
        "isotherm.servicekit.kafka.clients:Producer": producer,
        "isotherm.servicekit.kafka.clients:Consumer": consumer,
        "isotherm.servicekit.kafka.clients:AdminClient": admin,
        "isotherm.servicekit.producer.delivery:Producer": ServerProducer,
        "isotherm.servicekit.producer.delivery:ReportSignal": ReportSignal,
        "isotherm.servicekit.producer.delivery:is_available": lambda: True,
        **_direct_ways(),
    }


def _direct_ways() -> dict[str, Any]:
    """Return what lets compiled code produce without confluent-kafka's binding; nothing where it is not built."""
    module = "isotherm.mqtt_proxy.hotpath.plain_ingest"
    try:
        # The server imports it when it starts, which is too late to replace a name in it.
        importlib.import_module(module)
    except ImportError:
        return {}
    return {f"{module}:direct_producer": direct_producer}


@contextmanager
def wired(environment: Environment) -> Iterator[None]:
    """Let the real code run in `environment`."""
    run = environment.simulation

    def process() -> ProxyProcess:
        program = environment.current()
        assert isinstance(program, ProxyProcess)
        return program

    def host() -> Host:
        program = environment.current()
        assert isinstance(program, Host)
        return program

    def build_server(*args: Any, **kwargs: Any) -> Server:
        built = assembly.build_server(*args, **kwargs)
        process().server = built
        return built

    def exit_orphaned() -> NoReturn:
        process().exit(1)
        raise asyncio.CancelledError

    async def create_process(*arguments: str, **_options: object) -> object:
        return host().create_process(arguments)

    replaced: dict[str, Any] = {
        **_kafka_clients(environment),
        "isotherm.mqtt_proxy.pod_service:SchemaRegistry": lambda _settings: _REGISTRY,
        "isotherm.mqtt_proxy.pod_service:secrets": SimpleNamespace(
            token_hex=lambda size: f"{run.random.getrandbits(8 * size):0{2 * size}x}"
        ),
        "isotherm.mqtt_proxy.service:SchemaRegistry": lambda _settings: _REGISTRY,
        "isotherm.mqtt_proxy.service:ThreadPoolExecutor": substitutes.thread_pool(environment),
        "isotherm.mqtt_proxy.assembly:this_process": lambda: environment.current().name,
        "isotherm.mqtt_proxy.session_source:NameConflicts": substitutes.NoConflicts,
        "isotherm.mqtt_proxy.service:build_target_state": substitutes.AlwaysRunning,
        "isotherm.mqtt_proxy.service:ensure_dead_letter_topic": lambda *_: None,
        "isotherm.mqtt_proxy.service:build_server": build_server,
        "isotherm.mqtt_proxy.processes.adoption:ThreadPoolExecutor": substitutes.thread_pool(environment),
        "isotherm.mqtt_proxy.processes.worker_process:generate_latest": lambda _registry: b"",
        "isotherm.mqtt_proxy.processes.worker_process:_exit_orphaned": exit_orphaned,
        "isotherm.mqtt_proxy.processes.worker_process:socket": SimpleNamespace(socket=lambda fileno: fileno),
        "isotherm.mqtt_proxy.processes.worker_process:Link": substitutes.ModelLink,
        "isotherm.mqtt_proxy.processes.supervisor:Link": substitutes.ModelLink,
        "isotherm.mqtt_proxy.processes.supervisor:MonitoringServer": substitutes.NoMonitoring,
        "isotherm.mqtt_proxy.processes.supervisor:socket": SimpleNamespace(socketpair=lambda: host().socketpair()),
        "isotherm.mqtt_proxy.processes.supervisor:asyncio": SimpleNamespace(
            **{**vars(asyncio), "create_subprocess_exec": create_process}
        ),
    }
    with simulated_modules("isotherm.", replaced):
        yield
