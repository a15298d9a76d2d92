"""HDFS: a name node and a data node, from the Hadoop jars of pyspark and those of Hadoop's minicluster."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from isotherm.stack.java import find_java
from isotherm.stack.ports import LOOPBACK
from isotherm.stack.servers import probes
from isotherm.stack.servers.java_server import JavaServer
from isotherm.stack.servers.server import Launch, Runtime
from isotherm.stack.servers.spark import MODULES, spark_home

_PROBE_TIMEOUT_S = 5.0
_FORMAT_TIMEOUT_S = 120.0


def _configuration(properties: Mapping[str, str]) -> str:
    entries = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>\n" for name, value in properties.items()
    )
    return f"<configuration>\n{entries}</configuration>\n"


class _HdfsNode(JavaServer):
    """A node with its web page, whose bean says how it is."""

    page_port: int

    def _classes(self, main_class: str) -> list[str]:
        servers = self.runtime.artifacts.folder("hdfs")
        return ["-cp", f"{self.conf_folder}:{servers}/*:{spark_home()}/jars/*", main_class]

    def _options(self) -> list[str]:
        return ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", *self.runtime.jit_options(), *MODULES]

    def _bean(self, name: str) -> list[dict[str, object]]:
        answer = probes.get(self.page_port, f"/jmx?qry={name}", _PROBE_TIMEOUT_S)
        return answer.json()["beans"] if answer is not None and answer.is_ok else []

    def _write(self, properties: Mapping[str, str], address: str) -> None:
        (self.conf_folder / "core-site.xml").write_text(_configuration({"fs.defaultFS": address}))
        (self.conf_folder / "hdfs-site.xml").write_text(_configuration(properties))

    def _launch(self, main_class: str, arguments: Sequence[str] = ()) -> Launch:
        return self.java_launch(
            self.runtime.artifacts.folder("hdfs"), self._options(), self._classes(main_class), arguments
        )


class HdfsNameNode(_HdfsNode):
    """The name node. It keeps its files over a stop or kill."""

    name = "hdfs-name-node"
    _main_class = "org.apache.hadoop.hdfs.server.namenode.NameNode"

    def __init__(self, folder: Path, runtime: Runtime, *, port: int, page_port: int) -> None:
        super().__init__(folder, runtime)
        self.port = port
        self.page_port = page_port

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port, self.page_port)

    @property
    def address(self) -> str:
        return f"hdfs://{LOOPBACK}:{self.port}"

    def prepare(self) -> Launch:
        properties = {
            "dfs.namenode.name.dir": f"file://{self.data_folder}/name",
            "dfs.namenode.rpc-address": f"{LOOPBACK}:{self.port}",
            "dfs.namenode.http-address": f"{LOOPBACK}:{self.page_port}",
            "dfs.replication": "1",
            "dfs.permissions.enabled": "false",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        }
        self._write(properties, self.address)
        if not (self.data_folder / "name").exists():
            self._format()
        return self._launch(self._main_class)

    def is_ready(self) -> bool:
        """Whether it serves and a data node has registered."""
        (state,) = self._bean("Hadoop:service=NameNode,name=FSNamesystemState") or [{}]
        (info,) = self._bean("Hadoop:service=NameNode,name=NameNodeInfo") or [{"Safemode": "starting"}]
        return bool(state.get("NumLiveDataNodes")) and info["Safemode"] == ""

    def _format(self) -> None:
        command = [find_java().command, *self._options(), *self._classes(self._main_class)]
        ended = subprocess.run(
            [*command, "-format", "-nonInteractive"],
            env={**os.environ, "JAVA_HOME": str(find_java().home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_FORMAT_TIMEOUT_S,
            check=False,
            text=True,
        )
        if ended.returncode != 0:
            raise self.failure(f"cannot be formatted:\n{ended.stdout[-3_000:]}")


class HdfsDataNode(_HdfsNode):
    """A data node of a name node."""

    name = "hdfs-data-node"

    def __init__(self, folder: Path, runtime: Runtime, *, ports: tuple[int, int, int], name_node: HdfsNameNode) -> None:
        """`ports` are those for data, for requests, and of the page."""
        super().__init__(folder, runtime)
        self.data_port, self.request_port, self.page_port = ports
        self._name_node = name_node

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.data_port, self.request_port)

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.data_port}"

    def prepare(self) -> Launch:
        properties = {
            "dfs.datanode.data.dir": f"file://{self.data_folder}/blocks",
            "dfs.datanode.address": self.address,
            "dfs.datanode.ipc.address": f"{LOOPBACK}:{self.request_port}",
            "dfs.datanode.http.address": f"{LOOPBACK}:{self.page_port}",
            "dfs.datanode.hostname": LOOPBACK,
        }
        self._write(properties, self._name_node.address)
        return self._launch("org.apache.hadoop.hdfs.server.datanode.DataNode")

    def is_ready(self) -> bool:
        return self._name_node.is_ready()
