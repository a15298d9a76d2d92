"""The configuration keys of the Cassandra and Scylla connector."""

from __future__ import annotations

from isotherm.connector.config.definitions import Importance, Type
from isotherm.persisters.sinks.sink_keys import TABLE_CLAUSES, SinkKeys

PREFIX = "connect.cassandra"
_LOW = Importance.LOW
_of_sink = SinkKeys(PREFIX)
_key = _of_sink.key
_LEVELS = ("ANY", "ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "LOCAL_ONE")

_OF_OLD_CONNECTOR = (
    ("threadpool.size", "partitions are written in parallel, each in order; tasks.max adds processes"),
    ("delete.enabled", "a statement says it: PROPERTIES('behavior.on.null.values'='DELETE')"),
    ("delete.statement", "rows are deleted by their primary key, the statement's PK"),
)


_OWN = (
    _key("contact.points", Type.LIST, "localhost", "Hosts to connect to first.", Importance.HIGH),
    _key("port", Type.INT, "9042", "CQL port.", minimum=1),
    _key("key.space", Type.STRING, "", "Keyspace of targets that name none.", Importance.HIGH),
    _key(
        "key.space.replication.factor",
        Type.INT,
        "0",
        "If above 0, create a missing keyspace with so many replicas in every data centre.",
        minimum=0,
    ),
    _key("username", Type.STRING, "", "User."),
    _key("password", Type.PASSWORD, "", "Password."),
    _key("ssl.enabled", Type.BOOLEAN, "false", "Use TLS."),
    *_of_sink.pem_files(),
    _key("consistency.level", Type.STRING, "LOCAL_QUORUM", "Replicas that must have a row.", allowed=_LEVELS),
    _key("load.balancing.local.dc", Type.STRING, "", "Data centre to write to; empty takes the first contact's."),
    _key(
        "load.balancing.policy",
        Type.STRING,
        "TOKEN_AWARE",
        "Which server gets a row: TOKEN_AWARE a local replica, DC_AWARE any local server, ROUND_ROBIN any server.",
        _LOW,
        allowed=("TOKEN_AWARE", "DC_AWARE", "ROUND_ROBIN"),
    ),
    _key("connect.timeout.ms", Type.INT, "10000", "How long to wait for a connection, ms.", _LOW, minimum=1),
    _key(
        "query.timeout.ms",
        Type.INT,
        "20000",
        "How long one write may take, ms.",
        minimum=1,
        aliases=(f"{PREFIX}.read.timeout.ms",),
    ),
    _key(
        "default.value",
        Type.STRING,
        "",
        "What a null does: UNSET leaves the column as it is, NULL deletes its value. Empty: UNSET, but NULL for "
        "records with a revision. A statement may say it: PROPERTIES('nullToUnset'='true').",
        _LOW,
        allowed=("", "UNSET", "NULL"),
    ),
    _key("max.concurrent.requests", Type.INT, "256", "Requests in flight at once.", minimum=1),
    _key("max.batch.size", Type.INT, "30", "Most rows in one unlogged batch.", _LOW, minimum=1),
    *_of_sink.batches(1_000),
    *[key for name, why in _OF_OLD_CONNECTOR for key in _of_sink.accepted(name, why=why)],
)

DEFINITION = _of_sink.definition(
    "isotherm.persisters.ScyllaSink",
    _OWN,
    aliases=(
        "scylla",
        "cassandra",
        "com.datamountaineer.streamreactor.connect.cassandra.sink.CassandraSinkConnector",
        "io.lenses.streamreactor.connect.cassandra.sink.CassandraSinkConnector",
        "io.lenses.streamreactor.connect.cassandra.CassandraSinkConnector",
    ),
    clauses=(*TABLE_CLAUSES, "TTL"),
)
