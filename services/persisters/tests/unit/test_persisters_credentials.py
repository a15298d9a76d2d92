"""Credentials in an address are refused; the error names the right keys and never repeats the credentials."""

from __future__ import annotations

import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from isotherm.connector.config import files
from isotherm.connector.config.masking import mask_of
from isotherm.connector.config.validation import InvalidConfigError
from isotherm.connector.distributed.controller import Controller, TaskPlan
from isotherm.connector.state.desired_state import PARTITIONS, DesiredState
from isotherm.connector.state.target_follower import Target
from isotherm.persisters.configuration import check
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.persisters.sinks.elasticsearch import client

GIVEN = {"connector.class": "elasticsearch", "topics": "t", "connect.elastic.kcql": "INSERT INTO a SELECT * FROM t"}
ADDRESSES = (
    {"url": "ftp://elastic:pw12345@es:9200"},
    {"url": "http://elastic:pw12345@es:9200"},
    {"url": "http://elastic:one/pw12345@es:9200"},
    {"url": "http://elastic:one,pw12345@es:9200"},
    {"url": "elastic:pw12345@es"},
    {"hosts": "es,elastic:pw12345@es"},
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_credentials_in_an_address_are_refused_and_not_repeated(address: dict[str, str]) -> None:
    given = GIVEN | {"name": "e"} | {f"connect.elastic.{key}": value for key, value in address.items()}
    with pytest.raises(InvalidConfigError) as refused:
        check(installed_sinks()["elasticsearch"], files.from_mapping(given))
    (problem,) = refused.value.problems
    assert problem.endswith("set connect.elastic.use.http.username and connect.elastic.use.http.password instead")
    assert not any(part in problem for part in ("elastic:", "one", "pw12345"))


def test_a_failed_connector_does_not_tell_them_either() -> None:
    def plan(given: files.ConnectorConfig) -> TaskPlan:
        check(installed_sinks()["elasticsearch"], given)
        return TaskPlan(1)

    controller = Controller("g", plan, mask=lambda given, text: mask_of(given, {})(text))
    controller.assigned(range(PARTITIONS))
    for number, address in enumerate(ADDRESSES):
        given = GIVEN | {f"connect.elastic.{key}": value for key, value in address.items()}
        controller.configured(f"e{number}", DesiredState(f"e{number}", "elasticsearch", given, Target(), True, "g"))
    traces = [report.trace for report in controller.reports()]
    assert len(traces) == len(ADDRESSES)
    assert all(trace and "pw12345" not in trace for trace in traces)


@pytest.mark.parametrize(
    ("keys", "header"),
    [
        ({"api.key": "aWQ6a2V5"}, "ApiKey aWQ6a2V5"),
        ({"bearer.token": "abc"}, "Bearer abc"),
        ({"use.http.username": "u", "use.http.password": "p"}, "Basic dTpw"),
    ],
)
def test_what_is_sent_with_each_request(keys: dict[str, str], header: str) -> None:
    """In the form that the server gives an API key in; the test against a real server has no API keys."""
    sent: list[str | None] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.send_header("X-Elastic-Product", "Elasticsearch")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        given = {"url": f"http://127.0.0.1:{server.server_port}", **keys}
        own = {f"connect.elastic.{key}": value for key, value in given.items()}
        config = check(installed_sinks()["elasticsearch"], files.from_mapping(GIVEN | {"name": "e"} | own))
        with closing(client.connect(config, 1)) as made:
            made.get("/_something")
        server.shutdown()
        thread.join()
    assert sent == [header]
