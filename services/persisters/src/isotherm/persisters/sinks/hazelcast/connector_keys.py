"""The configuration keys of the Hazelcast connector."""

from __future__ import annotations

from isotherm.connector.config.definitions import Importance, Type
from isotherm.persisters.sinks.sink_keys import SinkKeys

PREFIX = "connect.hazelcast"
OLD_PREFIX = "connect.hazelcast.sink"
_LOW = Importance.LOW
_of_sink = SinkKeys(PREFIX, OLD_PREFIX)
_key = _of_sink.key
_OF_JAVA_CLIENT = "a socket option of the Java client of Hazelcast 3"


_OWN = (
    _key("cluster.members", Type.LIST, "localhost", "`host` or `host:port` of members.", Importance.HIGH),
    _key(
        "group.name",
        Type.STRING,
        "dev",
        "Name of the cluster (group name in Hazelcast 3).",
        Importance.HIGH,
        aliases=(f"{PREFIX}.cluster.name", "cluster.name"),
    ),
    _key(
        "group.password",
        Type.PASSWORD,
        "",
        "Password of the group in Hazelcast 3.",
        _LOW,
        without_effect="since Hazelcast 4 a cluster has no group password; see username and password",
    ),
    _key("username", Type.STRING, "", "User, if the cluster has security enabled."),
    _key("password", Type.PASSWORD, "", "Password of that user."),
    _key("ssl.enabled", Type.BOOLEAN, "false", "Use TLS."),
    *_of_sink.pem_files(),
    _key("timeout", Type.INT, "5000", "How long to wait for a connection, ms.", minimum=1),
    _key("write.timeout", Type.INT, "20000", "How long one operation may take, ms.", minimum=1000),
    _key("transaction.size", Type.INT, "500", "Limit of the items in one transaction.", _LOW, minimum=1),
    _key(
        "queue.full",
        Type.STRING,
        "BLOCK",
        "What happens if a bounded queue is full: BLOCK waits and slows the reader, POLICY fails the record.",
        allowed=("BLOCK", "POLICY"),
    ),
    *_of_sink.batches(1_000),
    _key("pk.separator", Type.STRING, "-", "Separator of a PK's values in a key.", _LOW),
    *_of_sink.accepted(
        "retries", "keep.alive", "tcp.no.delay", "reuse.address", "linger.seconds", "buffer.size", why=_OF_JAVA_CLIENT
    ),
    *_of_sink.accepted(
        "parallel.write",
        "threadpool.size",
        why="partitions are written in parallel, each in order; tasks.max adds processes",
    ),
)

DEFINITION = _of_sink.definition(
    "isotherm.persisters.HazelcastSink",
    _OWN,
    aliases=(
        "hazelcast",
        "com.datamountaineer.streamreactor.connect.hazelcast.sink.HazelCastSinkConnector",
        "io.lenses.streamreactor.connect.hazelcast.sink.HazelCastSinkConnector",
    ),
    clauses=(
        "IGNORE",
        "PK",
        "WITHSTRUCTURE",
        "WITHTIMESTAMP",
        "TIMESTAMPUNIT",
        "WITHFORMAT",
        "STOREAS",
        "TTL",
        "PROPERTIES",
    ),
    clause_reasons=(("AUTOCREATE", "Hazelcast creates every structure on first use"),),
)
