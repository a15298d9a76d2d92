"""Elasticsearch and OpenSearch (the distributions without the optional modules), alone or as a cluster."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isotherm.stack import unprivileged
from isotherm.stack.java import find_java
from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers import probes
from isotherm.stack.servers.java_server import IDLE_OPTIONS, JAVA_ENVIRONMENT
from isotherm.stack.servers.server import Launch, Runtime, Server

_PROBE_TIMEOUT_S = 10.0
_VARIABLES = {"elasticsearch": "ES", "opensearch": "OPENSEARCH"}
"""Of the environment: how they begin."""
_PUBLIC_FOLDER = Path("/var/tmp")  # noqa: S108 - the only place that `nobody` can reach when all else is private

USER, PASSWORD = "isotherm", "isotherm-password"
"""Of a secured server: a superuser in a file."""
_PASSWORD_HASH = "$2a$08$abcdefghijklmnopqrstuuMm63WrwyD3C78dT5km2Qb7uBFAy/D3y"  # noqa: S105 - bcrypt of PASSWORD

_LOGGING = """\
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %m (%c{1.})%n%throwable
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=console
"""

_SMALL_HEAP = ("-Xms128m", "-Xmx512m")
_BENCH_HEAP = ("-Xms2g", "-Xmx2g")
"""In half a gigabyte the server refuses several large bulk requests at once (its circuit breaker of all memory)."""
_JVM_OPTIONS = """\
-XX:-AlwaysPreTouch
-XX:+UseSerialGC
"""


@dataclass(frozen=True)
class Distribution:
    """One version of the server: what is downloaded, and what it needs."""

    artifacts: str
    """The set of files."""
    folder: str
    """In the set."""
    program: str
    """`elasticsearch` or `opensearch`: so are the script, the file of settings and its variables called."""
    least_java: int
    options: tuple[str, ...] = ()
    """Options of the JVM that the version's own `jvm.options` has, and that it does not run without."""

    @property
    def is_elasticsearch(self) -> bool:
        """Whether it has the settings of X-Pack."""
        return self.program == "elasticsearch"


ELASTICSEARCH_8 = Distribution("elasticsearch", "elasticsearch-8.19.21", "elasticsearch", 17)
ELASTICSEARCH_9 = Distribution("elasticsearch-9", "elasticsearch-9.5.3", "elasticsearch", 21)
OPENSEARCH_2 = Distribution("opensearch-2", "opensearch-2.19.5", "opensearch", 17)
OPENSEARCH_3 = Distribution(
    "opensearch-3", "opensearch-3.6.0", "opensearch", 21, ("-javaagent:${HOME}/agent/opensearch-agent.jar",)
)


