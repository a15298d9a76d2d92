"""An S3 server: S3Proxy with its objects in files."""

from __future__ import annotations

from pathlib import Path

from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers import probes
from isotherm.stack.servers.java_server import JavaServer
from isotherm.stack.servers.server import Launch, Runtime

_PROBE_TIMEOUT_S = 5.0
_FORBIDDEN = 403
_CONFIGURATION = """\
s3proxy.endpoint={address}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={access_key}
s3proxy.credential={secret_key}
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={data}
jclouds.identity=unused
jclouds.credential=unused
"""


_LOGGING = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


class S3(JavaServer):
    """One S3 server, which verifies signatures. It keeps all objects over a stop or kill."""

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
        configuration = self.conf_folder / "s3proxy.conf"
        configuration.write_text(
            _CONFIGURATION.format(
                address=self.address, access_key=self.access_key, secret_key=self.secret_key, data=self.data_folder
            )
        )
        logging = self.conf_folder / "logback.xml"
        logging.write_text(_LOGGING)
        files = self.runtime.artifacts.folder("s3proxy")
        options = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", *self.runtime.jit_options()]
        options.append(f"-Dlogback.configurationFile={logging}")
        return self.java_launch(
            files, options, ["-cp", f"{files}/*", "org.gaul.s3proxy.Main"], ["--properties", str(configuration)]
        )

    def is_ready(self) -> bool:
        """Whether it answers: it refuses a request without a signature."""
        answer = probes.get(self.port, "/", _PROBE_TIMEOUT_S)
        return answer is not None and answer.status == _FORBIDDEN

    def make_bucket(self, name: str) -> None:
        """Create a bucket: a folder among those of the objects."""
        (self.data_folder / name).mkdir(exist_ok=True)

    def keys(self, bucket: str) -> list[str]:
        """Return the keys of all objects of a bucket."""
        root = self.data_folder / bucket
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

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
