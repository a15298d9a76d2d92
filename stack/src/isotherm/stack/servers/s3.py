"""An S3 server: that of moto, which keeps objects in memory and believes every signature."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers import probes
from isotherm.stack.servers.server import Launch, Runtime, Server

_PROBE_TIMEOUT_S = 5.0
_REQUEST_TIMEOUT_S = 30.0


class S3(Server):
    """One S3 server. A stop or kill loses its objects."""

    name = "s3"
    access_key = secret_key = "isotherm"  # noqa: S105 - of a server that lives as long as a test

    def __init__(self, folder: Path, runtime: Runtime, *, port: int) -> None:
        super().__init__(folder, runtime)
        self.port = port

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port,)

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def prepare(self) -> Launch:
        return Launch([sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(self.port)])

    def is_ready(self) -> bool:
        answer = probes.get(self.port, "/moto-api/data.json", _PROBE_TIMEOUT_S)
        return answer is not None and answer.is_ok

    def make_bucket(self, name: str) -> None:
        """Create a bucket. Raises ServerFailed."""
        answer = probes.request("PUT", self.port, f"/{name}", _REQUEST_TIMEOUT_S)
        if not answer.is_ok:
            raise self.failure(f"has not created the bucket {name}: {answer.status}")

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the keys of at most 1,000 objects whose key begins with `prefix`."""
        answer = probes.request("GET", self.port, f"/{bucket}?list-type=2&prefix={prefix}", _REQUEST_TIMEOUT_S)
        return re.findall(r"<Key>(.*?)</Key>", answer.body.decode())

    def spark_properties(self) -> dict[str, str]:
        """Return the properties by which Spark finds this server for `s3a://` (with the set `hadoop-aws`)."""
        named = {
            "endpoint": self.address,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "access.key": self.access_key,
            "secret.key": self.secret_key,
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        }
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in named.items()}
