"""The configurations of the documents as printed, on real servers, with third-party clients and devices."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cassandra.cluster import Cluster, Session
from cassandra.query import dict_factory
from elasticsearch import Elasticsearch as Client
from hazelcast.client import HazelcastClient

from isotherm.cli import records
from isotherm.cli.apply import apply
from isotherm.cli.devices import import_lines
from isotherm.demo.workers import (
    Aggregator,
    CassandraPersister,
    CoapIngest,
    CoapSensors,
    Configured,
    ElasticsearchPersister,
    HazelcastPersister,
    MqttProxy,
    Worker,
)
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.settings import KafkaSettings, RegistrySettings
from isotherm.stack.artifacts import Artifacts
from isotherm.stack.servers.cassandra import Cassandra
from isotherm.stack.servers.elasticsearch import Elasticsearch
from isotherm.stack.servers.hazelcast import Hazelcast
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry
from isotherm.stack.servers.server import Runtime, Server, wait_all_ready
from isotherm.stack.stack import stop_all

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples"
WITHIN_S = 600.0
DOCUMENTED_COAP_PORT = 5633
UNITS = {"temperature": "Cel", "brightness": "lx"}

T = TypeVar("T")


class Services:
    """The services of a test: started side by side, and ended with the test."""

    def __init__(self, folder: Path, common: Sequence[str], free_port: Callable[[], int]) -> None:
        """`common` is what every service is told: `key=value`."""
        self._folder, self._common, self._free_port = folder, common, free_port
        self._started: list[Server] = []

    def start(self, kind: type[Worker], *arguments: str | Path, **environment: str) -> None:
        """Start a service with arguments and variables. Does not wait."""
        settings = [part for setting in self._common for part in ("--set", setting)]
        service = kind(
            self._folder / f"{kind.name}-{len(self._started)}",
            Runtime(Artifacts()),
            Configured(["run", *map(str, arguments), *settings], environment),
            self._free_port(),
        )
        self._started.append(service)
        service.start()

    def wait_ready(self) -> None:
        """Wait until every service that was started is ready."""
        wait_all_ready(self._started)

    def end(self) -> None:
        """Stop them all; the logs of those that had ended by themselves are shown with the failure that it led to."""
        ended = [service for service in self._started if not service.alive()]
        stop_all(reversed(self._started))
        for service in ended:
            logging.getLogger(__name__).error("%s had ended by itself:\n%s", service.name, service.log_tail(40))


def wait_for(read: Callable[[], T], enough: Callable[[T], bool], what: str) -> T:
    """Poll until the condition holds."""
    deadline = time.monotonic() + WITHIN_S
    pause = threading.Event()
    while not enough(found := read()):
        assert time.monotonic() < deadline, f"not within {WITHIN_S:.0f} s: {what}; last seen: {found}"
        pause.wait(0.3)
    return found


@pytest.fixture
def kafka_settings(kafka: Kafka) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)


@pytest.fixture
def registry_settings(registry: Registry) -> RegistrySettings:
    return RegistrySettings(url=registry.url)


@pytest.fixture
def services(
    kafka_settings: KafkaSettings,
    registry_settings: RegistrySettings,
    tmp_path: Path,
    free_port: Callable[[], int],
) -> Iterator[Services]:
    apply(kafka_settings, registry_settings)
    common = [f"kafka.bootstrap_servers={kafka_settings.bootstrap_servers}", f"registry.url={registry_settings.url}"]
    made = Services(tmp_path, common, free_port)
    yield made
    made.end()


@pytest.fixture
def queue(hazelcast_default_port: Hazelcast) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The documents in the queue `dev`, which stay there."""
    # The document says `localhost` and no port.
    client = HazelcastClient(cluster_name="dev", cluster_members=[hazelcast_default_port.address])
    dev: Any = client.get_queue("dev").blocking()
    yield lambda: [json.loads(item.to_string()) for item in dev.iterator()]
    client.shutdown()


@pytest.fixture
def cql(cassandra: Cassandra) -> Iterator[Session]:
    with Cluster(["127.0.0.1"], port=cassandra.port, protocol_version=4) as cluster:
        session = cluster.connect()
        session.row_factory = dict_factory
        yield session


