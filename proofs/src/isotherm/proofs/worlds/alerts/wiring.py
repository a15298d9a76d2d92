"""What the alerts service, Faust and aiokafka see instead of sockets, threads, a registry and servers."""

from __future__ import annotations

import asyncio
import gc
import logging
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from aiokafka.structs import TopicPartition
from faust.types import TP

import isotherm.schemas
from isotherm.alerts import service
from isotherm.connector.state.target_follower import Target
from isotherm.proofs.kafka.clients.admin import AdminClient
from isotherm.proofs.kafka.clients.aiokafka_connection import connector
from isotherm.proofs.kafka.clients.connection import Connection
from isotherm.proofs.kafka.clients.loop_producer import ReportSignal, ServerProducer
from isotherm.proofs.kafka.clients.thread_clients import Consumer
from isotherm.proofs.kernel import stand_ins
from isotherm.proofs.kernel.event_loop import VirtualEventLoop
from isotherm.proofs.kernel.patching import simulated_modules
from isotherm.proofs.worlds.registry import Registry

_MODULES = "isotherm.", "faust.", "mode.", "aiokafka."
SCHEMAS: dict[int, Mapping[str, Any]] = {
    1: isotherm.schemas.schema("SensorReading", 1),
    2: isotherm.schemas.schema("Device", 1),
    3: isotherm.schemas.schema("Alert", 2),
    4: isotherm.schemas.schema("DeviceState", 2),
}
_REGISTRY = Registry(SCHEMAS)
_CLIENTS, _DELIVERY = "isotherm.servicekit.kafka.clients", "isotherm.servicekit.producer.delivery"
_DIRECTORY = "isotherm-simulated-alerts-"
"""How the name of Faust's directory begins. Faust writes nothing there while its tables are in memory."""
ENCODERS = {schema["name"]: _REGISTRY.encoder("", schema) for schema in SCHEMAS.values()}


class _Inert:
    """Stands for the HTTP server, the target state that nobody changes, and the reporter of the status."""

    port = 0
    target = Target()

    def __init__(self, *_: object, **__: object) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def close(self, _trace: str | None = None) -> None: ...


class LoopThread:
    """Stands for `mode.threads.WorkerThread`: the service's loop is a second one of the same process."""

    def __init__(self, thread_service: Any) -> None:
        self._service = thread_service

    def start(self) -> None:
        """Run the service in its loop."""
        self._service.thread_loop.create_task(self._serve())

    def stop(self) -> None:
        """Do nothing: a loop without tasks has ended."""

    async def _serve(self) -> None:
        # As `ServiceThread._start_thread`, whose thread prints the exception.
        with suppress(Exception):
            try:
                await self._service._serve()
            except Exception:
                self._service.set_shutdown()
                raise


def _hash_of(partition: tuple[str, int]) -> int:
    """Return a hash that is the same in every process: Faust and aiokafka iterate over sets of partitions."""
    return _number_of(partition[0]) + partition[1]


@cache
def _number_of(topic: str) -> int:
    return zlib.crc32(topic.encode())


async def _no_keepalive(_service: object) -> None:
    """Stands for a task that wakes a selector again and again, which a virtual loop does not need."""


def _new_event_loop() -> VirtualEventLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualEventLoop)
    return loop.beside()


def _of_the_service() -> dict[str, Any]:
    """Return what stands for the parts of the service around the stream."""
    return {
        f"{service.__name__}:SchemaRegistry": lambda _settings: _REGISTRY,
        f"{service.__name__}:MonitoringServer": _Inert,
        f"{service.__name__}:TargetFollower": _Inert,
        f"{service.__name__}:Reporter": _Inert,
        f"{service.__name__}:collect_rarely": lambda: None,
    }


@contextmanager
def wired(
    connection_of: Callable[[str], Connection], loop: Callable[[], VirtualEventLoop], step: Callable[[str], None]
) -> Iterator[None]:
    """Let the real code run over models.

    Args:
        connection_of: returns the connection to the cluster of the process whose code runs, for a client id.
        loop: returns the first loop of that process.
        step: is called with the name of a process where its producers do something that others can see.
    """
    run = stand_ins.simulation()

    def client(config: Mapping[str, Any]) -> Connection:
        return connection_of(str(config.get("client.id")))

    def producer(config: Mapping[str, Any]) -> ServerProducer:
        connection = client(config)
        return ServerProducer(connection, run, config, lambda: step(connection.host.name))

    ReportSignal.loop = staticmethod(loop)
    directory = tempfile.TemporaryDirectory(prefix=_DIRECTORY)
    replaced: dict[str, Any] = {
        **_of_the_service(),
        f"{_CLIENTS}:Producer": producer,
        f"{_CLIENTS}:Consumer": lambda config: Consumer(client(config), run, config),
        f"{_CLIENTS}:AdminClient": lambda config: AdminClient(client(config), run),
        f"{_DELIVERY}:Producer": ServerProducer,
        f"{_DELIVERY}:ReportSignal": ReportSignal,
        f"{_DELIVERY}:is_available": lambda: True,
        "isotherm.alerts.stream.topic_setup:_ensure": lambda *_: None,
        "isotherm.alerts.stream.topic_setup:ensure_topic": lambda *_: None,
        "isotherm.alerts.stream.faust_app:tempfile": SimpleNamespace(mkdtemp=lambda prefix: directory.name),
        "aiokafka.client:create_conn": connector(connection_of),
        "mode.threads:asyncio": SimpleNamespace(**{**vars(asyncio), "new_event_loop": _new_event_loop}),
    }
    quiet = logging.root.manager.disable
    with (
        directory,
        simulated_modules(_MODULES, replaced),
        patch("mode.threads.ServiceThread.Worker", LoopThread),
        patch("mode.threads.ServiceThread._keepalive2", _no_keepalive),
        patch("mode.threads.ServiceThread.on_crash", lambda *_, **__: None),
        patch.object(TopicPartition, "__hash__", _hash_of),
        patch.object(TP, "__hash__", _hash_of),
        patch("aiokafka.AIOKafkaConsumer.__del__", lambda _self: None),
        patch("aiokafka.AIOKafkaProducer.__del__", lambda _self: None),
        # A killed process leaves coroutines that nobody awaits, and generators that wait in their `finally`.
        patch("sys.unraisablehook", lambda _unraisable: None),
        warnings.catch_warnings(action="ignore"),
    ):
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(quiet)
            # What the destructors of dead processes do belongs to this run.
            gc.collect()
