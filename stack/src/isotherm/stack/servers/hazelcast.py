"""Hazelcast members of cluster ``dev``. Everything is in memory: data survive a kill only on another member."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers import probes
from isotherm.stack.servers.java_server import JavaServer
from isotherm.stack.servers.server import Launch, OnePortServer, Runtime

CLUSTER_NAME = "dev"
DEFAULT_BACKUPS = 1  # Hazelcast's own default; without effect while there is one member
BOUNDED_QUEUE_ITEMS = 50  # of queues whose names begin with "bounded_"
_PROBE_TIMEOUT_S = 2.0
_BACKED_UP = ("map", "queue", "list", "set", "multimap", "ringbuffer")

# What Hazelcast asks for on Java 9 and later (reference manual, "Running in Modular Java").
_MODULE_OPTIONS = (
    "--add-modules=java.se",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.management/sun.management=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
)


class Hazelcast(OnePortServer, JavaServer):
    """One member. ``member_ports`` are the ports of all members that may form its cluster, its own included.

    ``backups`` is the number of synchronous copies of every map, queue, list, set, multimap and ring buffer.
    """

    name: str = "hazelcast"

    def __init__(
        self,
        folder: Path,
        runtime: Runtime,
        *,
        port: int,
        member_ports: tuple[int, ...],
        backups: int = DEFAULT_BACKUPS,
    ) -> None:
        super().__init__(folder, runtime, port=port)
        self.member_ports = member_ports
        self.backups = backups

    @property
    def cluster_name(self) -> str:
        """Name of the cluster that clients have to give."""
        return CLUSTER_NAME

    def prepare(self) -> Launch:
        jars = self.runtime.artifacts.folder("hazelcast")
        config = self.conf_folder / "hazelcast.yaml"
        config.write_text(json.dumps(self.render_config(), indent=2), encoding="utf-8")  # JSON is YAML too
        options = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", *self.runtime.jit_options()]
        options += [f"-Dhazelcast.config={config}"]
        classes = [*_MODULE_OPTIONS, "-cp", f"{jars}/*", "com.hazelcast.core.server.HazelcastMemberStarter"]
        return self.java_launch(jars, options, classes)

    def render_config(self) -> dict[str, Any]:
        """Return the content of ``hazelcast.yaml``."""
        config: dict[str, Any] = {
            "cluster-name": CLUSTER_NAME,
            "properties": {
                "hazelcast.phone.home.enabled": "false",
                "hazelcast.logging.type": "jdk",
                "hazelcast.socket.bind.any": "false",  # on the interface below, not on all
                "hazelcast.health.monitoring.level": "OFF",  # a page of figures in the log, every 20 s
                # A stop hands its partitions over to the other member; a lone member has nobody to wait for.
                "hazelcast.shutdownhook.policy": "GRACEFUL",
                "hazelcast.graceful.shutdown.max.wait": "10",
                "hazelcast.wait.seconds.before.join": "0",
                "hazelcast.partition.count": "31",
            },
            "network": {
                "port": {"port": self.port, "auto-increment": False},
                "interfaces": {"enabled": True, "interfaces": [LOOPBACK]},
                "public-address": self.address,
                "rest-api": {"enabled": True, "endpoint-groups": {"HEALTH_CHECK": {"enabled": True}}},
                "join": {
                    "auto-detection": {"enabled": False},
                    "multicast": {"enabled": False},
                    "tcp-ip": {
                        "enabled": True,
                        "member-list": [f"{LOOPBACK}:{port}" for port in self.member_ports],
                    },
                },
            },
            "jet": {"enabled": False},
            "integrity-checker": {"enabled": False},
        }
        config |= {kind: {"default": {"backup-count": self.backups}} for kind in _BACKED_UP}
        config["queue"]["bounded_*"] = {"backup-count": self.backups, "max-size": BOUNDED_QUEUE_ITEMS}
        return {"hazelcast": config}

    def is_ready(self) -> bool:
        """Tell whether the member serves and every backup that the configuration asks for is in place."""
        for check in ("ready", "cluster-safe"):
            answer = probes.get(self.port, f"/hazelcast/health/{check}", _PROBE_TIMEOUT_S)
            if answer is None or not answer.is_ok:
                return False
        return True


class SecondHazelcast(Hazelcast):
    """The second member, for tests that kill one of two."""

    name: str = "hazelcast-second"