def messages_from(
    source: str, kafka_settings: KafkaSettings, registry_settings: RegistrySettings
) -> list[Mapping[str, Any]]:
    decoder = Decoder(SchemaRegistry(registry_settings))
    with closing(records.read(kafka_settings, "coap_sensor_topic")) as found:
        decoded = [decoder(message.value() or b"").record for message in found]
    return [record for record in decoded if isinstance(record, dict) and record["source"] == source]


def identity(message: Mapping[str, Any]) -> tuple[Any, ...]:
    moment = message["ingest_time"]
    return (message["observe"], round(moment.timestamp() * 1000) if isinstance(moment, datetime) else moment)


def mosquitto_pub(port: int, qos: int, topic: str, lines: list[str]) -> None:
    """Publish each line as a message with Debian's client; it ends when the last one is acknowledged."""
    subprocess.run(
        ["mosquitto_pub", "-p", str(port), "-q", str(qos), "-i", f"e2e-{uuid.uuid4().hex[:8]}", "-t", topic, "-l"],
        input="".join(f"{line}\n" for line in lines),
        text=True,
        check=True,
        timeout=60,
    )


def test_document_a_coap_sensors_end_in_the_hazelcast_queue(
    services: Services,
    queue: Callable[[], list[dict[str, Any]]],
    kafka_settings: KafkaSettings,
    registry_settings: RegistrySettings,
    tmp_path: Path,
) -> None:
    conf = EXAMPLES / "coap-hazelcast" / "conf"
    source = f"localhost:{DOCUMENTED_COAP_PORT}"
    sensors = CoapSensors(tmp_path / "sensors", Runtime(Artifacts()), ["--port", str(DOCUMENTED_COAP_PORT)])
    sensors.start()
    try:
        services.start(CoapIngest, conf / "coap-hazelcast-source.properties")
        services.start(HazelcastPersister, "--sink", "hazelcast", conf / "coap-hazelcast-sink.properties")
        services.wait_ready()
        wait_for(sensors.sent, lambda count: count >= 100, "100 notifications")
    finally:
        sensors.stop()

    def taken() -> list[dict[str, Any]]:
        return [item for item in queue() if item["source"] == source]

    messages = messages_from(source, kafka_settings, registry_settings)
    items = wait_for(taken, lambda found: len(found) >= len(messages), "every record in the queue")

    assert len(messages) >= 100
    assert Counter(map(identity, items)) == Counter(map(identity, messages))
    assert set(messages[0]) <= set(items[0])
    payload = json.loads(items[0]["payload"])
    assert set(payload) == {"sensorId", "timestamp", "temperature", "message"}
    assert (items[0]["code"], items[0]["raw_code"], items[0]["is_notification"]) == ("2.05", 69, True)


