"""An S3 server: moto's, which speaks S3's HTTP interface, conditional writes among it, and keeps objects in memory."""

from __future__ import annotations

import contextlib
import http.client
import sys
from http import HTTPStatus

from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers.server import Launch, OnePortServer

_PROBE_TIMEOUT_S = 2.0


class S3(OnePortServer):
    """One S3 server that takes any credentials. Its objects end with it; buckets are made by whoever needs them."""

    name = "s3"
    region = "us-east-1"
    access_key = "isotherm"
    secret_key = "isotherm-secret"  # noqa: S105 - of a server that lives as long as a test

    @property
    def url(self) -> str:
        """The endpoint for S3's clients, which have to name buckets in the path."""
        return f"http://{self.address}"

    def prepare(self) -> Launch:
        return Launch([sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(self.port)])

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._request("GET", "/moto-api/") is HTTPStatus.OK
        return False

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket; no effect if it is there. Raises ServerFailed if the server refuses."""
        status = self._request("PUT", f"/{bucket}")
        if status is not HTTPStatus.OK:
            raise self.failure(f"answered {status} to the creation of the bucket {bucket!r}")

    def _request(self, method: str, path: str) -> HTTPStatus:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=_PROBE_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request(method, path)
            return HTTPStatus(connection.getresponse().status)
