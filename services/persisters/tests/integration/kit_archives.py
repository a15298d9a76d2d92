"""The archive sinks for the kit: files read by DuckDB, objects of an S3 server, tables of an Iceberg catalog."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from kit_stores import RelayedSink
from obstore.store import S3Store
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from isotherm.sink_testkit import SinkUnderTest

EVERY = "SELECT device, sequence, level FROM stored ORDER BY kafka_partition, kafka_offset"
LATEST = """
    SELECT device, sequence, level FROM stored
    QUALIFY row_number() OVER (PARTITION BY {pk} ORDER BY revision DESC, kafka_offset DESC) = 1
"""
"""What the how-to tells users to ask for the last row of each id."""


def asked(stored: Any, query: str) -> list[dict[str, Any]]:
    """The answer of DuckDB to a query of `stored`: an Arrow table, or a query of its own."""
    with duckdb.connect() as connection:
        if isinstance(stored, str):
            connection.execute(f"CREATE VIEW stored AS {stored}")
        else:
            connection.register("stored", stored)
        answer = connection.execute(query)
        names = [column[0] for column in answer.description or ()]
        return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


class ParquetFilesUnderTest(SinkUnderTest):
    """Files in a folder, every row of them."""

    sink = "isotherm.persisters.sinks.parquet.plugin:SINK"
    is_append = True

    def __init__(self, folder: Path) -> None:
        self.root = folder / "archive"
        self.root.mkdir()

    def connector(self, topic: str, target: str, pk: Sequence[str]) -> Mapping[str, str]:
        return {
            "connect.parquet.url": self.root.as_uri(),
            "connect.parquet.kcql": f"INSERT INTO {target} SELECT * FROM {topic}",
        }

    def rows(self, target: str) -> Sequence[Mapping[str, Any]]:
        files = [str(path) for path in self.root.glob(f"{target}/**/*.parquet")]
        return asked(f"SELECT * FROM read_parquet({files}, union_by_name = true)", self.query(target)) if files else []

    def query(self, _target: str) -> str:
        return EVERY

    @contextmanager
    def outage(self) -> Iterator[None]:
        # As with a file system that is not mounted: something else is where the folder was.
        away = self.root.rename(self.root.with_name("away"))
        self.root.touch()
        try:
            yield
        finally:
            self.root.unlink()
            away.rename(self.root)


class ParquetLatestUnderTest(ParquetFilesUnderTest):
    """The last row of each id, as a query of the files takes it."""

    is_append = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._pk: dict[str, str] = {}

    def connector(self, topic: str, target: str, pk: Sequence[str]) -> Mapping[str, str]:
        self._pk[target] = ", ".join(pk)
        return super().connector(topic, target, pk)

    def query(self, target: str) -> str:
        return LATEST.format(pk=self._pk[target])


class ParquetBucketUnderTest(RelayedSink):
    """Objects of an S3 server."""

    sink = "isotherm.persisters.sinks.parquet.plugin:SINK"
    is_append = True
    bucket = "sink-kit"

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        server.create_bucket(self.bucket)
        self._store = S3Store(self.bucket, **s3_options(server))

    def connector(self, topic: str, target: str, pk: Sequence[str]) -> Mapping[str, str]:
        return {
            "connect.parquet.url": f"s3://{self.bucket}/lake",
            "connect.parquet.s3.endpoint": f"http://127.0.0.1:{self.relay.port}",
            "connect.parquet.s3.access.key": self.server.access_key,
            "connect.parquet.s3.secret.key": self.server.secret_key,
            "connect.parquet.write.timeout.ms": "3000",
            "connect.parquet.kcql": f"INSERT INTO {target} SELECT * FROM {topic}",
        }

    def rows(self, target: str) -> Sequence[Mapping[str, Any]]:
        listed = [entry["path"] for chunk in self._store.list(f"lake/{target}") for entry in chunk]
        tables = [pq.read_table(io.BytesIO(bytes(self._store.get(path).bytes()))) for path in listed]
        return asked(pa.concat_tables(tables), EVERY) if tables else []


class IcebergUnderTest(RelayedSink):
    """Tables of a catalog in PostgreSQL with files in a folder, every row of them."""

    sink = "isotherm.persisters.sinks.iceberg.plugin:SINK"
    is_append = True

    def __init__(self, server: Any, folder: Path) -> None:
        super().__init__(server)
        self.warehouse = folder.as_uri()
        uri = server.url.replace("postgresql:", "postgresql+psycopg:")
        self.catalog = SqlCatalog("default", uri=uri, warehouse=self.warehouse)

    def connector(self, topic: str, target: str, pk: Sequence[str]) -> Mapping[str, str]:
        return {
            "connect.iceberg.catalog.uri": f"postgresql+psycopg://127.0.0.1:{self.relay.port}/{self.server.database}",
            "connect.iceberg.catalog.username": self.server.user,
            "connect.iceberg.catalog.password": self.server.password,
            "connect.iceberg.warehouse": self.warehouse,
            "connect.iceberg.namespace": "kit",
            "connect.iceberg.write.timeout.ms": "3000",
            "connect.iceberg.kcql": f"INSERT INTO {target} SELECT * FROM {topic} AUTOCREATE PK {', '.join(pk)}",
        }

    def rows(self, target: str) -> Sequence[Mapping[str, Any]]:
        try:
            table = self.catalog.load_table(f"kit.{target}")
        except NoSuchTableError:
            return []
        return asked(table.scan().to_arrow(), EVERY)

    def close(self) -> None:
        self.catalog.close()
        super().close()


def s3_options(server: Any) -> dict[str, Any]:
    """What obstore's client takes to talk to an S3 server of the stack."""
    return {
        "region": server.region,
        "endpoint": server.url,
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
        "virtual_hosted_style_request": False,
        "client_options": {"allow_http": urlsplit(server.url).scheme == "http"},
    }