def test_libcoap_s_server_is_observed_like_any_other(
    services: Services,
    queue: Callable[[], list[dict[str, Any]]],
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    port = free_port()
    program = shutil.which("coap-server-notls")
    assert program is not None, "coap-server-notls of Debian's libcoap3-bin is missing; `make setup` installs it"
    connector = tmp_path / "time.properties"
    connector.write_text(
        "name = libcoap-time\n"
        "connector.class = com.datamountaineer.streamreactor.connect.coap.source.CoapSourceConnector\n"
        f"connect.coap.uri = coap://localhost:{port}\n"
        "connect.coap.kcql = INSERT INTO coap_sensor_topic SELECT * FROM time\n"
    )
    server = subprocess.Popen([program, "-A", "127.0.0.1", "-p", str(port)])
    try:
        services.start(CoapIngest, connector)
        sink = EXAMPLES / "coap-hazelcast" / "conf" / "coap-hazelcast-sink.properties"
        services.start(HazelcastPersister, "--sink", "hazelcast", sink)
        services.wait_ready()

        def times() -> list[str]:
            return [item["payload"] for item in queue() if item["source"] == f"localhost:{port}"]

        # libcoap's `time` notifies once a second with the time as text.
        seen = wait_for(times, lambda found: len(set(found)) >= 3, "three notifications of libcoap's server")
    finally:
        server.terminate()
        server.wait(timeout=30)

    assert all(":" in text for text in seen)


def test_document_b_publishes_of_every_qos_end_in_the_tables(
    services: Services, cql: Session, cassandra: Cassandra, free_port: Callable[[], int]
) -> None:
    folder = EXAMPLES / "mqtt-cassandra"
    for statement in (folder / "schema.cql").read_text().split(";"):
        if statement.strip():
            cql.execute(statement)
    port = free_port()
    services.start(MqttProxy, "--config", folder / "mqtt-proxy.toml", "--set", f"listener.port={port}")
    addresses = {"CASSANDRA_HOST": "localhost", "CASSANDRA_PORT": str(cassandra.port)}
    for table in ("temperature", "brightness"):
        sink = folder / "conf" / f"cassandra-sink-{table}.properties"
        services.start(CassandraPersister, "--sink", "scylla", sink, **addresses)
    services.wait_ready()
    run_id, now_ms = uuid.uuid4().hex, time.time_ns() // 1_000_000

    for qos, metric in itertools.product((0, 1, 2), UNITS):
        lines = [
            json.dumps({"device_id": f"{run_id}-{qos}", "value": n / 10, "event_time": now_ms + n, "sequence": n})
            for n in range(50)
        ]
        mosquitto_pub(port, qos, f"home/kitchen/{metric}", lines)

    for qos, metric in itertools.product((0, 1, 2), UNITS):

        def rows(table: str = metric, device: str = f"{run_id}-{qos}") -> list[dict[str, Any]]:
            query = f"SELECT * FROM sensors.{table} WHERE device_id = %s ORDER BY event_time"
            return list(cql.execute(query, [device]))

        found = wait_for(rows, lambda rows_now: len(rows_now) >= 50, f"50 rows of QoS {qos} in {metric}")
        assert [(row["sequence"], row["value"]) for row in found] == [(n, n / 10) for n in range(50)]
        assert {(row["metric"], row["unit"]) for row in found} == {(metric, UNITS[metric])}


def test_document_c_thermostats_end_in_a_daily_index(
    services: Services,
    elasticsearch: Elasticsearch,
    kafka_settings: KafkaSettings,
    registry_settings: RegistrySettings,
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    home, devices, each = f"home-{uuid.uuid4().hex}", 4, 30
    ids = [f"{home}-{number}" for number in range(devices)]
    imported = import_lines(
        (json.dumps({"device_id": device, "home": home}) for device in ids), kafka_settings, registry_settings
    )
    assert imported.stored == devices
    port = free_port()
    services.start(MqttProxy, "--config", EXAMPLES / "demo" / "mqtt-proxy.toml", "--set", f"listener.port={port}")
    services.start(
        Aggregator,
        *("--config", EXAMPLES / "demo" / "aggregator.toml"),
        *("--set", f"checkpoint_dir={tmp_path / 'checkpoint'}"),
        *("--set", f"jars_dir={Artifacts().folder('spark')}"),
    )
    services.start(
        ElasticsearchPersister,
        *("--sink", "elasticsearch"),
        EXAMPLES / "temperatures-elasticsearch" / "conf" / "temperatures-to-elasticsearch.json",
        MAX_TASKS="1",
        ELASTIC_SEARCH_HOST="localhost",
        ELASTIC_SEARCH_PORT=str(elasticsearch.port),
        ELASTIC_SEARCH_CLUSTER="isotherm",
        ELASTIC_SEARCH_INDEX_AUTO_CREATE="true",
    )
    services.wait_ready()
    begin_ms = time.time_ns() // 1_000_000
    for device in ids:
        lines = [json.dumps({"id": device, "t": 20.0 + n, "ts": begin_ms + n, "seq": n}) for n in range(each)]
        mosquitto_pub(port, 2, f"devices/{device}/temperature", lines)

    days = {f"temperatures-{datetime.fromtimestamp(begin_ms / 1000 + s, UTC):%Y.%m.%d}" for s in (-10, 10)}
    wanted = {"bool": {"filter": [{"term": {"attribute": "home"}}, {"term": {"group": home}}]}}
    with Client(elasticsearch.url) as client:

        def groups() -> list[dict[str, Any]]:
            client.indices.refresh(index="temperatures-*")
            hits = client.search(index=sorted(days), query=wanted, size=100, ignore_unavailable=True)["hits"]["hits"]
            return [hit["_source"] for hit in hits]

        found = wait_for(groups, lambda now: sum(g["count"] for g in now) >= devices * each, "all readings in groups")

    assert sum(group["count"] for group in found) == devices * each
    assert {group["device_count"] for group in found} == {devices}
    assert (min(g["min"] for g in found), max(g["max"] for g in found)) == (20.0, 20.0 + each - 1)
    total = sum(group["mean"] * group["count"] for group in found)
    assert total == pytest.approx(devices * sum(20.0 + n for n in range(each)))
