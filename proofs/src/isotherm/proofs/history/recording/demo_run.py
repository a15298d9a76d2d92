"""Runs the demo and writes its history when everything has settled, before anything stops."""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from isotherm.cli.reconciliation import table
from isotherm.connector.config import dead_letter_topics
from isotherm.demo import run
from isotherm.demo.addresses import Addresses
from isotherm.demo.system import DemoPorts, Load, System
from isotherm.proofs.history.format import VERSION
from isotherm.proofs.history.recording.avro_values import AvroValues
from isotherm.proofs.history.recording.clients import record_coap, record_mqtt
from isotherm.proofs.history.recording.counters import AGGREGATOR, record_counters
from isotherm.proofs.history.recording.groups import OffsetSampler
from isotherm.proofs.history.recording.history_file import HistoryFile
from isotherm.proofs.history.recording.stores import RowWriter, record_index, record_structures, record_tables
from isotherm.proofs.history.recording.topics import TopicReader
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack

ALERTS_GROUP = "isotherm-alerts"
_ELASTICSEARCH, _CASSANDRA, _HAZELCAST = (
    "connect-temperatures-to-elasticsearch",
    "connect-readings-to-cassandra",
    "connect-coap-to-hazelcast",
)
_DEFAULT_REORDER_MS, _DEFAULT_MAX_SKEW_MS = 5_000, 60_000
"""Defaults of the alerts' settings, as docs/reference/settings.md states them."""
_RULE_FIELDS = ("kind", "metric", "threshold", "hysteresis", "for_ms", "window_ms")
_ATTRIBUTES = ("home", "room", "region", "model")
"""Default of the aggregator's `group_attributes`."""
_WINDOW = ("device_id", "metric", "window_start", "window_end")
_GROUP = ("attribute", "group", "metric", "window_start", "window_end")
_READING = ("device_id", "metric", "event_time", "sequence")
_MESSAGE = ("source", "uri_path", "observe", "ingest_time")


def record_demo(folder: Path, path: Path, seconds: float, *, free_ports: bool = False) -> None:
    """Run the demo in a folder for some seconds and write its history.

    Raises ServerFailed, CrashedError, PortTakenError; everything is stopped then.
    """
    system = System(
        Stack(folder, Ports.free() if free_ports else Ports()),
        ports=DemoPorts.free() if free_ports else DemoPorts(),
        load=Load(),
    )
    console = table.wide_console()
    system.wipe()
    system.check_ports()
    try:
        run.start(system, console, threading.Event())
        recorder = DemoRecorder(system)
        recorder.start()
        run.watch(system, console, threading.Event(), seconds)
        run.settle(system, console, threading.Event())
        recorder.record(path)
    finally:
        system.stop()


class Fault(NamedTuple):
    """A fault that was injected into a server or service; the names of Kafka's brokers begin with `kafka`."""

    time_ms: int
    target: str
    what: str


