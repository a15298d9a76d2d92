"""The console's process: composes followers, the application, the HTTP server, and a background job."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import uvicorn
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient
from prometheus_client import CollectorRegistry

from isotherm.connector.errors.dead_letters import producer_overrides
from isotherm.console.app import Components, application
from isotherm.console.browser.record_masking import RecordMasker
from isotherm.console.browser.topic_browser import TopicBrowser
from isotherm.console.cluster import control_topics
from isotherm.console.cluster.control_topics import ControlTopicWriter, PendingWrites
from isotherm.console.cluster.state import ClusterState
from isotherm.console.connectors.control import ConnectorControl
from isotherm.console.connectors.offsets import KafkaOffsets
from isotherm.console.dead_letters.progress import GROUP
from isotherm.console.dead_letters.queue import KafkaDeadLetterQueues
from isotherm.console.devices.alerts import Alerts
from isotherm.console.devices.browser import DeviceBrowser, device_follower
from isotherm.console.devices.command_follower import CommandLogMetrics, command_follower
from isotherm.console.devices.command_log import CommandLog
from isotherm.console.devices.command_waits import OutcomeWaits
from isotherm.console.devices.commands import CommandControl
from isotherm.console.devices.device_states import DeviceRecordCache
from isotherm.console.devices.rules import RuleControl, Rules
from isotherm.console.devices.silences import SilenceControl, Silences
from isotherm.console.errors import UnavailableError
from isotherm.console.records.decoding import value_decoder
from isotherm.console.records.topic_follower import FollowerMetrics, TopicFollower
from isotherm.console.records.topics import KafkaTopics
from isotherm.console.settings import ConsoleSettings
from isotherm.console.trace.readback import Readbacks
from isotherm.console.trace.tracer import Tracer
from isotherm.servicekit import logs
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.health import Health, MonitoringServer
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.group_offsets import GroupAdmin
from isotherm.servicekit.lifecycle import Exit, Stop

_log = logs.logger(__name__)

_NAME = "console"
_JOB_INTERVAL_S = 5.0
_EXPIRY_INTERVAL_S = 60.0
_SERVER_CHECK_S = 1.0
"""How often it is checked that the HTTP server still runs."""
_TICK_S = 0.25
"""How often the HTTP server looks whether it should end; also the age of the date in its answers."""
_FETCH_WAIT_MS = 5_000
"""How long Kafka holds a fetch of control topics or commands while there is no record; a new one answers it at once."""
_DEVICES_MAX_DELAY_MS = 1_000
"""How old a device's shown value may be. With one record for each reading, each would be a fetch of its own."""
_DEVICES_GROUP_BYTES = 256 * 1024
"""Kafka answers a fetch of devices earlier if it has so many bytes of them."""
_QUEUED_KBYTES = 16_384
"""How much a consumer fetches ahead. Its default of 64 MiB would be most of a small container's memory."""
_PAGE_FETCH_WAIT_MS = 20
"""How long Kafka holds a fetch that finds nothing, while a person waits for a page."""
_PAGE_QUEUE_BACKOFF_MS = 5
"""How soon a consumer with a full queue looks again whether it may fetch."""


