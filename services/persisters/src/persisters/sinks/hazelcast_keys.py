"""What the Hazelcast connector understands."""

from __future__ import annotations

from connector.definitions import (
    Definition,
    Importance,
    Key,
    Type,
    common_keys,
    consumer_keys,
    error_keys,
    with_short_names,
)

PREFIX = "connect.hazelcast"
OLD_PREFIX = "connect.hazelcast.sink"
_CLASS = "isotherm.persisters.HazelcastSink"
_LOW = Importance.LOW
_OF_JAVA_CLIENT = "a socket option of the Java client of Hazelcast 3"


def _key(
    name: str,
    type_: Type,
    default: str | None,
    doc: str,
    importance: Importance = Importance.MEDIUM,
    *,
    minimum: float | None = None,
    more: tuple[str, ...] = (),
    allowed: tuple[str, ...] = (),
    required: bool = False,
    without_effect: str | None = None,
) -> Key:
    return Key(
        f"{PREFIX}.{name}",
        type_,
        default,
        doc,
        importance,
        aliases=(f"{OLD_PREFIX}.{name}", *more),
        allowed=allowed,
        required=required,
        minimum=minimum,
        without_effect=without_effect,
    )


_OWN = (
    _key("kcql", Type.STRING, None, "Statements, separated by `;`.", Importance.HIGH, required=True),
    _key("cluster.members", Type.LIST, "localhost", "`host` or `host:port` of members.", Importance.HIGH),
    _key(
        "group.name",
        Type.STRING,
        "dev",
        "Name of the cluster (the group name of Hazelcast 3).",
        Importance.HIGH,
        more=(f"{PREFIX}.cluster.name", "cluster.name"),
    ),
    _key(
        "group.password",
        Type.PASSWORD,
        "",
        "Password of the group in Hazelcast 3.",
        _LOW,
        without_effect="since Hazelcast 4 a cluster has no group password; see username and password",
    ),
    _key("username", Type.STRING, "", "User, where the cluster has security enabled."),
    _key("password", Type.PASSWORD, "", "Password of that user."),
    _key("ssl.enabled", Type.BOOLEAN, "false", "Use TLS."),
    _key("ssl.certificate.authorities", Type.STRING, "", "PEM file of the authorities to trust."),
    _key("ssl.certificate", Type.STRING, "", "PEM file of the client's certificate."),
    _key("ssl.key", Type.STRING, "", "PEM file of the client's key."),
    _key("timeout", Type.INT, "5000", "How long to wait for a connection, ms.", minimum=1),
    _key("write.timeout", Type.INT, "20000", "How long one operation may take, ms.", minimum=1000),
    _key("transaction.size", Type.INT, "500", "Most items in one transaction.", _LOW, minimum=1),
    _key(
        "queue.full",
        Type.STRING,
        "BLOCK",
        "What a full bounded queue does: BLOCK waits and slows the reader, POLICY refuses the record.",
        allowed=("BLOCK", "POLICY"),
    ),
    _key("batch.size", Type.INT, "1000", "Most records handed over at once.", minimum=1),
    _key("batch.bytes", Type.INT, "4194304", "Most bytes of records handed over at once.", _LOW, minimum=1),
    _key("linger.ms", Type.INT, "0", "How long records may wait for a batch to fill.", _LOW, minimum=0),
    _key("pk.separator", Type.STRING, "-", "Between the values of a PK in a key.", _LOW),
    *(
        _key(name, Type.STRING, None, "Accepted for the old connector's sake.", _LOW, without_effect=_OF_JAVA_CLIENT)
        for name in ("retries", "keep.alive", "tcp.no.delay", "reuse.address", "linger.seconds", "buffer.size")
    ),
    *(
        _key(
            name,
            Type.STRING,
            None,
            "Accepted for the old connector's sake.",
            _LOW,
            without_effect="partitions are written in parallel and each in order; tasks.max adds processes",
        )
        for name in ("parallel.write", "threadpool.size")
    ),
)

DEFINITION = Definition(
    klass=_CLASS,
    kind="sink",
    keys=with_short_names(PREFIX, (*common_keys(_CLASS), *consumer_keys(), *_OWN, *error_keys(PREFIX, OLD_PREFIX))),
    aliases=(
        "hazelcast",
        "com.datamountaineer.streamreactor.connect.hazelcast.sink.HazelCastSinkConnector",
        "io.lenses.streamreactor.connect.hazelcast.sink.HazelCastSinkConnector",
    ),
    kcql_key=f"{PREFIX}.kcql",
    kcql_clauses=frozenset(
        (
            "IGNORE",
            "PK",
            "WITHSTRUCTURE",
            "WITHTIMESTAMP",
            "TIMESTAMPUNIT",
            "WITHFORMAT",
            "STOREAS",
            "TTL",
            "PROPERTIES",
        )
    ),
    clause_reasons=(("AUTOCREATE", "Hazelcast makes every structure on first use"),),
    open_prefixes=("consumer.override.", "value.converter.", "key.converter."),
)
