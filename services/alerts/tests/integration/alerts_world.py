"""Shared by the tests of the alerts service: its topics, its processes, and the records that they wrote."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Message, TopicPartition

from isotherm.cli import records as topic_records
from isotherm.cli.apply import apply
from isotherm.cli.plan import DeclaredSubject, DeclaredTopic
from isotherm.schemas import schema, topic, versions
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

PARTITIONS = 4
DEADLINE_S = 240.0
SHARED = {
    "isotherm.connectors": "ConnectorConfig",
    "isotherm.status": "TaskStatus",
    "isotherm.silences": "Silence",
}

Record = Mapping[str, Any]


def until(what: str, holds: Callable[[], bool], limit_s: float = DEADLINE_S) -> None:
    """Poll the condition until it holds; fail after a generous limit."""
    limit = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < limit, f"{what}: not within {limit_s} s"
        threading.Event().wait(0.1)


class Topics:
    """The topics of one test module: its own, because others use the declared ones."""

    def __init__(self, bootstrap_servers: str, registry_url: str, record: str = "SensorReading") -> None:
        """`record` is what the input holds."""
        self.name = f"alerts-{uuid.uuid4().hex[:8]}"
        self.kafka = KafkaSettings(bootstrap_servers=bootstrap_servers)
        self.registry = RegistrySettings(url=registry_url)
        self.input, self.devices = f"{self.name}.in", f"{self.name}.devices"
        self.rules = f"{self.name}.rules"
        self.groups = f"{self.name}.grouped"
        self.alerts, self.latest, self.dead = f"{self.name}.alerts", f"{self.name}.latest", f"{self.name}.dead-letters"
        self._records = {
            self.rules: "AlertRule",
            self.groups: "TemperatureGroup",
            self.input: record,
            self.devices: "Device",
            self.alerts: "Alert",
            self.latest: "DeviceState",
        }
        self._registry = SchemaRegistry(self.registry)
        self._decode = Decoder(self._registry)

    def declare(self) -> None:
        """Create topics and subjects as `isotherm apply` does."""
        compacted = {"cleanup.policy": "compact"}
        shared = [topic(name) for name in SHARED]
        apply(
            self.kafka,
            self.registry,
            topics=[
                *(
                    DeclaredTopic(
                        name,
                        1 if name == self.rules else PARTITIONS,
                        compacted if name in (self.devices, self.rules) else {},
                    )
                    for name in self._records
                ),
                *(DeclaredTopic(one.name, one.partitions, one.config) for one in shared),
            ],
            subjects=[
                DeclaredSubject(f"{name}-value", [schema(record, version) for version in versions(record)])
                for name, record in (self._records | SHARED).items()
            ],
        )

    def encode(self, name: str, record: Record) -> bytes:
        """A value of one of the topics."""
        return self._registry.encoder(name, schema((self._records | SHARED)[name], 1))(record)

    def publish(self, name: str, records: Iterable[Record], **overrides: Any) -> int:
        """Produce records keyed by device, and return how many when Kafka has them all."""
        encode = self._registry.encoder(name, schema(self._records[name], 1))
        producer = clients.producer(self.kafka, "alerts-test", **overrides)
        count = 0
        for record in records:
            while True:
                try:
                    producer.produce(name, key=record["device_id"], value=encode(record))
                except BufferError:
                    producer.poll(0.1)
                else:
                    break
            count += 1
        assert producer.flush(60) == 0
        return count

    def put(self, name: str, key: str, record: Record | None) -> None:
        """Produce one record, or a tombstone, to a shared topic."""
        producer = clients.producer(self.kafka, "alerts-test")
        producer.produce(name, key=key, value=None if record is None else self.encode(name, record))
        assert producer.flush(60) == 0

    def messages(self, name: str) -> list[Message]:
        """Everything committed in a topic."""
        return list(topic_records.read(self.kafka, name))

    def records(self, name: str) -> list[dict[str, Any]]:
        """The values of a topic without its tombstones, times in epoch ms."""
        return [_plain(self._decode(value).record) for message in self.messages(name) if (value := message.value())]

    def alerts_of(self, device_id: str, rule: str) -> list[dict[str, Any]]:
        """The alerts of a device and a rule, in their order."""
        found = self.records(self.alerts)
        return [one for one in found if (one["device_id"], one["rule"]) == (device_id, rule)]

    def distinct_alerts(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Every state of every alert; fails when a repeat is not the identical record."""
        values: dict[tuple[str, str], set[tuple[bytes | None, bytes | None]]] = defaultdict(set)
        found = {}
        for message in self.messages(self.alerts):
            record = _plain(self._decode(message.value() or b"").record)
            key = (record["alert_id"], record["state"])
            values[key].add((message.key(), message.value()))
            found[key] = record
        assert [key for key, seen in values.items() if len(seen) > 1] == [], "a repeat is another record"
        return found

    def unread(self) -> int:
        """Records of the input that the group has not committed."""
        admin = clients.group_admin(self.kafka, "alerts-test")
        wanted = [TopicPartition(self.input, number) for number in range(PARTITIONS)]
        found = admin.committed_offsets(self.name, wanted, timeout_s=DEADLINE_S)
        committed = {tp.partition: max(tp.offset, 0) for tp in found}
        consumer = clients.consumer(self.kafka, "alerts-test", "alerts-test")
        ends = {number: consumer.get_watermark_offsets(tp, timeout=30)[1] for number, tp in enumerate(wanted)}
        consumer.close()
        return sum(ends[number] - committed[number] for number in ends)

    def want(self, state: str, restarts: int = 0) -> None:
        """Write the target state of the service to the control topic."""
        record = {
            "name": self.name,
            "connector_class": "alerts",
            "config": {},
            "target_state": state,
            "restart_count": restarts,
            "mode": "standalone",
            "worker_group": "",
            "updated_at": 0,
        }
        producer = clients.producer(self.kafka, "alerts-test")
        producer.produce("isotherm.connectors", key=self.name, value=self.encode("isotherm.connectors", record))
        assert producer.flush(60) == 0

    def said(self) -> set[str]:
        """The states that the service has reported."""
        return {one["state"] for one in self.records("isotherm.status") if one["connector"] == self.name}