def run(settings: ConsoleSettings, stop: Stop) -> int:
    """Serve until `stop` is set, and return the exit code."""
    health, registry = Health(), CollectorRegistry()
    monitoring = MonitoringServer(settings.http, health, registry)
    monitoring.start()
    schemas = SchemaRegistry(settings.registry)
    cluster, writes = ClusterState(), PendingWrites()
    writer = ControlTopicWriter(
        lambda: clients.producer(settings.kafka, _NAME, delivery_timeout_ms=settings.write_timeout_ms),
        schemas,
        writes,
        timeout_ms=settings.write_timeout_ms,
    )
    readbacks = Readbacks(writer, now_ms, timeout_ms=settings.search.readback_timeout_ms)
    counters = FollowerMetrics(registry)
    latest, provisioned = DeviceRecordCache(settings.search.max_devices), DeviceRecordCache(settings.search.max_devices)
    alerts, silences, rules = Alerts(settings.search.max_alerts), Silences(), Rules()
    recent = (latest, provisioned, alerts)
    # Devices have a health of their own, so that connectors can be controlled while devices are missing.
    device_health = Health()
    device_health.ready()
    commands, follow_commands = _commands(settings, schemas, writer, registry, counters)
    followers = (
        control_topics.control_topic_follower(
            partial(control_consumer, settings), schemas, cluster, writes, health, counters, readbacks.handlers(schemas)
        ),
        device_follower(
            partial(_device_consumer, settings), schemas, *recent, silences, rules, device_health, counters
        ),
        follow_commands,
    )
    admin = clients.group_admin(settings.kafka, f"{_NAME}-admin")
    topics = KafkaTopics(admin, partial(page_consumer, settings), timeout_ms=settings.read_timeout_ms)
    devices = DeviceBrowser(*recent, topics, schemas, device_health, now_ms, settings.search)
    controls = SilenceControl(silences, writer, now_ms), RuleControl(rules, writer, now_ms), commands
    components = _components(settings, cluster, writer, schemas, health, admin, topics, devices, readbacks, *controls)
    for follower in followers:
        follower.start()
    job = threading.Thread(target=_background_job, args=(cluster, writer, health, stop), name="background", daemon=True)
    job.start()
    try:
        with _serving(settings, components) as (server, port):
            _log.info("serving", url=f"http://{settings.listen.host}:{port}", http_port=monitoring.port)
            health.ready()
            while server.is_alive():
                if stop.wait(_SERVER_CHECK_S):
                    return Exit.OK
            _log.error("the HTTP server ended unexpectedly")
            return Exit.FAILED
    finally:
        for follower in followers:
            follower.close()
        topics.close()
        monitoring.stop()


def _components(
    settings: ConsoleSettings,
    cluster: ClusterState,
    writer: ControlTopicWriter,
    schemas: SchemaRegistry,
    health: Health,
    admin: GroupAdmin,
    topics: KafkaTopics,
    devices: DeviceBrowser,
    readbacks: Readbacks,
    silences: SilenceControl,
    rules: RuleControl,
    commands: CommandControl,
) -> Components:
    control = ConnectorControl(cluster, writer, now_ms)
    queues = KafkaDeadLetterQueues(
        admin,
        partial(_dead_letter_consumer, settings),
        lambda: clients.producer(settings.kafka, f"{_NAME}-dead-letters", **producer_overrides()),
        timeout_ms=settings.read_timeout_ms,
        max_records=settings.max_replayed_records,
        configured_topics=control.dead_letter_topics,
    )
    decode = value_decoder(Decoder(schemas))
    offsets = KafkaOffsets(admin)
    return Components(
        settings=settings,
        cluster=cluster,
        control=control,
        offsets=offsets,
        queues=queues,
        browser=TopicBrowser(topics, RecordMasker(control, decode), control, cluster, now_ms, settings.search),
        devices=devices,
        tracer=Tracer(topics, devices, control, cluster, offsets, schemas, now_ms, settings.search, readbacks),
        silences=silences,
        rules=rules,
        commands=commands,
        decode=decode,
        cluster_id=_cluster_id(admin, settings.read_timeout_ms),
        now_ms=now_ms,
        health=health,
    )


def _commands(
    settings: ConsoleSettings,
    schemas: SchemaRegistry,
    writer: ControlTopicWriter,
    registry: CollectorRegistry,
    counters: FollowerMetrics,
) -> tuple[CommandControl, TopicFollower]:
    """Return the control of commands to devices, and what follows them and their outcomes."""
    search, health = settings.search, Health()
    health.ready()
    log = CommandLog(
        max_commands=search.max_commands,
        max_device_commands=search.max_device_commands,
        max_bytes=search.max_command_bytes,
    )
    waits = OutcomeWaits(log)
    CommandLogMetrics(registry, log, waits)
    follower = command_follower(
        partial(_command_consumer, settings), schemas, log, health, counters, max(0, now_ms() - search.commands_ms)
    )
    return CommandControl(log, waits, writer, health, now_ms), follower


def control_consumer(settings: ConsoleSettings) -> Consumer:
    """Return a consumer for the control topics."""
    return clients.consumer(settings.kafka, _NAME, _NAME, enable_partition_eof=True, fetch_wait_max_ms=_FETCH_WAIT_MS)


