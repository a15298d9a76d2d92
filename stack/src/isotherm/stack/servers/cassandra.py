"""Apache Cassandra, alone or as a cluster; it speaks the same CQL as Scylla."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers.java_server import JavaServer
from isotherm.stack.servers.server import Launch, Runtime

_CONFIG_FILES = Path(__file__).parents[1] / "config" / "cassandra"
_PROBE_TIMEOUT_S = 5.0
_MAIN_CLASS = "org.apache.cassandra.service.CassandraDaemon"

# Java writes and uses an archive of classes together with an agent only where it is told that this is no production.
_WITH_AGENT = ("-XX:+UnlockDiagnosticVMOptions", "-XX:+AllowArchivingWithJavaAgent")

_SMALL_HEAP = ("-Xms128m", "-Xmx448m", "-XX:MaxDirectMemorySize=128m")
_BENCH_HEAP = ("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=256m")
_SMALL_CACHES = {
    "memtable_heap_space": "64MiB",
    "memtable_offheap_space": "64MiB",
    "file_cache_size": "32MiB",
    "networking_cache_size": "16MiB",
    "key_cache_size": "8MiB",
    # Its segments are mapped until their tables are flushed, which would otherwise be after 8 GiB of writes.
    "commitlog_total_space": "64MiB",
}
# Each worker that a request has woken looks for more work for some 10 ms, every 10 to 60 us. With the defaults (32 and
# 128) that is more than half of what a node takes under the demo's load.
_FEW_WORKERS = {"concurrent_writes": 4, "native_transport_max_threads": 4}
_BENCH_CACHES = {
    "memtable_heap_space": "128MiB",
    "memtable_offheap_space": "128MiB",
    "file_cache_size": "64MiB",
    "networking_cache_size": "32MiB",
    "key_cache_size": "16MiB",
}

# Frames of the native protocol, version 4 (specification sections 2 and 4.1.2): OPTIONS, answered by SUPPORTED.
_OPTIONS_FRAME = bytes([0x04, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x00])
_HEADER_BYTES = 9
_OPCODE_INDEX = 4
_OPCODE_SUPPORTED = 0x06
_TOKENS, _LOWEST_TOKEN = 2**64, -(2**63)


class Cassandra(JavaServer):
    """One Cassandra node without authentication.

    ``hosts`` are the addresses of all nodes of its cluster, all of them seeds, ``host`` is its own. The nodes differ in
    their addresses, and have the same ports but for JMX, which always listens on 127.0.0.1.
    """

    name: str = "cassandra"

    def __init__(
        self,
        folder: Path,
        runtime: Runtime,
        *,
        port: int,
        storage_port: int,
        jmx_port: int,
        host: str = LOOPBACK,
        hosts: Sequence[str] = (LOOPBACK,),
    ) -> None:
        super().__init__(folder, runtime)
        self.host = host
        self.hosts = tuple(hosts)
        if (number := self.hosts.index(host)) > 0:
            self.name = f"cassandra-{number + 1}"
        self.port = port
        self.storage_port = storage_port
        self.jmx_port = jmx_port

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port, self.storage_port, self.jmx_port)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def contact_points(self) -> list[str]:
        """Value for a client's contact points, all nodes; the port goes separately."""
        return list(self.hosts)

    def prepare(self) -> Launch:
        jars = self.runtime.artifacts.folder("cassandra")
        config = self.conf_folder / "cassandra.yaml"
        config.write_text(json.dumps(self.render_config(), indent=2), encoding="utf-8")  # JSON is YAML too
        agent = next(jars.glob("jamm-*.jar"))
        options = ["-Xss256k", "-XX:+UseSerialGC", f"-javaagent:{agent}", *_WITH_AGENT, *self.runtime.jit_options()]
        options += _SMALL_HEAP if self.runtime.quick_start else _BENCH_HEAP
        settings = {
            "cassandra.config": config.as_uri(),
            "cassandra.storagedir": str(self.data_folder),
            "logback.configurationFile": str(_CONFIG_FILES / "logback.xml"),
            "cassandra.jmx.local.port": str(self.jmx_port),
            "cassandra.skip_wait_for_gossip_to_settle": "0",
            "cassandra.ring_delay_ms": "1",
            "cassandra.superuser_setup_delay_ms": "0",
            # The clock of its time-outs wakes every 2 ms by default, which is most of what a node takes at rest.
            "cassandra.approximate_time_precision_ms": "20",
            "cassandra-foreground": "yes",
            "jna.tmpdir": str(self.conf_folder),
        }
        options += [f"-D{key}={value}" for key, value in settings.items()]
        # The class path has no folder of this run: an archive of classes is for one class path.
        classes = [f"@{_CONFIG_FILES / 'jvm17.args'}", "-cp", f"{jars}/*", _MAIN_CLASS]
        return self.java_launch(jars, options, classes)

    def render_config(self) -> dict[str, Any]:
        """Return the content of ``cassandra.yaml``."""
        data = self.data_folder
        return {
            "cluster_name": "isotherm",
            "num_tokens": 1,
            **self._token(),
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "endpoint_snitch": "SimpleSnitch",
            "seed_provider": [
                {
                    "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                    "parameters": [{"seeds": ",".join(f"{host}:{self.storage_port}" for host in self.hosts)}],
                }
            ],
            "listen_address": self.host,
            "storage_port": self.storage_port,
            "rpc_address": self.host,
            "start_native_transport": True,
            "native_transport_port": self.port,
            "authenticator": "AllowAllAuthenticator",
            "authorizer": "AllowAllAuthorizer",
            # An acknowledged write is on disk: with `periodic` a killed node may forget the newest ones.
            "commitlog_sync": "batch",
            "commitlog_segment_size": "8MiB",
            "data_file_directories": [f"{data}/data"],
            "commitlog_directory": f"{data}/commitlog",
            "saved_caches_directory": f"{data}/saved_caches",
            "hints_directory": f"{data}/hints",
            "cdc_raw_directory": f"{data}/cdc_raw",
            "memtable_allocation_type": "heap_buffers",
            "memtable": {
                "configurations": {
                    "skiplist": {"class_name": "SkipListMemtable"},
                    "default": {"inherits": "skiplist"},
                }
            },
            **(_SMALL_CACHES | _FEW_WORKERS if self.runtime.quick_start else _BENCH_CACHES),
            "row_cache_size": "0MiB",
            "counter_cache_size": "0MiB",
            "disk_access_mode": "mmap_index_only",
            "concurrent_compactors": 1,
            "compaction_throughput": "64MiB/s",
            "auto_bootstrap": False,
            "auto_snapshot": False,
            "storage_compatibility_mode": "NONE",
            "trickle_fsync": True,
        }

    def is_ready(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=_PROBE_TIMEOUT_S) as connection:
                connection.sendall(_OPTIONS_FRAME)
                header = connection.recv(_HEADER_BYTES, socket.MSG_WAITALL)
        except OSError:
            return False
        return len(header) == _HEADER_BYTES and header[_OPCODE_INDEX] == _OPCODE_SUPPORTED

    def _token(self) -> dict[str, Any]:
        """Return the settings that give each node of a cluster an equal share of the ring."""
        if len(self.hosts) == 1:
            return {"allocate_tokens_for_local_replication_factor": 1}
        share = _TOKENS // len(self.hosts)
        return {"initial_token": str(_LOWEST_TOKEN + share * self.hosts.index(self.host))}
