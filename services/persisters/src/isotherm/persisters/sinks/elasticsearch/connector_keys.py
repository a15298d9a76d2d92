"""The configuration keys of the Elasticsearch connector."""

from __future__ import annotations

from isotherm.connector.config.definitions import Importance, Type
from isotherm.persisters.sinks.sink_keys import SinkKeys

PREFIX = "connect.elastic"
GZIP, NONE = "gzip", "none"
_LOW = Importance.LOW
_of_sink = SinkKeys(PREFIX)
_key = _of_sink.key

_OWN = (
    _key(
        "url",
        Type.LIST,
        "",
        "`elasticsearch://host:port`, `http://..` or `https://..`, without a user.",
        Importance.HIGH,
    ),
    _key("hosts", Type.LIST, "localhost", "Hosts, if there is no url.", Importance.HIGH),
    _key("port", Type.INT, "9200", "HTTP port of the hosts.", minimum=1),
    _key("protocol", Type.STRING, "http", "http or https, for the hosts.", allowed=("http", "https")),
    _key("cluster.name", Type.STRING, "", "If set, the cluster must have this name."),
    _key("index.auto.create", Type.BOOLEAN, "true", "Create missing indices, mapped by the topic's Avro schema."),
    _key("use.http.username", Type.STRING, "", "User of basic authentication."),
    _key("use.http.password", Type.PASSWORD, "", "Password of basic authentication."),
    _key("api.key", Type.PASSWORD, "", "API key, encoded as the server gives it, instead of user and password."),
    _key(
        "bearer.token",
        Type.PASSWORD,
        "",
        "Token of a service account, or an OAuth 2 or JWT token, instead of user or API key.",
    ),
    _key("cloud.id", Type.STRING, "", "Cloud ID of a deployment in Elastic Cloud, instead of url and hosts."),
    *_of_sink.pem_files(),
    *_of_sink.batches(2_000),
    _key(
        "compression",
        Type.STRING,
        NONE,
        "gzip: bulk requests and responses are compressed, for a network that is slower than the processors.",
        allowed=(NONE, GZIP),
    ),
    _key("write.timeout", Type.INT, "30000", "How long one request may take, ms.", minimum=1),
    _key("pk.separator", Type.STRING, "-", "Separator of a PK's values in a document's id.", _LOW),
    _key(
        "retention.days",
        Type.INT,
        "0",
        "Close, then delete indices of WITHINDEXSUFFIX that are older; 0: never.",
        minimum=0,
    ),
    _key("retention.dry.run", Type.BOOLEAN, "false", "Only report which indices are expired; close none.", _LOW),
    _key(
        "retention.interval.ms", Type.INT, "3600000", "Time between two checks of the indices, ms.", _LOW, minimum=100
    ),
    _key(
        "lifecycle.policy",
        Type.STRING,
        "",
        "Policy of Elasticsearch (ILM) for the indices that the sink creates, in the place of retention.",
    ),
    _key("tableprefix", Type.STRING, "", "Prefix of every index.", _LOW),
)

DEFINITION = _of_sink.definition(
    "isotherm.persisters.ElasticsearchSink",
    _OWN,
    aliases=(
        "elasticsearch",
        "elastic",
        "opensearch",
        "com.datamountaineer.streamreactor.connect.elastic.ElasticSinkConnector",
        "com.datamountaineer.streamreactor.connect.elastic6.ElasticSinkConnector",
        "com.datamountaineer.streamreactor.connect.elastic7.ElasticSinkConnector",
        "io.lenses.streamreactor.connect.elastic6.ElasticSinkConnector",
        "io.lenses.streamreactor.connect.elastic7.ElasticSinkConnector",
    ),
    clauses=(
        "IGNORE",
        "AUTOCREATE",
        "WITHSTRUCTURE",
        "STOREAS",
        "PK",
        "WITHTIMESTAMP",
        "TIMESTAMPUNIT",
        "WITHINDEXSUFFIX",
        "WITHPIPELINE",
        "PROPERTIES",
    ),
    clause_reasons=(("WITHDOCTYPE", "Elasticsearch has had no document types since version 7"),),
)
