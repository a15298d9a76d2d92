"""The configuration keys of the Parquet connector."""

from __future__ import annotations

from isotherm.connector.config.definitions import Importance, Type
from isotherm.persisters.sinks.sink_keys import SinkKeys

PREFIX = "connect.parquet"
_LOW = Importance.LOW
_of_sink = SinkKeys(PREFIX)
_key = _of_sink.key

_OWN = (
    _key(
        "url",
        Type.STRING,
        None,
        "Where the files go: `file:///srv/archive`, a folder that exists, or `s3://bucket/folder`.",
        Importance.HIGH,
        required=True,
    ),
    _key(
        "partition.by",
        Type.STRING,
        "DAY",
        "Folders by event time (UTC): `date=2026-01-31`, with HOUR `hour=05` in it, `month=2026-01`, or NONE.",
        allowed=("HOUR", "DAY", "MONTH", "NONE"),
    ),
    _key("compression", Type.STRING, "ZSTD", "Of the files' pages.", allowed=("ZSTD", "SNAPPY", "GZIP", "NONE")),
    *_of_sink.s3(),
    _key("write.timeout.ms", Type.INT, "20000", "How long one request to S3 may take, ms.", minimum=100),
    *_of_sink.batches(50_000, size_bytes=33_554_432, linger_ms=60_000),
)

DEFINITION = _of_sink.definition(
    "isotherm.persisters.ParquetSink",
    _OWN,
    aliases=("parquet",),
    clauses=("IGNORE", "WITHTIMESTAMP", "TIMESTAMPUNIT", "WITHSTRUCTURE", "PROPERTIES"),
    clause_reasons=(("PK", "an archive keeps every record; take the last row of an id when you read"),),
)
