"""What the tests of the persisters share: a topic, the service as a process, and the expected contents of a sink."""

from __future__ import annotations

import json
import re
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka._model import ConsumerGroupTopicPartitions
from service_process import ServiceProcess

import isotherm.schemas
from isotherm.cli.apply import apply
from isotherm.cli.plan import DeclaredSubject, DeclaredTopic
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings

BASE_MS = 1_767_225_600_000
PATIENCE_S = 180.0
_PRODUCED_AT_ONCE = 50_000
"""Fewer than the producer's queue takes."""
_RECORDS = re.compile(r'isotherm_persisters_records_total\{.*outcome="(?P<outcome>\w+)".*\} (?P<count>\S+)')


class Seen(NamedTuple):
    """What distinguishes aggregates: identity and revision."""

    device: str
    window: int
    revision: int


def seen(document: dict[str, Any]) -> Seen:
    """The aggregate in a document."""
    return Seen(document["device_id"], (document["window_start"] - BASE_MS) // 10_000, document["revision"])


def until(what: str, condition: Callable[[], bool], *, told: Callable[[], str] = str) -> None:
    """Wait until `condition` holds."""
    pause, waited_s = threading.Event(), 0.0
    while not condition():
        pause.wait(0.1)
        waited_s += 0.1
        if waited_s > PATIENCE_S:
            pytest.fail(f"{what}: not within {PATIENCE_S} s\n{told()}")


class Broker:
    """Kafka and the registry, for one topic of aggregates, or of readings."""

    def __init__(
        self,
        bootstrap_servers: str,
        registry_url: str,
        record: str = "TemperatureAggregate",
        partitions: int = 2,
        topic: str = "",
    ) -> None:
        self.partitions = partitions
        self.kafka = KafkaSettings(bootstrap_servers=bootstrap_servers)
        self.registry = RegistrySettings(url=registry_url)
        self.topic = topic or f"conformance-{uuid.uuid4().hex[:8]}"
        schema = isotherm.schemas.schema(record, 1)
        apply(
            self.kafka,
            self.registry,
            topics=[DeclaredTopic(self.topic, partitions, {})],
            subjects=[DeclaredSubject(f"{self.topic}-value", [schema])],
        )
        self.encode = SchemaRegistry(self.registry).encoder(self.topic, schema)
        self._producer = clients.producer(self.kafka, "test")

    def aggregate(self, device: str, window: int, revision: int, *, count: int = 1) -> bytes:
        """One aggregate in the wire format."""
        start = BASE_MS + window * 10_000
        return self.encode(
            {
                "device_id": device,
                "metric": "temperature",
                "window_start": start,
                "window_end": start + 10_000,
                "count": count,
                "sum": 20.0,
                "mean": 20.0,
                "min": 20.0,
                "max": 20.0,
                "stddev": 0.0,
                "revision": revision,
            }
        )

    def reading(self, device: str, sequence: int) -> bytes:
        """One reading in the wire format; all have one event time, so that only the order in the topic tells."""
        return self.encode(
            {
                "device_id": device,
                "metric": "temperature",
                "value": 20.0,
                "unit": "Cel",
                "event_time": BASE_MS,
                "ingest_time": BASE_MS,
                "sequence": sequence,
                "attributes": {},
            }
        )

    def produce(self, *values: tuple[str, bytes | None]) -> None:
        """Write values by key, all acknowledged on return."""
        for number, (key, value) in enumerate(values, 1):
            self._producer.produce(self.topic, key=key, value=value, headers=[("h", b"kept")])
            if number % _PRODUCED_AT_ONCE == 0:
                assert self._producer.flush(60) == 0
        assert self._producer.flush(60) == 0

    def aggregates(self, devices: int, windows: range, revision: int) -> list[Seen]:
        """Produce one aggregate for each device and window."""
        written = [Seen(f"dev-{device}", window, revision) for window in windows for device in range(devices)]
        self.produce(*((one.device, self.aggregate(*one)) for one in written))
        return written

    def rewind(self, group: str) -> None:
        """Set the group back to the beginning."""
        admin = clients.admin(self.kafka, "test")
        begin = [TopicPartition(self.topic, partition, 0) for partition in range(self.partitions)]
        for future in admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, begin)]).values():
            future.result()

    def committed(self, group: str) -> list[int]:
        """The offsets that a group committed."""
        consumer = clients.consumer(self.kafka, "test", group)
        partitions = [TopicPartition(self.topic, partition) for partition in range(self.partitions)]
        found = [partition.offset for partition in consumer.committed(partitions, timeout=60) if partition.offset >= 0]
        consumer.close()
        return found

    def dead_letters(self, topic: str, count: int) -> list[tuple[bytes | None, dict[str, bytes]]]:
        """The values and headers of the first `count` dead letters."""
        consumer = clients.consumer(self.kafka, "test", f"test-{uuid.uuid4().hex}")
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[tuple[bytes | None, dict[str, bytes]]] = []

        def collected() -> bool:
            for message in consumer.consume(count - len(found), 1.0):
                assert message.error() is None
                headers: Any = message.headers()
                found.append((message.value(), dict(headers)))
            return len(found) >= count

        until(f"{count} dead letters", collected)
        consumer.close()
        return found


