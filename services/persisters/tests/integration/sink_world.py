"""What the tests of single sinks share: records written to a real server without Kafka, also over TLS."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticsearch import Elasticsearch
from persisters_relay import Relay

from isotherm.connector.config.files import from_mapping
from isotherm.persisters.api.record import ProjectedRecord, Record
from isotherm.persisters.api.row import Batch, FailedRow, Row
from isotherm.persisters.api.sink import ReadableSink
from isotherm.persisters.api.stored_row import Finding
from isotherm.persisters.configuration import check, projector
from isotherm.persisters.records.decoding import AvroDecoder
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.servicekit.avro import (
    SchemaRegistry,
    UnknownSchemaError,
    WriterSchema,
    encoder,
    parse,
)
from isotherm.servicekit.settings import RegistrySettings

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
        kind = installed_sinks()[sink]
        self.config = check(kind, from_mapping({"name": "n", "connector.class": sink, "topics": topic, **config}))
        schemas = OneSchema(schema)
        self.sink = kind.load().build(self.config, AvroDecoder(schemas), 2, lambda topic: f"id-of-{topic}")
        self._project = projector(kind, self.config, schemas)
        self._encode = encoder(schema, SCHEMA_ID)
        self._topic = topic
        self._offset = 0
        self.reads_back = True
        """Whether everything that is written is read back."""
        self.may_find: Collection[Finding] = ()
        """What else reading back may say, where a test writes what loses or cannot be searched."""

    def prepare(self, value: Mapping[str, Any] | None, key: str | None = None, **headers: str) -> ProjectedRecord:
        """The next record of the topic, as the loop prepares it."""
        data = None if value is None else self._encode(value)
        written = tuple((name, text.encode()) for name, text in headers.items())
        keyed = None if key is None else key.encode()
        record = Record(self._topic, 0, self._offset, TIMESTAMP_MS, keyed, data, written)
        self._offset += 1
        return self._project(record)

    def rows_of(self, offset: int, *values: Mapping[str, Any]) -> Sequence[Row]:
        """The rows of records from an offset on, as the loop makes those of a batch."""
        data = map(self._encode, values)
        records = [Record(self._topic, 0, offset + at, TIMESTAMP_MS, None, one, ()) for at, one in enumerate(data)]
        self._project(records[0])
        rows = self._project.try_project_batch(records)
        assert rows is not None
        return rows

    def write(self, *prepared: ProjectedRecord) -> Sequence[FailedRow]:
        """Write the rows of these records in one batch; what the server refused of them."""
        rows = [row for one in prepared for row in one.rows]
        assert rows, [one.failed or one.filtered for one in prepared]
        self.sink.open()
        failed = self.sink.write(Batch(self._topic, 0, rows))
        self._read_back(rows, {one.index for one in failed})
        return failed

    def _read_back(self, rows: Sequence[Row], failed: Collection[int]) -> None:
        """Whatever was written, the sink finds the last row of each id as it was written, or a newer one."""
        if not (self.reads_back and isinstance(self.sink, ReadableSink)):
            return
        last = {(row.target, row.id): row for index, row in enumerate(rows) if index not in failed}
        found = self.sink.read_back([*last.values()])
        wrong = [
            (row.target, row.id, row.values, one)
            for row, one in zip(last.values(), found, strict=True)
            if one.finding not in (Finding.SAME, Finding.NEWER, *self.may_find)
        ]
        assert wrong == []


def documents(client: Elasticsearch, index: str) -> dict[str, dict[str, Any]]:
    """The documents of an index by their ids."""
    client.indices.refresh(index=index)
    return {hit["_id"]: hit["_source"] for hit in client.search(index=index, size=100)["hits"]["hits"]}


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


def behind_tls(server_port: int, folder: Path) -> tuple[Relay, dict[str, str]]:
    """A TLS relay to a server, and the keys of a connector that trusts it."""
    authority = Authority(folder)
    return Relay(server_port, context=authority.server), {"ssl.certificate.authorities": str(authority.certificates)}


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
