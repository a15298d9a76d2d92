"""Elasticsearch with security on: users and bearer tokens, and that no message tells them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from isotherm.connector.config.files import from_mapping
from isotherm.persisters.api.sink import Sink, SinkConfigError
from isotherm.persisters.configuration import check
from isotherm.persisters.records.decoding import AvroDecoder
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.settings import RegistrySettings
from isotherm.stack.servers.elasticsearch import ELASTICSEARCH_8, ELASTICSEARCH_9, PASSWORD, USER, Elasticsearch

pytestmark = [pytest.mark.integration, pytest.mark.long]

KINDS = ("user", "bearer token")
"""API keys are in an index that this distribution cannot make: the filter `pattern_capture` of its analyzer is in the
module analysis-common, which only the whole distribution has. What is sent with them: test_persisters_credentials.py.
"""


@pytest.fixture(scope="module", params=[ELASTICSEARCH_8, ELASTICSEARCH_9], ids=["8", "9"])
def secured(
    request: pytest.FixtureRequest, stack: Any, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[Elasticsearch]:
    made = Elasticsearch(
        tmp_path_factory.mktemp("secured"),
        stack.elasticsearch.runtime,
        port=free_port(),
        transport_port=free_port(),
        distribution=request.param,
        secured=True,
    )
    made.start()
    made.wait_ready()
    yield made
    made.stop()


def issued(server: Elasticsearch, kind: str) -> dict[str, str]:
    """Credentials of this kind, as a connector's keys."""
    with httpx.Client(base_url=server.url, auth=(USER, PASSWORD), timeout=60.0) as client:
        if kind == "bearer token":
            asked = {"grant_type": "password", "username": USER, "password": PASSWORD}
            made = client.post("/_security/oauth2/token", json=asked).raise_for_status().json()
            return {"bearer.token": made["access_token"]}
    return {"use.http.username": USER, "use.http.password": PASSWORD}


def sink(server: Elasticsearch, credentials: Mapping[str, str], environ: Mapping[str, str] | None = None) -> Sink:
    kcql = "INSERT INTO a SELECT * FROM t"
    given = {"name": "n", "connector.class": "elastic", "topics": "t", "url": server.url, "kcql": kcql}
    kind = installed_sinks()["elasticsearch"]
    config = check(kind, from_mapping(given | dict(credentials)).resolved(environ or {}))
    return kind.load().build(config, AvroDecoder(SchemaRegistry(RegistrySettings())), 1, lambda topic: topic)


@pytest.mark.parametrize("kind", KINDS)
def test_credentials_by_reference_open_the_server(
    secured: Elasticsearch, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    credentials = issued(secured, kind)
    *_, (secret_key, secret) = credentials.items()
    file = tmp_path / "secrets.properties"
    file.write_text(f"it={secret}\n", encoding="utf-8")
    for reference, environ in (("${env:IT}", {"IT": secret}), (f"${{file:{file}:it}}", {})):
        opened = sink(secured, credentials | {secret_key: reference}, environ)
        opened.open()
        opened.close()
    assert secret not in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_credentials_stop_the_task_and_are_not_told(
    secured: Elasticsearch, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    credentials = issued(secured, kind)
    *_, (secret_key, secret) = credentials.items()
    # The last letters of a token say little, and may be these.
    wrong = secret.swapcase()
    refused = sink(secured, credentials | {secret_key: wrong})
    with pytest.raises(SinkConfigError, match="401") as stopped:
        refused.open()
    refused.close()
    assert wrong not in str(stopped.value)
    assert wrong not in caplog.text
