"""How the sinks reach their servers: addresses, credentials, TLS, load balancing."""

from __future__ import annotations

import base64
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from isotherm.connector.config import files
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.validation import InvalidConfigError, Validated
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
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
        ({"bearer.token": "t0k3n"}, "Bearer t0k3n"),
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
        with closing(client), pytest.raises(Unavailable, match="503"):
            client.identify()
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


CLOUD = base64.b64encode(b"eu.example.org:9243$es1$kibana1").decode()


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
        ({"cloud.id": f"name:{CLOUD}"}, ["https://es1.eu.example.org:9243"]),
        ({"cloud.id": "name:ZXhhbXBsZS5vcmckZXM="}, ["https://es.example.org:443"]),
    ],
)
def test_addresses_of_elasticsearch(given: dict[str, str], expected: list[str]) -> None:
    assert nodes(elastic(**given)) == expected


def test_an_address_that_is_none() -> None:
    with pytest.raises(InvalidConfigError, match="'mongodb://h' is not allowed"):
        elastic(url="mongodb://h")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cloud.id": "name"}, r"connect\.elastic\.cloud\.id: Cloud ID is not properly formatted"),
        (
            {"cloud.id": f"name:{CLOUD}", "url": "http://h"},
            r"cloud\.id: not allowed together with connect\.elastic\.url",
        ),
        ({"cloud.id": f"name:{CLOUD}", "hosts": "h"}, r"not allowed together with connect\.elastic\.hosts"),
        (
            {"api.key": "s3cr3t", "bearer.token": "t0k3n"},
            r"not allowed together with connect\.elastic\.api",
        ),
        ({"use.http.username": "u", "bearer.token": "t0k3n"}, r"bearer\.token: not allowed together with .*username"),
        ({"api.key": "s3cr3t\r\nX: y"}, r"api\.key: holds a character that no header of HTTP carries"),
        ({"compression": "zip"}, "'zip' is not allowed; expected one of none, gzip"),
    ],
)
def test_addresses_and_credentials_that_contradict_each_other(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message) as wrong:
        elastic(**given)
    assert "s3cr3t" not in str(wrong.value)
    assert "t0k3n" not in str(wrong.value)