class Persister(ServiceProcess):
    """`isotherm-persisters run` as a process."""

    def __init__(
        self, broker: Broker, sink: str, folder: Path, port: int, lines: Sequence[str], name: str | None = None
    ) -> None:
        self.name = name or f"c-{uuid.uuid4().hex[:8]}"
        super().__init__(folder / f"{self.name}.log", port)
        self._broker, self._sink = broker, sink
        self._file = folder / f"{self.name}.properties"
        topics = [] if any(line.startswith("topics") for line in lines) else [f"topics={broker.topic}"]
        text = [f"name={self.name}", f"connector.class={sink}", *topics, *lines]
        self._file.write_text("\n".join(text) + "\n", encoding="utf-8")

    @property
    def group(self) -> str:
        return f"connect-{self.name}"

    def start(self, **settings: int | str) -> None:
        chosen = {
            "kafka.bootstrap_servers": self._broker.kafka.bootstrap_servers,
            "registry.url": self._broker.registry.url,
            "http.port": self._port,
            "session_timeout_ms": 6_000,
            "commit_interval_ms": 200,
            **settings,
        }
        sets = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
        self.launch([sys.executable, "-m", "isotherm.persisters", "run", "--sink", self._sink, str(self._file), *sets])

    def counts(self) -> Counter[str]:
        """Records by outcome, from /metrics; empty while the process does not answer."""
        counts: Counter[str] = Counter()
        for line in self.metrics():
            sample = _RECORDS.fullmatch(line)
            if sample is not None:
                counts[sample["outcome"]] += int(float(sample["count"]))
        return counts

    def metrics(self) -> list[str]:
        """The lines of /metrics; none while the process does not answer."""
        return self.page("metrics").splitlines()

    def gauge(self, name: str) -> float:
        """The sum of `isotherm_persisters_<name>` over its labels; 0 while the process does not answer."""
        samples = (line.rpartition(" ") for line in self.metrics() if line.startswith(f"isotherm_persisters_{name}"))
        return sum(float(value) for _, _, value in samples)

    def problems(self) -> dict[str, str]:
        """Why it is not ready."""
        answer = self.page("ready")
        return dict(json.loads(answer)["problems"]) if answer else {"process": "does not answer"}

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, while the process runs."""
        process = self.process
        assert process is not None
        until(what, lambda: process.poll() is not None or condition(), told=self.log)
        assert process.poll() is None, f"{what}: ended with {process.poll()}\n{self.log()}"

    def until_read(self, count: int) -> None:
        """Wait until `count` records have their outcome."""
        self.until(f"{count} records read", lambda: self.counts()["read"] >= count)

    def log(self) -> str:
        return super().log() + f"\n{self.counts()} {self.problems()}"

    def tasks(self) -> list[int]:
        """The process ids of the tasks that were started so far, from the supervisor's log."""
        lines = self._log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["pid"] for line in lines if '"event": "task started"' in line]


Persisters = Callable[..., Persister]
"""The fixture `persister`."""
