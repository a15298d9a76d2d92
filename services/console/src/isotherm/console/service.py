"""The console's process: follower, application, and the upkeep of the status topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import uvicorn
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from prometheus_client import CollectorRegistry

from isotherm.console.app import Components, application
from isotherm.console.browser.record_masking import RecordMasker
from isotherm.console.browser.topic_browser import TopicBrowser
from isotherm.console.cluster import control_topics
from isotherm.console.cluster.control_topics import ControlTopicWriter, PendingWrites
from isotherm.console.cluster.state import ClusterState
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.offsets import KafkaOffsets
from isotherm.console.dead_letters.queue import KafkaDeadLetterQueues
from isotherm.console.devices import browser
from isotherm.console.devices.alerts import Alerts
from isotherm.console.devices.browser import DeviceBrowser
from isotherm.console.devices.device_states import DeviceRecordCache
from isotherm.console.errors import UnavailableError
from isotherm.console.records.decoding import value_decoder
from isotherm.console.records.topic_follower import FollowerMetrics
from isotherm.console.records.topics import KafkaTopics
from isotherm.console.settings import ConsoleSettings
from isotherm.servicekit import kafka, logs
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.lifecycle import Exit, Stop

_log = logs.logger(__name__)

_NAME = "console"
_UPKEEP_S = 5.0
_FORGET_EVERY_S = 60.0


def run(settings: ConsoleSettings, stop: Stop) -> int:
    """Serve until `stop`; the exit code."""
    health, registry = Health(), CollectorRegistry()
    monitoring = MonitoringServer(settings.http, health, registry)
    monitoring.start()
    schemas = SchemaRegistry(settings.registry)
    fleet, writes = ClusterState(), PendingWrites()
    journal = ControlTopicWriter(
        lambda: kafka.producer(settings.kafka, _NAME, delivery_timeout_ms=settings.write_timeout_ms),
        schemas,
        writes,
        timeout_ms=settings.write_timeout_ms,
    )
    counters = FollowerMetrics(registry)
    latest, provisioned = DeviceRecordCache(settings.search.devices_kept), DeviceRecordCache(settings.search.devices_kept)
    alerts = Alerts(settings.search.alerts_kept)
    # Of its own: what is missing of devices keeps nobody from working with connectors.
    condition = Health()
    condition.ready()
    followers = (
        control_topics.follower(settings.kafka, schemas, fleet, writes, health, counters),
        browser.follower(settings.kafka, schemas, latest, provisioned, alerts, condition, counters),
    )
    admin = kafka.admin(settings.kafka, f"{_NAME}-admin")
    topics = KafkaTopics(settings.kafka, admin, timeout_ms=settings.read_timeout_ms)
    devices = DeviceBrowser(latest, provisioned, alerts, topics, schemas, condition, now_ms, settings.search)
    parts = _parts(settings, fleet, journal, schemas, health, admin, topics, devices)
    for follower in followers:
        follower.start()
    upkeep = threading.Thread(target=_upkeep, args=(fleet, journal, health, stop), name="upkeep", daemon=True)
    upkeep.start()
    try:
        with _serving(settings, parts) as (server, port):
            _log.info("console", url=f"http://{settings.listen.host}:{port}", http_port=monitoring.port)
            health.ready()
            while server.is_alive():
                if stop.wait(0.5):
                    return Exit.OK
            _log.error("the HTTP server ended by itself")
            return Exit.FAILED
    finally:
        for follower in followers:
            follower.close()
        topics.close()
        monitoring.stop()


def _parts(
    settings: ConsoleSettings,
    fleet: ClusterState,
    journal: ControlTopicWriter,
    schemas: SchemaRegistry,
    health: Health,
    admin: AdminClient,
    topics: KafkaTopics,
    devices: DeviceBrowser,
) -> Components:
    control = ConnectorControl(fleet, journal, now_ms)
    letters = KafkaDeadLetterQueues(
        settings.kafka,
        admin,
        timeout_ms=settings.read_timeout_ms,
        most=settings.replay_letters,
        box_names=control.dead_letter_topics,
    )
    read = value_decoder(Decoder(schemas))
    return Components(
        settings=settings,
        fleet=fleet,
        control=control,
        offsets=KafkaOffsets(admin),
        letters=letters,
        browser=TopicBrowser(topics, RecordMasker(control, read), control, fleet, now_ms, settings.search),
        devices=devices,
        read=read,
        cluster_id=_cluster_id(admin, settings.read_timeout_ms),
        now_ms=now_ms,
        health=health,
    )


def now_ms() -> int:
    """Epoch milliseconds."""
    return int(time.time() * 1000)


def _cluster_id(admin: AdminClient, timeout_ms: int) -> Callable[[], str]:
    @cache
    def ask() -> str:
        try:
            return str(admin.list_topics(timeout=timeout_ms / 1000).cluster_id)
        except KafkaException as error:
            raise UnavailableError(f"Kafka: {error.args[0].str()}") from error

    return ask


@contextmanager
def _serving(settings: ConsoleSettings, parts: Components) -> Iterator[tuple[threading.Thread, int]]:
    """The HTTP server in a thread of its own: signals are the process's business."""
    config = uvicorn.Config(
        application(parts),
        host=settings.listen.host,
        port=settings.listen.port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=settings.shutdown_timeout_ms // 2000,
    )
    listener = config.bind_socket()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="http", daemon=True)
    thread.start()
    try:
        yield thread, int(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(settings.shutdown_timeout_ms / 1000)
        listener.close()


def _upkeep(fleet: ClusterState, journal: ControlTopicWriter, health: Health, stop: Stop) -> None:
    """Watch the lag, and remove statuses that nobody needs any more."""
    next_forget_s = time.monotonic() + _FORGET_EVERY_S
    while not stop.wait(_UPKEEP_S):
        if "topics" in health.problems():
            continue
        fleet.sample(now_ms())
        if time.monotonic() < next_forget_s:
            continue
        next_forget_s = time.monotonic() + _FORGET_EVERY_S
        keys = fleet.outdated(now_ms())
        try:
            journal.forget_statuses(keys)
        except UnavailableError as error:
            _log.warning("old statuses not removed yet", reason=str(error))
        else:
            if keys:
                _log.info("old statuses removed", count=len(keys))
