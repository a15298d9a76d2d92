"""A user of Elasticsearch without all rights: which errors 403 concern the record and which the task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest
from elastic_transport import NodeConfig

from isotherm import kcql
from isotherm.persisters.api.plan import compile_plan
from isotherm.persisters.api.row import Row
from isotherm.persisters.api.sink import RowError, SinkConfigError, Unavailable
from isotherm.persisters.sinks.elasticsearch.indices.index_targets import IndexTargets
from isotherm.persisters.sinks.elasticsearch.indices.lifecycle import check_policy
from isotherm.persisters.sinks.elasticsearch.search_server import SearchServer
from isotherm.servicekit.avro import WriterSchema, parse

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
Serve = Callable[..., IndexTargets]


@pytest.fixture
def refusing() -> Iterator[Serve]:
    """Targets on a server that answers a status, 403 unless said, to requests below a path, and 200 to all others."""
    refused: list[Any] = []

    class Server(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path, status = refused
            self.send_response(status if self.path.startswith(path) else 200)
            self.send_header("X-Elastic-Product", "Elasticsearch")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(b"{}")

        do_GET = do_HEAD = do_PUT = _answer  # noqa: N815 - the names that the standard library calls

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with closing(SearchServer([NodeConfig("http", "127.0.0.1", server.server_port)], {})) as client:

            def serve(path: str, status: int = 403) -> IndexTargets:
                refused[:] = path, status
                return IndexTargets(client, "", auto_create=True)

            yield serve
        server.shutdown()
        thread.join()


def row(statement: str) -> Row:
    (parsed,) = kcql.parse(statement)
    plan = compile_plan(parsed, WriterSchema(1, SCHEMA, parse(SCHEMA)), "-")
    return Row(0, "secret", "1", {"a": "secret"}, 0, None, plan)


def test_an_index_that_only_a_record_names_is_the_records_fault(refusing: Serve) -> None:
    targets = refusing("/secret")
    error = targets.prepare(row("INSERT INTO _value.a SELECT * FROM t"))
    assert isinstance(error, RowError)
    assert (error.reason, "403" in str(error)) == ("target", True)
    with pytest.raises(SinkConfigError, match="403"):
        targets.prepare(row("INSERT INTO secret SELECT * FROM t"))


def test_an_index_that_is_deleted_after_it_was_found_is_prepared_again(refusing: Serve) -> None:
    """Its retention deletes it between two requests of this task: nobody is to blame."""
    targets = refusing("/secret/_mapping", 404)
    with pytest.raises(Unavailable, match="secret was deleted meanwhile"):
        targets.prepare(row("INSERT INTO secret SELECT * FROM t"))
    refusing("/nothing", 404)
    assert targets.prepare(row("INSERT INTO secret SELECT * FROM t")) is None


def test_templates_that_may_not_be_put_are_nobodys_record(refusing: Serve) -> None:
    targets = refusing("/_index_template")
    with pytest.raises(SinkConfigError, match="403"):
        targets.prepare(row("INSERT INTO _value.a SELECT * FROM t"))


def test_indices_that_are_created_have_the_policy_if_the_server_has_it() -> None:
    """The distribution of Elasticsearch for tests has no ILM, so a small server stands in for it."""
    puts: dict[str, bytes] = {}

    class Server(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            puts[f"{self.command} {self.path}"] = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            is_there = not self.path.startswith(("/_ilm/policy/monthly", "/secret"))
            self.send_response(200 if is_there or self.command == "PUT" else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(b"{}")

        do_GET = do_HEAD = do_PUT = _answer  # noqa: N815 - the names that the standard library calls

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        with closing(SearchServer([NodeConfig("http", "127.0.0.1", server.server_port)], {})) as client:
            check_policy(client, "weekly")
            with pytest.raises(SinkConfigError, match="'monthly': the server has no such policy"):
                check_policy(client, "monthly")
            targets = IndexTargets(client, "", auto_create=True, policy="weekly")
            assert targets.prepare(row("INSERT INTO secret SELECT * FROM t")) is None
        server.shutdown()
        thread.join()
    template = orjson.loads(puts["PUT /_index_template/isotherm-secret"])
    assert template["template"]["settings"] == {"index.lifecycle.name": "weekly"}
    assert "PUT /secret" in puts
