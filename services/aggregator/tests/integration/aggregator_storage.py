"""Servers that keep a checkpoint, and the settings of an aggregator that writes there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from isotherm.aggregator.spark import properties
from isotherm.stack.artifacts import Artifacts
from isotherm.stack.servers.server import Runtime, Server, wait_all_ready
from isotherm.stack.servers.storage.hdfs import HdfsDataNode, HdfsNameNode
from isotherm.stack.servers.storage.s3 import S3

ROCKSDB = {properties.STATE_STORE: properties.ROCKSDB}
BUCKET = "checkpoints"


@dataclass(frozen=True)
class Storage:
    """Where checkpoints are kept."""

    location: str
    """A URI, below which each test has a folder."""
    properties: dict[str, str]
    """What Spark needs to reach it."""
    jars: list[Path]


def all_jars(storage: Storage) -> list[Path]:
    """The jars of the service and those of the storage."""
    return [*sorted(Artifacts().folder("spark").glob("*.jar")), *storage.jars]


@contextmanager
def s3(folder: Path, free_port: Callable[[], int]) -> Iterator[Storage]:
    """A server of S3 with a bucket."""
    server = S3(folder / "s3", Runtime(Artifacts()), port=free_port())
    with _running(server):
        server.create_bucket(BUCKET)
        jars = sorted(Artifacts().folder("hadoop-aws").glob("*.jar"))
        yield Storage(f"s3a://{BUCKET}", s3a_properties(server), jars)


def s3a_properties(server: S3) -> dict[str, str]:
    """The properties by which Spark finds a server of S3."""
    named = {
        "endpoint": server.url,
        "endpoint.region": server.region,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": server.access_key,
        "secret.key": server.secret_key,
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in named.items()}


@contextmanager
def hdfs(folder: Path, free_port: Callable[[], int]) -> Iterator[Storage]:
    """A name node with a data node."""
    runtime = Runtime(Artifacts())
    names = HdfsNameNode(folder / "names", runtime, port=free_port(), page_port=free_port())
    ports = (free_port(), free_port(), free_port())
    with _running(names, HdfsDataNode(folder / "data", runtime, ports=ports, name_node=names)):
        yield Storage(names.address, {"spark.hadoop.dfs.replication": "1"}, [])


STORAGES = {"s3": s3, "hdfs": hdfs}


@contextmanager
def _running(*servers: Server) -> Iterator[None]:
    try:
        for server in servers:
            server.start()
        wait_all_ready(servers)
        yield
    finally:
        for server in reversed(servers):
            server.stop()
