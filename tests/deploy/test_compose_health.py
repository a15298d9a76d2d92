"""The health checks of docker-compose.yml that speak to a server by hand, against the real server."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from isotherm.stack.servers.cassandra import Cassandra
from isotherm.stack.servers.kafka import Kafka

ROOT = Path(__file__).parents[2]
FENCED = bytes.fromhex("00000012 00000001 00000000 0000 ffffffff 00000000")
"""A Metadata response (version 1) without brokers: length, correlation id, no brokers, no controller, no topics."""
OVERLOADED = bytes.fromhex("84 00 0000 00 00000000")
"""A CQL frame (version 4) with the opcode of an error."""


def check(service: str, port: int) -> subprocess.CompletedProcess[str]:
    """Run a service's health check against a port of this machine."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    kind, *command = services[service]["healthcheck"]["test"]
    assert kind == "CMD"
    inside = {"kafka": "localhost/19092", "scylla": "$$HOSTNAME/9042"}[service]
    assert inside in command[-1]
    command[-1] = command[-1].replace(inside, f"localhost/{port}").replace("$$", "$")
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def answered(service: str, answer: bytes) -> int:
    """The exit code of a health check whose server gives this answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        code = check(service, server.getsockname()[1]).returncode
        thread.join()
    return code


@pytest.mark.integration
def test_kafka_that_takes_requests_is_healthy(kafka: Kafka) -> None:
    asked = check("kafka", int(kafka.bootstrap_servers.rpartition(":")[2]))

    assert asked.returncode == 0, asked.stderr


@pytest.mark.integration
def test_a_node_that_speaks_cql_is_healthy(cassandra: Cassandra) -> None:
    asked = check("scylla", cassandra.port)

    assert asked.returncode == 0, asked.stderr


@pytest.mark.parametrize(
    ("service", "answer"), [("kafka", FENCED), ("kafka", b""), ("scylla", OVERLOADED), ("scylla", b"")]
)
def test_another_answer_is_not_healthy(service: str, answer: bytes) -> None:
    assert answered(service, answer) != 0


@pytest.mark.parametrize("service", ["kafka", "scylla"])
def test_no_server_is_not_healthy(service: str, free_port: Callable[[], int]) -> None:
    assert check(service, free_port()).returncode != 0
