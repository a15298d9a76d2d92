"""The configuration keys of the HTTP connector."""

from __future__ import annotations

from isotherm.connector.config.definitions import Importance, Type
from isotherm.persisters.sinks.sink_keys import SinkKeys

PREFIX = "connect.http"
_LOW = Importance.LOW
_of_sink = SinkKeys(PREFIX)
_key = _of_sink.key
JSON_ARRAY, NDJSON, RECORD = "JSON_ARRAY", "NDJSON", "RECORD"

_OWN = (
    _key(
        "url",
        Type.STRING,
        None,
        "Address, `http://..` or `https://..`, without a user; `{target}` and, with RECORD, `{id}` stand for those of "
        "the rows.",
        Importance.HIGH,
        required=True,
    ),
    _key("method", Type.STRING, "POST", "Method of the requests.", allowed=("POST", "PUT", "PATCH")),
    _key(
        "request.format",
        Type.STRING,
        JSON_ARRAY,
        "Body: all rows as a JSON array, all rows as JSON lines, or one row in a request of its own.",
        Importance.HIGH,
        allowed=(JSON_ARRAY, NDJSON, RECORD),
    ),
    _key("request.bytes", Type.INT, "1048576", "Most bytes of rows in a body; a larger row is bad.", minimum=1),
    _key("body.template", Type.STRING, "", "Text of the body, in which `{{rows}}` stands for the rows."),
    _key("content.type", Type.STRING, "", "Content type of the body; empty: that of the format."),
    _key("headers", Type.STRING, "", "Further headers, `Name: value`, separated by `|`."),
    _key("secret.headers", Type.PASSWORD, "", "As `headers`, for headers whose values are secrets."),
    _key("username", Type.STRING, "", "User of basic authentication."),
    _key("password", Type.PASSWORD, "", "Password of basic authentication."),
    _key("bearer.token", Type.PASSWORD, "", "Token, sent as `Authorization: Bearer ..`, instead of user and password."),
    _key(
        "signing.secret",
        Type.PASSWORD,
        "",
        "Signs each request by HMAC-SHA256 in the headers of Standard Webhooks; `whsec_...` is base64.",
    ),
    _key(
        "idempotency.header",
        Type.STRING,
        "Idempotency-Key",
        "Header with the key of a request, the same whenever the same rows are sent again; empty: none.",
    ),
    _key(
        "retry.statuses",
        Type.LIST,
        "408,425,429,500-599",
        "Statuses after which the request is repeated. 409 is one of them with an `idempotency.header`, else a bad "
        "record's, unless one of the two lists has it.",
    ),
    _key("bad.record.statuses", Type.LIST, "400,413,422", "Statuses that blame a row of the request."),
    _key("concurrent.requests", Type.INT, "4", "Most requests at once, all partitions of a task together.", minimum=1),
    _key(
        "connect.timeout.ms",
        Type.INT,
        "10000",
        "How long a connection may take, with tunnel and TLS, ms.",
        _LOW,
        minimum=100,
    ),
    _key("write.timeout.ms", Type.INT, "20000", "How long one request may take, from end to end, ms.", minimum=100),
    _key("proxy.url", Type.STRING, "", "Proxy, `http://host:port`; the environment's proxies are not used.", _LOW),
    *_of_sink.pem_files(),
    *_of_sink.batches(500),
)

DEFINITION = _of_sink.definition(
    "isotherm.persisters.HttpSink",
    _OWN,
    aliases=("http",),
    clauses=("IGNORE", "PK", "WITHTIMESTAMP", "TIMESTAMPUNIT", "WITHSTRUCTURE", "PROPERTIES"),
)
