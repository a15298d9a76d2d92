"""What the archives make of S3's refusals: credentials that end, a bucket in another region."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import iceberg_lake
import pytest
import test_persisters_parquet as parquet_files
from sink_world import Writing

from isotherm.persisters.api.sink import SinkConfigError, Unavailable

pytestmark = pytest.mark.integration

Refuse = Callable[[int, str], str]


@pytest.fixture
def refusing() -> Iterator[Refuse]:
    """The address of a server that answers each request with a status and a code of S3."""
    answer: list[Any] = []

    class Server(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, code = answer
            body = f"<Error><Code>{code}</Code><Message>Said by S3</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - the names that the library calls

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()

        def refuse(status: int, code: str) -> str:
            answer[:] = status, code
            return f"http://127.0.0.1:{server.server_port}"

        yield refuse
        server.shutdown()
        thread.join()


def _files(root: Path, keys: Mapping[str, str]) -> Writing:
    return parquet_files.writing(root, url="s3://lake/files", **keys)


def _tables(root: Path, keys: Mapping[str, str]) -> Writing:
    return iceberg_lake.writing(root, warehouse="s3://lake/tables", **keys)


@pytest.mark.parametrize("make", [_files, _tables], ids=["parquet", "iceberg"])
@pytest.mark.parametrize(
    ("status", "code", "own_keys", "expected"),
    [
        pytest.param(400, "ExpiredToken", False, Unavailable, id="a token that the client renews"),
        pytest.param(400, "InvalidToken", False, Unavailable, id="a token that the client replaces"),
        pytest.param(400, "ExpiredToken", True, SinkConfigError, id="a token of the configuration"),
        pytest.param(400, "AuthorizationHeaderMalformed", True, SinkConfigError, id="another region"),
        pytest.param(301, "PermanentRedirect", True, SinkConfigError, id="another endpoint"),
        pytest.param(403, "AccessDenied", False, SinkConfigError, id="no right"),
    ],
)
def test_a_refusal_stops_the_task_where_no_later_attempt_helps(
    tmp_path: Path,
    refusing: Refuse,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path, Mapping[str, str]], Writing],
    status: int,
    code: str,
    own_keys: bool,
    expected: type[Exception],
) -> None:
    keys = {"s3_endpoint": refusing(status, code), "s3_region": "eu-north-1"}
    if own_keys:
        keys |= {"s3_access_key": "a", "s3_secret_key": "b", "s3_session_token": "c"}
    else:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            monkeypatch.setenv(name, "of-the-environment")
    task = make(tmp_path, keys)
    with pytest.raises(expected):
        task.write(task.prepare(parquet_files.reading(0, tags={})))
