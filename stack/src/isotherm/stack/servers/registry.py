"""Apicurio Registry with Confluent's schema registry API, its data in an H2 file."""

from __future__ import annotations

from http.client import HTTPException

from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers import probes
from isotherm.stack.servers.java_server import JavaServer
from isotherm.stack.servers.server import Launch, OnePortServer

BASE_PATH = "/apis/ccompat/v7"
COMPATIBILITY = "FULL_TRANSITIVE"
_JAR = "apicurio-registry-app-2.6.13.Final-runner.jar"
_PROBE_TIMEOUT_S = 5.0
_CONFIGURE_TIMEOUT_S = 60.0

# The stock URL is an in-memory database. H2 answers a commit up to 500 ms before it writes it, unless told
# not to: a kill would lose schemas whose ids producers have already used.
_H2_OPTIONS = "DB_CLOSE_ON_EXIT=FALSE;WRITE_DELAY=0"


class Registry(OnePortServer, JavaServer):
    """One schema registry; its global compatibility is FULL_TRANSITIVE from the start."""

    name: str = "registry"

    @property
    def url(self) -> str:
        """Value for a client's ``schema.registry.url``, base path included."""
        return f"http://{LOOPBACK}:{self.port}{BASE_PATH}"

    @property
    def address(self) -> str:
        return self.url

    def prepare(self) -> Launch:
        jars = self.runtime.artifacts.folder("registry")
        options = ["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", *self.runtime.jit_options()]
        settings = {
            "quarkus.http.host": LOOPBACK,
            "quarkus.http.port": str(self.port),
            "quarkus.datasource.jdbc.url": f"jdbc:h2:file:{self.data_folder}/registry;{_H2_OPTIONS}",
            "quarkus.datasource.jdbc.initial-size": "2",
            "quarkus.datasource.jdbc.min-size": "2",
            "quarkus.datasource.jdbc.max-size": "10",
        }
        options += [f"-D{key}={value}" for key, value in settings.items()]
        return self.java_launch(jars, options, ["-jar", str(jars / _JAR)])

    def is_ready(self) -> bool:
        answer = probes.get(self.port, f"{BASE_PATH}/subjects", _PROBE_TIMEOUT_S)
        return answer is not None and answer.is_ok

    def after_ready(self) -> None:
        """Set the global compatibility, which is NONE in a fresh registry. Raises ServerFailed."""
        body = {"compatibility": COMPATIBILITY}
        try:
            answer = probes.request("PUT", self.port, f"{BASE_PATH}/config", _CONFIGURE_TIMEOUT_S, body)
        except (OSError, HTTPException) as error:
            raise self.failure(f"does not take compatibility {COMPATIBILITY} ({error!r})") from error
        if not answer.is_ok:
            raise self.failure(f"refused compatibility {COMPATIBILITY} ({answer.status} {answer.body.decode()})")
        super().after_ready()
