"""How the sinks reach their servers: addresses, credentials, TLS, load balancing."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from elasticsearch import ApiError

from isotherm.connector.config import files
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.validation import InvalidConfigError, Validated
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.configuration import check
from isotherm.persisters.sinks import tls
from isotherm.persisters.sinks.cassandra.sink import load_balancing
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.sinks.elasticsearch.client import connect, nodes


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"api.key": "c2VjcmV0"}, "ApiKey c2VjcmV0"),
        ({"use.http.username": "u", "use.http.password": "p"}, "Basic dTpw"),
    ],
)
def test_credentials_travel_with_every_request(given: dict[str, str], expected: str) -> None:
    seen: list[str | None] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        client = connect(elastic(url=f"http://127.0.0.1:{server.server_port}", **given), 1)
        with client, pytest.raises(ApiError):
            client.cluster.health()
        thread.join()
    assert seen == [expected]


@pytest.mark.parametrize(
    ("named", "expected"),
    [("TOKEN_AWARE", "TokenAwarePolicy"), ("dc_aware", "DCAwareRoundRobinPolicy"), ("ROUND_ROBIN", "RoundRobinPolicy")],
)
def test_load_balancing_of_scylla(named: str, expected: str) -> None:
    given = {"name": "n", "connector.class": "scylla", "topics": "t", "kcql": "INSERT INTO k.a SELECT * FROM t"}
    found = check(installed_sinks()["scylla"], files.from_mapping(given | {"load.balancing.policy": named}))
    assert type(load_balancing(found)).__name__ == expected


def test_tls_files_that_are_not_there_or_hold_something_else(tmp_path: Path) -> None:
    given = {"name": "n", "connector.class": "scylla", "topics": "t", "kcql": "INSERT INTO k.a SELECT * FROM t"}
    wrong = tmp_path / "authorities.pem"
    for key in ("ssl.certificate.authorities", "ssl.certificate"):
        found = check(installed_sinks()["scylla"], files.from_mapping(given | {key: str(wrong)}))
        with pytest.raises(SinkConfigError, match=rf"connect\.cassandra\.{key}: there is no file"):
            tls.context(found, "connect.cassandra")
    wrong.write_text("no certificate", encoding="utf-8")
    found = check(installed_sinks()["scylla"], files.from_mapping(given | {"ssl.certificate": str(wrong)}))
    with pytest.raises(SinkConfigError, match=r"connect\.cassandra\.ssl: "):
        tls.context(found, "connect.cassandra")


def elastic_config(**more: str) -> ConnectorConfig:
    base = {"name": "n", "connector.class": "elastic", "topics": "t", "kcql": "INSERT INTO a SELECT * FROM t"}
    return files.from_mapping(base | {k.replace("__", "."): v for k, v in more.items()})


def elastic(**more: str) -> Validated:
    return check(installed_sinks()["elasticsearch"], elastic_config(**more))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["http://localhost:9200"]),
        ({"hosts": "a,b:9300", "port": "9201", "protocol": "https"}, ["https://a:9201", "https://b:9300"]),
        ({"url": "elasticsearch://h:1,https://i"}, ["http://h:1", "https://i:9200"]),
        ({"url": "http://[::1]:9200/path"}, ["http://[::1]:9200/path"]),
    ],
)
def test_addresses_of_elasticsearch(given: dict[str, str], expected: list[str]) -> None:
    assert nodes(elastic(**given)) == expected


def test_an_address_that_is_none() -> None:
    with pytest.raises(InvalidConfigError, match="'mongodb://h' is not allowed"):
        elastic(url="mongodb://h")
