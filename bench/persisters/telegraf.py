"""Telegraf on the same topic: built once with Go into the cache, run with its own best settings."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elasticsearch import Elasticsearch

import meters
import targets
import workload
from isotherm.stack.artifacts import default_cache_folder
from persister_process import watch

VERSION = "v1.37.2"
_PACKAGE = f"github.com/influxdata/telegraf/cmd/telegraf@{VERSION}"
_TAGS = "custom,inputs.kafka_consumer,outputs.elasticsearch,parsers.avro"
_STOP_S = 30.0
_CHUNK_BYTES = 1 << 20

_CONFIG = """\
[agent]
  metric_batch_size = {batch}
  metric_buffer_limit = 200000
  flush_interval = "1s"
  omit_hostname = true

[[inputs.kafka_consumer]]
  brokers = ["{bootstrap}"]
  topics = ["{topic}"]
  kafka_version = "2.6.0"
  consumer_group = "{index}"
  offset = "oldest"
  max_undelivered_messages = 20000
  data_format = "avro"
  avro_schema_registry = "{registry}"
  avro_measurement = "temperature"
  avro_tags = ["device_id", "metric"]

[[outputs.elasticsearch]]
  urls = ["{url}"]
  timeout = "60s"
  health_check_interval = "0s"
  index_name = "{index}"
  manage_template = false
"""

_NUMBERS = ("sum", "mean", "min", "max", "stddev")
MAPPING = {
    "@timestamp": {"type": "date"},
    "measurement_name": {"type": "keyword"},
    "tag": {"properties": {"device_id": {"type": "keyword"}, "metric": {"type": "keyword"}}},
    "temperature": {
        "properties": {
            "count": {"type": "long"},
            "revision": {"type": "long"},
            **{name: {"type": "double"} for name in _NUMBERS},
        }
    },
}


def binary() -> Path | None:
    """Return the program, built with Go if it is not in the cache; None without Go."""
    folder = default_cache_folder() / f"telegraf-{VERSION}"
    program = folder / "telegraf"
    if program.exists():
        return program
    if shutil.which("go") is None:
        return None
    environment = os.environ | {"GOBIN": str(folder), "GOPATH": str(folder / "go"), "GOFLAGS": "-modcacherw"}
    print(f"building Telegraf {VERSION} with Go, once (a few minutes)", flush=True)
    subprocess.run(["go", "install", "-tags", _TAGS, _PACKAGE], env=environment, check=True)
    shutil.rmtree(folder / "go")
    return program


def run(
    program: Path,
    folder: Path,
    index: str,
    chosen: workload.Workload,
    batch: int,
    *,
    bootstrap: str,
    registry: str,
    address: str,
    server_pid: int,
) -> meters.Reading:
    """Let Telegraf write the records to an index of its own; measure from the first document to the last."""
    client = Elasticsearch(address)
    client.indices.create(index=index, mappings={"properties": MAPPING}, settings=targets.SETTINGS)

    def indexed() -> int:
        found: Any = client.indices.stats(index=index, metric="indexing")
        return int(found["_all"]["primaries"]["indexing"]["index_total"])

    with _version_front(address) as url:
        config, log = folder / f"{index}.conf", folder / f"{index}.log"
        config.write_text(
            _CONFIG.format(
                batch=batch, bootstrap=bootstrap, topic=chosen.topic, index=index, registry=registry, url=url
            ),
            encoding="utf-8",
        )
        with log.open("wb") as output:
            process = subprocess.Popen([program, "--config", config], stderr=output, stdout=output)
        try:
            pause = threading.Event()
            while not (first := indexed()):
                if process.poll() is not None:
                    raise RuntimeError(f"Telegraf has ended:\n{log.read_text(encoding='utf-8')[-3_000:]}")
                pause.wait(0.02)
            return watch(indexed, first, chosen.records, own_pid=process.pid, server_pid=server_pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            client.close()


@contextmanager
def _version_front(address: str) -> Iterator[str]:
    """An address that answers `GET /` with a version and hands every other connection through to Elasticsearch.

    Telegraf asks for the version at its start, and the distribution that the stack runs comes without the module that
    answers. Handing a few megabytes a second through costs the bench's process next to nothing.
    """
    host, _, port = address.removeprefix("http://").partition(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_serve, args=(connection, (host, int(port))), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _serve(connection: socket.socket, server: tuple[str, int]) -> None:
    with connection:
        head = connection.recv(_CHUNK_BYTES)
        if head.startswith(b"GET / "):
            body = json.dumps({"name": "", "cluster_name": "", "version": {"number": "8.19.21"}}).encode()
            header = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            connection.sendall(header.encode() + body)
            return
        with socket.create_connection(server) as onward:
            onward.sendall(head)
            back = threading.Thread(target=_copy, args=(onward, connection), daemon=True)
            back.start()
            _copy(connection, onward)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while chunk := source.recv(_CHUNK_BYTES):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # One side has closed the connection: there is nothing left to hand through.
        return