class Worker:
    """One process of the service."""

    def __init__(self, topics: Topics, folder: Path, port: int, **settings: Any) -> None:
        self._topics, self._port = topics, port
        self._log = folder / f"alerts-{port}.log"
        self._settings: dict[str, Any] = {
            "name": topics.name,
            "kafka.bootstrap_servers": topics.kafka.bootstrap_servers,
            "registry.url": topics.registry.url,
            "http.port": port,
            "input_topics": topics.input,
            "devices_topic": topics.devices,
            "rules_topic": topics.rules,
            "groups_topic": topics.groups,
            "alerts_topic": topics.alerts,
            "latest_topic": topics.latest,
            "dead_letter_topic": topics.dead,
            "session_timeout_ms": 6_000,
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> Self:
        """Start the process."""
        pairs = [
            f"{key}={value if isinstance(value, str | int) else json.dumps(value)}"
            for key, value in self._settings.items()
        ]
        command = [
            sys.executable,
            "-m",
            "isotherm.alerts",
            "run",
            *(word for pair in pairs for word in ("--set", pair)),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log)
        return self

    def start(self) -> Self:
        """Start the process and wait until it is ready."""
        self.launch()
        until("the service is ready", self.is_ready)
        return self

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    def is_ready(self) -> bool:
        """Whether /ready says so; fails when the process has ended."""
        assert self._process is not None
        assert self._process.poll() is None, f"the service has ended: {self.log()}"
        return bool(self._ask("ready") == {"ready": True, "problems": {}})

    def is_live(self) -> bool:
        """Whether /live says so."""
        return bool(self._ask("live") == '{"live": true}')

    def counted(self, name: str) -> float:
        """The sum of a metric over its labels; 0 while the process does not answer."""
        text = self._ask("metrics")
        if not isinstance(text, str):
            return 0.0
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return sum(float(value) for key, _, value in lines if key.partition("{")[0] == f"isotherm_alerts_{name}")

    def kill(self) -> None:
        """End it as `kill -9` does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(60)

    def stop(self) -> int:
        """End it as an orchestrator does; returns the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def log(self) -> str:
        """The end of its log."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-6_000:]

    def _ask(self, page: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{page}", timeout=10) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            text = error.read().decode()
        except OSError:
            return None
        return json.loads(text) if page == "ready" else text


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value
