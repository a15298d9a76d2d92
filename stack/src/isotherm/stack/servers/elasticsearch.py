"""Elasticsearch (the distribution without the optional modules), alone or as a cluster, security off."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isotherm.stack import unprivileged
from isotherm.stack.java import find_java
from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers import probes
from isotherm.stack.servers.java_server import IDLE_OPTIONS, JAVA_ENVIRONMENT
from isotherm.stack.servers.server import Launch, Runtime, Server

_DISTRIBUTION = "elasticsearch-8.19.21"
_PROBE_TIMEOUT_S = 10.0
_PUBLIC_FOLDER = Path("/var/tmp")  # noqa: S108 - the only place that `nobody` can reach when all else is private

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
-Djava.io.tmpdir=${ES_TMPDIR}
"""


class Elasticsearch(Server):
    """One Elasticsearch node: a small launcher process and the server as its child.

    It refuses to run as root; :mod:`isotherm.stack.unprivileged` says what is done then. ``transport_ports`` are those
    of all nodes of its cluster. The first node alone can be master: of two nodes neither has a majority without the
    other. So the loss of the first one stops the cluster until it is back, and the loss of another one does not.
    """

    name: str = "elasticsearch"

    def __init__(
        self, folder: Path, runtime: Runtime, *, port: int, transport_port: int, transport_ports: Sequence[int] = ()
    ) -> None:
        super().__init__(folder, runtime)
        self.transport_ports = tuple(transport_ports) or (transport_port,)
        self.number = self.transport_ports.index(transport_port) + 1
        if self.number > 1:
            self.name = f"elasticsearch-{self.number}"
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
        return _PUBLIC_FOLDER / f"isotherm-elasticsearch-{digest}"

    def prepare(self) -> Launch:
        home = self.runtime.artifacts.folder("elasticsearch") / _DISTRIBUTION
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
        (conf / "elasticsearch.yml").write_text(json.dumps(self.render_config(base), indent=2), encoding="utf-8")
        (conf / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
        heap = _SMALL_HEAP if self.runtime.quick_start else _BENCH_HEAP
        options = [*heap, *IDLE_OPTIONS, _JVM_OPTIONS, *self.runtime.jit_options(), ""]
        (conf / "jvm.options").write_text("\n".join(options), encoding="utf-8")
        if identity.changes_owner:
            for folder in (conf, data, temporary):
                unprivileged.give_to_nobody(folder)
        environment = {
            "ES_JAVA_HOME": str(find_java().home),
            "ES_PATH_CONF": str(conf),
            "ES_TMPDIR": str(temporary),
            "ES_JAVA_OPTS": "",
            # For the launcher, which only starts the server and waits for its end.
            "CLI_JAVA_OPTS": " ".join(("-XX:TieredStopAtLevel=1", *IDLE_OPTIONS)),
            **JAVA_ENVIRONMENT,
        }
        return Launch([*identity.prefix, "bash", str(home / "bin" / "elasticsearch")], environment)

    def render_config(self, base: Path) -> dict[str, Any]:
        """Return the content of ``elasticsearch.yml`` for a node that keeps its files below ``base``."""
        return {
            "cluster.name": "isotherm",
            "node.name": f"elasticsearch-{self.number}",
            "path.data": str(base / "data"),
            "path.logs": str(base / "tmp"),
            "network.host": LOOPBACK,
            "http.port": self.port,
            "transport.port": self.transport_port,
            **self._discovery(),
            "xpack.security.enabled": False,
            # A developer's disk is often fuller than the 85 % at which indices become read-only.
            "cluster.routing.allocation.disk.threshold_enabled": False,
        }

    def is_ready(self) -> bool:
        answer = probes.get(self.port, "/_cluster/health?wait_for_status=yellow&timeout=1s", _PROBE_TIMEOUT_S)
        return answer is not None and answer.is_ok and answer.json()["status"] in ("yellow", "green")

    def wipe(self) -> None:
        super().wipe()
        shutil.rmtree(self.public_folder, ignore_errors=True)

    def _discovery(self) -> dict[str, Any]:
        """Return how the node finds the others of its cluster."""
        if len(self.transport_ports) == 1:
            return {"discovery.type": "single-node"}
        role = {"cluster.initial_master_nodes": ["elasticsearch-1"]} if self.number == 1 else {"node.roles": ["data"]}
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