class Elasticsearch(Server):
    """One node of Elasticsearch or OpenSearch: a small launcher process and the server as its child.

    It refuses to run as root; :mod:`isotherm.stack.unprivileged` says what is done then. ``transport_ports`` are those
    of all nodes of its cluster. The first node alone can be master: of two nodes neither has a majority without the
    other. So the loss of the first one stops the cluster until it is back, and the loss of another one does not.
    """

    name: str = "elasticsearch"

    def __init__(
        self,
        folder: Path,
        runtime: Runtime,
        *,
        port: int,
        transport_port: int,
        transport_ports: Sequence[int] = (),
        distribution: Distribution = ELASTICSEARCH_8,
        name: str = "elasticsearch",
        secured: bool = False,
    ) -> None:
        super().__init__(folder, runtime)
        self.name = name
        self._distribution = distribution
        self._secured = secured
        self.transport_ports = tuple(transport_ports) or (transport_port,)
        self.number = self.transport_ports.index(transport_port) + 1
        if self.number > 1:
            self.name = f"{name}-{self.number}"
        self.port = port
        self.transport_port = transport_port

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port, self.transport_port)

    @property
    def url(self) -> str:
        """Value for a client's list of hosts."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def address(self) -> str:
        return self.url

    @property
    def public_folder(self) -> Path:
        """Stands in for ``folder`` when the server runs as ``nobody`` and cannot reach that one."""
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:16]
        return _PUBLIC_FOLDER / f"isotherm-{self._distribution.program}-{digest}"

    def prepare(self) -> Launch:
        distribution = self._distribution
        home = self.runtime.artifacts.folder(distribution.artifacts) / distribution.folder
        try:
            identity = unprivileged.choose_identity()
        except unprivileged.CannotDropRoot as error:
            raise self.failure(f"cannot start: {error}") from error
        base = self.folder
        if identity.changes_owner and not (identity.can("-r", home / "lib") and identity.can("-x", self.folder)):
            base = self.public_folder
            home = self._copy_distribution(home, base)
        conf, data, temporary = base / "conf", base / "data", base / "tmp"
        for folder in (conf, data, temporary):
            folder.mkdir(parents=True, exist_ok=True)
        settings = json.dumps(self.render_config(base), indent=2)
        (conf / f"{distribution.program}.yml").write_text(settings, encoding="utf-8")
        (conf / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
        heap = _SMALL_HEAP if self.runtime.quick_start else _BENCH_HEAP
        variables = _VARIABLES[distribution.program]
        own = [option.replace("${HOME}", str(home)) for option in distribution.options]
        temporary_option = f"-Djava.io.tmpdir={temporary}"
        options = [*heap, *IDLE_OPTIONS, _JVM_OPTIONS, temporary_option, *own, *self.runtime.jit_options(), ""]
        (conf / "jvm.options").write_text("\n".join(options), encoding="utf-8")
        if self._secured:
            (conf / "users").write_text(f"{USER}:{_PASSWORD_HASH}\n", encoding="utf-8")
            (conf / "users_roles").write_text(f"superuser:{USER}\n", encoding="utf-8")
        if identity.changes_owner:
            for folder in (conf, data, temporary):
                unprivileged.give_to_nobody(folder)
        environment = {
            f"{variables}_JAVA_HOME": str(find_java(distribution.least_java).home),
            f"{variables}_PATH_CONF": str(conf),
            f"{variables}_TMPDIR": str(temporary),
            f"{variables}_JAVA_OPTS": "",
            # For the launcher, which only starts the server and waits for its end.
            "CLI_JAVA_OPTS": " ".join(("-XX:TieredStopAtLevel=1", *IDLE_OPTIONS)),
            **JAVA_ENVIRONMENT,
        }
        return Launch([*identity.prefix, "bash", str(home / "bin" / distribution.program)], environment)

    def render_config(self, base: Path) -> dict[str, Any]:
        """Return the settings for a node that keeps its files below ``base``."""
        return {
            "cluster.name": "isotherm",
            "node.name": f"{self._distribution.program}-{self.number}",
            "path.data": str(base / "data"),
            "path.logs": str(base / "tmp"),
            "network.host": LOOPBACK,
            "http.port": self.port,
            "transport.port": self.transport_port,
            **self._discovery(),
            **self._security(),
            # A developer's disk is often fuller than the 85 % at which indices become read-only.
            "cluster.routing.allocation.disk.threshold_enabled": False,
        }

    def is_ready(self) -> bool:
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        answer = probes.get(
            self.port,
            "/_cluster/health?wait_for_status=yellow&timeout=1s",
            _PROBE_TIMEOUT_S,
            authorization=f"Basic {login}" if self._secured else None,
        )
        return answer is not None and answer.is_ok and answer.json()["status"] in ("yellow", "green")

    def wipe(self) -> None:
        super().wipe()
        shutil.rmtree(self.public_folder, ignore_errors=True)

    def _security(self) -> dict[str, Any]:
        """Return the settings of X-Pack's security: off, or on for the user of a file, without TLS."""
        if not self._distribution.is_elasticsearch:
            return {}
        if not self._secured:
            return {"xpack.security.enabled": False}
        return {
            "xpack.security.enabled": True,
            "xpack.security.http.ssl.enabled": False,
            "xpack.security.transport.ssl.enabled": False,
            "xpack.security.authc.api_key.enabled": True,
            # Bearer tokens are no part of the basic licence.
            "xpack.license.self_generated.type": "trial",
            "xpack.security.authc.token.enabled": True,
        }

    def _discovery(self) -> dict[str, Any]:
        """Return how the node finds the others of its cluster."""
        if len(self.transport_ports) == 1:
            return {"discovery.type": "single-node"}
        first = f"{self._distribution.program}-1"
        role = {"cluster.initial_master_nodes": [first]} if self.number == 1 else {"node.roles": ["data"]}
        return {"discovery.seed_hosts": [f"{LOOPBACK}:{port}" for port in self.transport_ports], **role}

    def _copy_distribution(self, home: Path, base: Path) -> Path:
        copy = base / home.parent.parent.name
        if not copy.exists():
            partial = base / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(home, partial)
            partial.rename(copy)
        base.chmod(0o755)
        return copy