class DemoRecorder:
    """Records one run of the demo's system: `start` when it is ready, `record` when it has settled."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._addresses: Addresses = system.addresses
        self._kafka = {"bootstrap.servers": self._addresses.kafka.bootstrap_servers}
        self._topics = TopicReader(self._kafka, AvroValues(self._addresses.registry.url))
        self._offsets = OffsetSampler(self._kafka, [_ELASTICSEARCH, _CASSANDRA, _HAZELCAST, ALERTS_GROUP])

    def start(self) -> None:
        """Begin to sample offsets."""
        self._offsets.start()

    def record(self, path: Path, faults: Iterable[Fault] = (), restarted: Collection[str] = ()) -> None:
        """Write the history, when nothing is sent any more and everything has settled.

        `faults` are those that were injected; `restarted` names the services whose counters began at zero again.
        """
        addresses, partitions = self._addresses, self._topics.partitions()
        # Offsets first, then topics, then stores: an offset must not be newer than the records that it covers.
        self._offsets.stop()
        with HistoryFile(path) as history:
            settings = self._settings(partitions)
            history.write("history", version=VERSION, **settings)
            record_mqtt(history, addresses.mqtt_ledgers if self._system.mqtt_devices in self._system.simulators else ())
            record_coap(history, addresses.coap_ledgers)
            keys = {name: self._topics.record(history, name) for name in settings["topics"]}
            for device in self._topics.values("devices"):
                attributes = {name: device[name] for name in _ATTRIBUTES}
                history.write("device", device=device["device_id"], attributes=attributes)
            groups = frozenset({_ELASTICSEARCH, _CASSANDRA, _HAZELCAST})
            for topic in sorted(name for name in partitions if name.endswith(dead_letter_topics.SUFFIX)):
                self._topics.record_dead_letters(history, topic, groups)
            self._record_stores(history, keys)
            self._offsets.write(history)
            for name, service in self._system.services.items():
                if name in restarted:
                    history.write("restarted", service=name)
                record_counters(history, name, service.get)
            for fault in faults:
                history.write("fault", time=fault.time_ms, target=fault.target, what=fault.what)
            history.write("drained", service=AGGREGATOR)

    def _record_stores(self, history: HistoryFile, keys: dict[str, dict[tuple[Any, ...], str]]) -> None:
        addresses = self._addresses

        def rows(store: str, identity: tuple[str, ...], topic: str | None = None) -> RowWriter:
            return RowWriter(history, store, identity, keys[topic] if topic else None)

        url = addresses.elasticsearch_url
        record_index(url, addresses.aggregates_index, rows("elasticsearch/windows", _WINDOW))
        record_index(url, addresses.groups_index, rows("elasticsearch/groups", _GROUP))
        tables = {
            addresses.aggregates_table: rows("cassandra/windows", _WINDOW),
            addresses.brightness_table: rows("cassandra/brightness", _READING),
        }
        record_tables(addresses.cassandra_host, addresses.cassandra_port, addresses.keyspace, tables)
        maps = {addresses.aggregates_map: rows("hazelcast/windows", _WINDOW)}
        queues = {addresses.queue: rows("hazelcast/messages", _MESSAGE, addresses.coap_topic)}
        record_structures(addresses.hazelcast_address, addresses.hazelcast_cluster, maps, queues)

    def _settings(self, partitions: dict[str, int]) -> dict[str, Any]:
        addresses = self._addresses
        holds = {
            addresses.readings_topic: "readings",
            addresses.brightness_topic: "readings",
            addresses.late_topic: "late",
            addresses.aggregates_topic: "windows",
            addresses.groups_topic: "groups",
            addresses.coap_topic: "records",
            addresses.alerts_topic: "alerts",
        }
        stores = {
            "elasticsearch/windows": (addresses.aggregates_topic, "identities", _ELASTICSEARCH),
            "elasticsearch/groups": (addresses.groups_topic, "identities", _ELASTICSEARCH),
            "cassandra/windows": (addresses.aggregates_topic, "identities", _CASSANDRA),
            "cassandra/brightness": (addresses.brightness_topic, "identities", _CASSANDRA),
            "hazelcast/windows": (addresses.aggregates_topic, "identities", _HAZELCAST),
            "hazelcast/messages": (addresses.coap_topic, "records", _HAZELCAST),
        }
        return {
            "topics": {name: {"holds": what, "partitions": partitions[name]} for name, what in holds.items()},
            "stores": {name: dict(zip(("topic", "keeps", "group"), of, strict=True)) for name, of in stores.items()},
            "windows": self._windows(),
            "groups": {"output": addresses.groups_topic, "attributes": _ATTRIBUTES},
            "alerts": self._alerts(),
        }

    def _windows(self) -> dict[str, Any]:
        addresses = self._addresses
        configured = tomllib.loads((self._system.examples / "aggregator.toml").read_text(encoding="utf-8"))
        times = ("window_ms", "allowed_lateness_ms", "max_skew_ms", "max_publish_delay_ms")
        topics = {"input": addresses.readings_topic, "output": addresses.aggregates_topic, "late": addresses.late_topic}
        return topics | {"dead_letters": addresses.aggregator_dead_letters} | {name: configured[name] for name in times}

    def _alerts(self) -> dict[str, Any]:
        addresses = self._addresses
        configured = tomllib.loads((self._system.examples / "alerts.toml").read_text(encoding="utf-8"))
        rules = [
            {"name": rule.get("name", rule["kind"])} | {name: rule[name] for name in _RULE_FIELDS if name in rule}
            for rule in configured["rules"]
            if rule["kind"] in ("above", "below", "rate")
        ]
        overridden = [device["device_id"] for device in self._topics.values("devices") if device["thresholds"]]
        topics = {"input": addresses.readings_topic, "output": addresses.alerts_topic, "group": ALERTS_GROUP}
        return topics | {
            "rules": rules,
            "overridden_devices": overridden,
            "reorder_ms": configured.get("reorder_ms", _DEFAULT_REORDER_MS),
            "max_skew_ms": configured.get("max_skew_ms", _DEFAULT_MAX_SKEW_MS),
        }
