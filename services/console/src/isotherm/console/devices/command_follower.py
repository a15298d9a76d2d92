"""The follower of commands and their outcomes, with a health of its own and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, Message
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from isotherm.connector.commands.records import (
    COMMAND_SCHEMA,
    COMMANDS,
    OUTCOME_SCHEMA,
    OUTCOMES,
    CommandOutcome,
    DeviceCommand,
)
from isotherm.console.devices.command_log import CommandLog
from isotherm.console.devices.command_waits import OutcomeWaits
from isotherm.console.records.topic_follower import FollowerMetrics, TopicFollower, avro_handler
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.health import Health


def command_follower(
    make_consumer: Callable[[], Consumer],
    schemas: SchemaRegistry,
    log: CommandLog,
    health: Health,
    counters: FollowerMetrics,
    from_ms: int,
) -> TopicFollower:
    """Return the follower that stores commands and outcomes from a time on (epoch milliseconds).

    It has a consumer of its own: an outcome wakes requests at once, and neither the start of the console nor the
    control of connectors waits for what devices were asked to do. `health` is shown with the commands only.
    """

    def take_command(_message: Message, record: Mapping[str, Any] | None) -> None:
        if record is not None:
            log.take_command(DeviceCommand.of(record))

    def take_outcome(_message: Message, record: Mapping[str, Any] | None) -> None:
        if record is not None:
            log.take_outcome(CommandOutcome.of(record))

    topics = {
        COMMANDS: avro_handler(schemas, COMMAND_SCHEMA, take_command)._replace(from_ms=from_ms),
        OUTCOMES: avro_handler(schemas, OUTCOME_SCHEMA, take_outcome)._replace(from_ms=from_ms),
    }
    return TopicFollower("console-commands", make_consumer, topics, health, counters)


class CommandLogMetrics(Collector):
    """How much of commands is kept, and how many requests wait for outcomes."""

    def __init__(self, registry: CollectorRegistry, log: CommandLog, waits: OutcomeWaits) -> None:
        self._log, self._waits = log, waits
        registry.register(self)

    def collect(self) -> list[Metric]:
        """Return the metrics as they are now."""
        return [
            GaugeMetricFamily("isotherm_console_commands", "Commands kept in memory.", len(self._log)),
            GaugeMetricFamily(
                "isotherm_console_command_bytes",
                "Bytes of payloads and answers of commands kept in memory.",
                self._log.size_bytes,
            ),
            CounterMetricFamily(
                "isotherm_console_commands_dropped",
                "Commands dropped from memory because of its bounds.",
                self._log.dropped,
            ),
            GaugeMetricFamily(
                "isotherm_console_command_waits", "Requests that wait for the outcome of a command.", len(self._waits)
            ),
        ]
