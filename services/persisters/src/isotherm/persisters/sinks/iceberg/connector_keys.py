"""The configuration keys of the Iceberg connector."""

from __future__ import annotations

from isotherm.connector.config.definitions import Importance, Type
from isotherm.persisters.sinks.sink_keys import TABLE_CLAUSES, SinkKeys

PREFIX = "connect.iceberg"
_LOW = Importance.LOW
_of_sink = SinkKeys(PREFIX)
_key = _of_sink.key

_OWN = (
    _key("catalog", Type.STRING, "SQL", "Kind of the catalog.", Importance.HIGH, allowed=("SQL", "REST")),
    _key(
        "catalog.uri",
        Type.STRING,
        None,
        "Address of the catalog: for SQL `sqlite:////srv/archive/catalog.db` or `postgresql+psycopg://HOST/DATABASE`, "
        "for REST `https://HOST`.",
        Importance.HIGH,
        required=True,
    ),
    _key(
        "catalog.name", Type.STRING, "default", "Name of the catalog; readers of an SQL catalog must use the same one."
    ),
    _key("catalog.username", Type.STRING, "", "User of an SQL catalog, or client id of a REST catalog."),
    _key("catalog.password", Type.PASSWORD, "", "Password of that user, or client secret."),
    _key("catalog.token", Type.PASSWORD, "", "Bearer token of a REST catalog.", _LOW),
    _key(
        "warehouse",
        Type.STRING,
        "",
        "Where new tables go: `file:///srv/archive` or `s3://bucket/folder`; for REST the name of a warehouse.",
        Importance.HIGH,
    ),
    _key("namespace", Type.STRING, "default", "Namespace of targets that name none; AUTOCREATE creates it."),
    _key(
        "partition.by",
        Type.STRING,
        "DAY",
        "Partitions of a table that is created: by the day, hour or month of the event time (UTC), or NONE.",
        allowed=("HOUR", "DAY", "MONTH", "NONE"),
    ),
    *_of_sink.s3(),
    _key("write.timeout.ms", Type.INT, "20000", "How long one request to the catalog or S3 may take, ms.", minimum=100),
    _key(
        "snapshots.keep.ms",
        Type.LONG,
        "432000000",
        "How long snapshots are kept, ms: `isotherm-persisters compact` removes older ones.",
        minimum=0,
    ),
    _key(
        "orphans.keep.ms",
        Type.LONG,
        "259200000",
        "How long files are kept that no snapshot has, ms: killed tasks leave some, and `isotherm-persisters compact` "
        "removes older ones. Longer than any write takes.",
        minimum=3_600_000,
    ),
    *_of_sink.batches(50_000, size_bytes=33_554_432, linger_ms=60_000),
)

DEFINITION = _of_sink.definition(
    "isotherm.persisters.IcebergSink",
    _OWN,
    aliases=("iceberg",),
    clauses=TABLE_CLAUSES,
)
