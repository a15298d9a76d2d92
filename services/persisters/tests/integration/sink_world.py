"""What the tests of single sinks share: records straight into a real server, without Kafka; and a way that breaks."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from connector.config import from_mapping
from persisters.catalog import KINDS, check
from persisters.decode import AvroDecoder, WriterSchema
from persisters.sink import Batch, Rejected
from persisters.work import Prepared, Record
from persisters.worker import projector
from servicekit.avro import SchemaRegistry, UnknownSchemaError, encoder, parse
from servicekit.settings import RegistrySettings

SCHEMA_ID = 7
TIMESTAMP_MS = 1_767_225_600_000
"""2026-01-01, Kafka's timestamp of every record."""


class OneSchema(SchemaRegistry):
    """A registry that knows one schema, under SCHEMA_ID."""

    def __init__(self, schema: dict[str, Any]) -> None:
        super().__init__(RegistrySettings())
        self._one = schema

    def schema(self, schema_id: int) -> Any:
        """The schema."""
        if schema_id != SCHEMA_ID:
            raise UnknownSchemaError(schema_id)
        return WriterSchema(schema_id, self._one, parse(self._one))


class Writing:
    """One connector's projection and sink: what the loop does with a record, in the test's own thread."""

    def __init__(self, sink: str, schema: dict[str, Any], topic: str, config: Mapping[str, str]) -> None:
        kind = KINDS[sink]
        self.config = check(kind, from_mapping({"name": "n", "connector.class": sink, "topics": topic, **config}))
        schemas = OneSchema(schema)
        self.sink = kind.load().build(self.config, AvroDecoder(schemas), 2)
        self._project = projector(kind, self.config, schemas)
        self._encode = encoder(schema, SCHEMA_ID)
        self._topic = topic
        self._offset = 0

    def prepare(self, value: Mapping[str, Any] | None, key: str | None = None, **headers: str) -> Prepared:
        """The next record of the topic, as the loop prepares it."""
        data = None if value is None else self._encode(value)
        written = tuple((name, text.encode()) for name, text in headers.items())
        keyed = None if key is None else key.encode()
        record = Record(self._topic, 0, self._offset, TIMESTAMP_MS, keyed, data, written)
        self._offset += 1
        return self._project(record)

    def write(self, *prepared: Prepared) -> Sequence[Rejected]:
        """Write the rows of these records in one batch; what the server refused of them."""
        rows = [row for one in prepared for row in one.rows]
        assert rows, [one.refusal or one.filtered for one in prepared]
        self.sink.open()
        return self.sink.write(Batch(self._topic, 0, rows))


class Tunnel:
    """A TCP port in front of a server: with TLS when given a context, and away until `open` is called."""

    def __init__(self, port: int, target_port: int, context: ssl.SSLContext | None = None) -> None:
        self.port = port
        self._target = ("127.0.0.1", target_port)
        self._context = context
        self._listener: socket.socket | None = None
        self._sockets: list[socket.socket] = []

    def open(self) -> None:
        """Take connections from here on."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Break every connection and take no new one."""
        if self._listener is not None:
            _shut(self._listener)
        for connection in self._sockets:
            _shut(connection)
        self._sockets.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            near = plain if self._context is None else self._context.wrap_socket(plain, server_side=True)
            far = socket.create_connection(self._target)
        except OSError:
            _shut(plain)
            return
        self._sockets += [near, far]
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


class Authority:
    """A certificate authority and a server certificate for 127.0.0.1, as PEM files."""

    def __init__(self, folder: Path) -> None:
        self.certificates = folder / "ca.pem"
        key, request, certificate = folder / "key.pem", folder / "request.pem", folder / "server.pem"
        extensions = folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n", encoding="utf-8")
        new = ["-newkey", "rsa:2048", "-nodes", "-days", "2"]
        ca_key = folder / "ca.key"
        _openssl("req", "-x509", *new, "-keyout", ca_key, "-out", self.certificates, "-subj", "/CN=authority")
        _openssl("req", *new[:-2], "-keyout", key, "-out", request, "-subj", "/CN=localhost")
        signed = ["-CA", self.certificates, "-CAkey", ca_key, "-CAcreateserial", "-days", "2", "-extfile", extensions]
        _openssl("x509", "-req", "-in", request, *signed, "-out", certificate)
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(certificate, key)


def behind_tls(port: int, target_port: int, folder: Path) -> tuple[Tunnel, dict[str, str]]:
    """An open way with TLS to a server, and the keys of a connector that trusts it."""
    authority = Authority(folder)
    way = Tunnel(port, target_port, authority.server)
    way.open()
    return way, {"ssl.certificate.authorities": str(authority.certificates)}


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            sink.sendall(data)
    except OSError:
        pass
    finally:
        _shut(source)
        _shut(sink)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
