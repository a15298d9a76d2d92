"""A broker that asks for logins and refuses what no ACL allows, and the suite's services with their own principals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from isotherm.cli import records
from isotherm.cli.acls.permissions import Acl, merged
from isotherm.cli.acls.required import required_acls_of
from isotherm.cli.settings import AclSettings
from isotherm.demo.system import EXAMPLES, DemoPorts, Load, System
from isotherm.demo.workers import Simulator, Worker, command
from isotherm.schemas import schema, topics
from isotherm.schemas.access import access
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.settings import KafkaSettings
from isotherm.stack.java import find_java
from isotherm.stack.kafka.access import ADMIN, PROTOCOL, Decision
from isotherm.stack.ports import Ports
from isotherm.stack.stack import Stack, stop_all

WITHIN_S = 600.0
_POLL_S = 1.0
CONNECTORS = "persisters/coap-to-hazelcast,persisters/acl-*,coap-ingest/coap-source"
WORKER_GROUPS = "persisters/sinks"
SERVICES = tuple(sorted(merged([access()])))


def until(what: str, holds: Callable[[], bool]) -> None:
    """Poll the condition until it holds; fail after a generous limit."""
    limit = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < limit, f"{what}: not within {WITHIN_S} s"
        threading.Event().wait(_POLL_S)


class AclWorld:
    """The secured broker, the registry, and services that are started one by one."""

    def __init__(self, folder: Path) -> None:
        logins = {f"isotherm-{service}": f"password{number}" for number, service in enumerate(SERVICES)}
        users = {ADMIN: "adminspassword", "nobody": "nobodyspassword", **logins}
        self.stack = Stack(folder, Ports.free(), kafka_users=users)
        self.stack.up(["kafka", "registry"])
        self.kafka = self.stack.kafka
        self.system = System(
            self.stack,
            ports=DemoPorts.free(),
            load=Load(devices=4, rate_per_s=40, qos="1:1,2:1", late_share=0, coap_rate_per_s=5),
            examples=_examples(folder / "examples"),
            overrides={"aggregator": {"corrections.interval_ms": 10_000}},
            environments={worker: self._login_of(worker) for worker in _SERVICE_OF},
        )
        self.console = f"http://127.0.0.1:{self.system.ports.pages}"
        self.admin = self.settings(ADMIN)
        self.registry = SchemaRegistry(self.system.registry)
        self.decode = Decoder(self.registry)

    def settings(self, user: str) -> KafkaSettings:
        """How a client of a user reaches Kafka."""
        return KafkaSettings(
            bootstrap_servers=self.kafka.bootstrap_servers, properties=self.kafka.client_properties(user)
        )

    def of(self, service: str) -> KafkaSettings:
        """How a client with the principal of a service reaches Kafka."""
        return self.settings(f"isotherm-{service}")

    def isotherm(self, user: str, *arguments: str, standard_input: str = "") -> str:
        """Run the command as a user; return what it has printed. Fails when the command does."""
        done = self.run_isotherm(user, *arguments, standard_input=standard_input)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run_isotherm(self, user: str, *arguments: str, standard_input: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command as a user."""
        variables = {
            "ISOTHERM_CLI__KAFKA__BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "ISOTHERM_CLI__KAFKA__PROPERTIES": json.dumps(self.kafka.client_properties(user)),
            "ISOTHERM_CLI__REGISTRY__URL": self.stack.registry.url,
            "ISOTHERM_CLI__ACLS__CONNECTORS": CONNECTORS,
            "ISOTHERM_CLI__ACLS__WORKER_GROUPS": WORKER_GROUPS,
        }
        return subprocess.run(
            [command("isotherm"), *arguments],
            env={**os.environ, **variables},
            input=standard_input,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )

    @contextmanager
    def running(self, *names: str) -> Iterator[list[Worker | Simulator]]:
        """Start services and simulators by their names in the demo, and stop them at the end."""
        every: dict[str, Worker | Simulator] = {
            **self.system.services,
            "devices": self.system.mqtt_devices,
            "sensors": self.system.sensors,
        }
        with self.ready(*(every[name] for name in names)) as started:
            yield started

    def worker(self, name: str, *more: str) -> Worker:
        """A service of the demo with further settings, in a folder of its own."""
        given = dict(one.split("=", 1) for one in more)
        environments = {worker: self._login_of(worker) for worker in _SERVICE_OF}
        system = System(
            self.stack,
            ports=self.system.ports,
            examples=self.system.examples,
            overrides={name: given},
            environments=environments,
        )
        return system.services[name]

    @contextmanager
    def ready(self, *started: Worker | Simulator) -> Iterator[list[Worker | Simulator]]:
        """Start services and simulators, and stop them at the end."""
        try:
            for server in started:
                server.start()
                server.wait_ready()
            yield list(started)
        finally:
            stop_all(started)

    @contextmanager
    def nothing_denied(self, service: str) -> Iterator[None]:
        """Fail when the broker denies the service's principal anything meanwhile."""
        since = self.kafka.log_path.stat().st_size
        yield
        assert self.denied(service, since) == []

    def denied(self, service: str, since: int = 0) -> list[Decision]:
        """What the broker has denied the service's principal since its log had so many bytes."""
        found = self.kafka.access_log(since).denied
        return sorted(one for one in found if one.principal == f"User:isotherm-{service}")

    @cached_property
    def required(self) -> KeysView[Acl]:
        """The ACLs of all services."""
        return required_acls_of(
            AclSettings(connectors=CONNECTORS.split(","), worker_groups=WORKER_GROUPS.split(","))
        ).keys()

    def java_login(self, user: str) -> str:
        """The properties with which Kafka's own tools log in."""
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        password = self.kafka.users[user]
        return (
            f"security.protocol={PROTOCOL}\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={module} required username="{user}" password="{password}";\n'
        )

    def kafka_acls(self, arguments: Sequence[str]) -> None:
        """Run Kafka's own tool for ACLs, `kafka-acls.sh`."""
        jars = self.stack.artifacts.folder("kafka")
        call = [find_java().command, "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", _ACL_TOOL, *arguments]
        done = subprocess.run(call, capture_output=True, text=True, timeout=WITHIN_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def put(self, topic: str, *values: Mapping[str, Any] | bytes, key: str = "") -> None:
        """Write records as the administrator: bytes as they are, others in the topic's schema."""
        producer = clients.producer(self.admin, "acl-test")
        record = next((one.record for one in topics() if one.name == topic), None)
        for value in values:
            if isinstance(value, bytes):
                producer.produce(topic, key=key or "key", value=value)
            else:
                assert record is not None
                encode = self.registry.encoder(topic, schema(record, 1))
                producer.produce(topic, key=key or str(value.get("device_id", "key")), value=encode(dict(value)))
        assert producer.flush(60) == 0

    def messages(self, topic: str) -> list[Message]:
        """Everything committed in a topic; nothing when there is no such topic."""
        try:
            return list(records.read(self.admin, topic))
        except records.UnknownTopicError:
            return []

    def records(self, topic: str) -> list[Mapping[str, Any]]:
        """The decoded values of a topic, without tombstones."""
        return [self.decode(value).record for one in self.messages(topic) if (value := one.value()) is not None]

    def stop(self) -> None:
        """End everything."""
        self.system.stop()
        self.stack.down()

    def _login_of(self, worker: str) -> dict[str, str]:
        service = _SERVICE_OF[worker]
        prefix = f"ISOTHERM_{service.upper().replace('-', '_')}"
        return {
            f"{prefix}__KAFKA__PROPERTIES": json.dumps(self.kafka.client_properties(f"isotherm-{service}")),
        }


_ACL_TOOL = "org.apache.kafka.tools.AclCommand"
_ROUTE = """
[[routes]]
kind = "webhook"
name = "nobody"
url = "http://127.0.0.1:9/"
retry_for_ms = 1_000
"""


def _examples(folder: Path) -> Path:
    """The demo's configurations, with a route that reaches nobody and with dead letters."""
    shutil.copytree(EXAMPLES, folder)
    with (folder / "alerts.toml").open("a", encoding="utf-8") as file:
        file.write(
            '\n[[routes]]\nkind = "webhook"\nname = "nobody"\nurl = "http://127.0.0.1:9/"\nretry_for_ms = 1_000\n'
        )
    with (folder / "coap-to-hazelcast.properties").open("a", encoding="utf-8") as file:
        file.write("\nerrors.tolerance = all\nerrors.deadletterqueue.enable = true\n")
    return folder


_SERVICE_OF = {
    "mqtt-proxy": "mqtt-proxy",
    "coap-ingest": "coap-ingest",
    "aggregator": "aggregator",
    "persister-hazelcast": "persisters",
    "worker-sinks": "persisters",
    "alerts": "alerts",
    "console": "console",
}
"""The service of each worker of the demo that is started here."""
