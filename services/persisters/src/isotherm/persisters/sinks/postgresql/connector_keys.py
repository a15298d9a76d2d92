"""The configuration keys of the PostgreSQL connector."""

from __future__ import annotations

from isotherm.connector.config.definitions import Importance, Type
from isotherm.persisters.sinks.sink_keys import TABLE_CLAUSES, SinkKeys

PREFIX = "connect.postgresql"
_LOW = Importance.LOW
_of_sink = SinkKeys(PREFIX)
_key = _of_sink.key
_SSL_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
DAY, NONE = "DAY", "NONE"

_OWN = (
    _key("host", Type.STRING, "localhost", "Host of the server; several, separated by commas, are tried in turn."),
    _key("port", Type.INT, "5432", "Port of the server.", minimum=1),
    _key("database", Type.STRING, None, "Database of the tables.", Importance.HIGH, required=True),
    _key("schema", Type.STRING, "public", "Schema of targets that name none; it must exist.", Importance.HIGH),
    _key("username", Type.STRING, "", "User."),
    _key("password", Type.PASSWORD, "", "Password."),
    _key(
        "ssl.mode",
        Type.STRING,
        "prefer",
        "TLS as libpq's `sslmode`: verify-full checks the server's certificate and its name, prefer checks nothing.",
        allowed=_SSL_MODES,
    ),
    *_of_sink.pem_files(),
    _key(
        "partition.by",
        Type.STRING,
        NONE,
        "DAY: a table that is created is partitioned by the day of the event time, with partitions made as needed.",
        allowed=(NONE, DAY),
    ),
    _key("partition.limit", Type.INT, "4000", "Most partitions of one table that a task creates.", _LOW, minimum=1),
    _key("connect.timeout.ms", Type.INT, "10000", "How long to wait for a connection, ms.", _LOW, minimum=1000),
    _key("write.timeout.ms", Type.INT, "20000", "How long one write may take, ms.", minimum=100),
    *_of_sink.batches(2_000),
)

DEFINITION = _of_sink.definition(
    "isotherm.persisters.PostgresqlSink",
    _OWN,
    aliases=("postgresql", "postgres"),
    clauses=TABLE_CLAUSES,
)