def _command_consumer(settings: ConsoleSettings) -> Consumer:
    """Return a consumer for commands and their outcomes: requests wait for them."""
    name = f"{_NAME}-commands"
    return clients.consumer(
        settings.kafka,
        name,
        name,
        enable_partition_eof=True,
        fetch_wait_max_ms=_FETCH_WAIT_MS,
        queued_max_messages_kbytes=_QUEUED_KBYTES,
    )


def _device_consumer(settings: ConsoleSettings) -> Consumer:
    """Return a consumer for the topics of devices: their records come in groups, each a little late."""
    name = f"{_NAME}-devices"
    return clients.consumer(
        settings.kafka,
        name,
        name,
        enable_partition_eof=True,
        fetch_min_bytes=_DEVICES_GROUP_BYTES,
        fetch_wait_max_ms=_DEVICES_MAX_DELAY_MS,
    )


def page_consumer(settings: ConsoleSettings) -> Consumer:
    """Return a consumer for the topic browser: a page is small, and a person waits for it."""
    name = f"{_NAME}-browser"
    return clients.consumer(
        settings.kafka,
        name,
        name,
        enable_partition_eof=True,
        enable_auto_offset_store=False,
        # The broker must not wait for more records, nor send many unneeded ones.
        fetch_wait_max_ms=_PAGE_FETCH_WAIT_MS,
        queued_max_messages_kbytes=_QUEUED_KBYTES,
        fetch_queue_backoff_ms=_PAGE_QUEUE_BACKOFF_MS,
    )


def _dead_letter_consumer(settings: ConsoleSettings) -> Consumer:
    """Return a consumer that reads a queue to its end, for which a person waits."""
    return clients.consumer(
        settings.kafka,
        f"{_NAME}-dead-letters",
        GROUP,
        enable_partition_eof=True,
        # The end shows only in an empty fetch, which the broker would hold for half a second.
        fetch_wait_max_ms=_PAGE_FETCH_WAIT_MS,
        queued_max_messages_kbytes=_QUEUED_KBYTES,
        # Large records fill the queue. The next fetch would wait for a second, whoever empties the queue.
        fetch_queue_backoff_ms=_PAGE_QUEUE_BACKOFF_MS,
    )


def now_ms() -> int:
    """Return the current time in epoch milliseconds."""
    return int(time.time() * 1000)


def _cluster_id(admin: AdminClient, timeout_ms: int) -> Callable[[], str]:
    @cache
    def ask() -> str:
        try:
            return str(admin.list_topics(timeout=timeout_ms / 1000).cluster_id)
        except KafkaException as error:
            raise UnavailableError(f"Kafka: {error.args[0].str()}") from error

    return ask


class _HttpServer(uvicorn.Server):
    """A server whose event loop wakes up four times a second at rest, not ten times."""

    async def main_loop(self) -> None:
        """Serve until the end is requested."""
        # The tick 0 is one that renews the date.
        while not await self.on_tick(0):  # noqa: ASYNC110 -- uvicorn sets a flag and no event
            await asyncio.sleep(_TICK_S)


@contextmanager
def _serving(settings: ConsoleSettings, components: Components) -> Iterator[tuple[threading.Thread, int]]:
    """Run the HTTP server in a thread: the main thread handles signals."""
    config = uvicorn.Config(
        application(components),
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
    server = _HttpServer(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="http", daemon=True)
    thread.start()
    try:
        yield thread, int(listener.getsockname()[1])
    finally:
        server.should_exit = True
        components.commands.waits.close()
        thread.join(settings.shutdown_timeout_ms / 1000)
        listener.close()


def _background_job(cluster: ClusterState, writer: ControlTopicWriter, health: Health, stop: Stop) -> None:
    """Sample the lag of all connectors every few seconds, and delete expired statuses every minute."""
    next_expiry_s = time.monotonic() + _EXPIRY_INTERVAL_S
    while not stop.wait(_JOB_INTERVAL_S):
        if "topics" in health.problems():
            continue
        cluster.sample_lag(now_ms())
        if time.monotonic() < next_expiry_s:
            continue
        next_expiry_s = time.monotonic() + _EXPIRY_INTERVAL_S
        keys = cluster.expired_statuses(now_ms())
        try:
            writer.delete_statuses(keys)
        except UnavailableError as error:
            _log.warning("expired statuses not deleted yet", reason=str(error))
        else:
            if keys:
                _log.info("expired statuses deleted", count=len(keys))
