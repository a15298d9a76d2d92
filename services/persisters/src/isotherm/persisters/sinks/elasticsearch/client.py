"""The Elasticsearch client: addresses, credentials, TLS, and what failed requests mean."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from elastic_transport import TransportError
from elasticsearch import ApiError, Elasticsearch, OrjsonSerializer

from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.api.sink import SinkConfigError, Unavailable
from isotherm.persisters.sinks import tls
from isotherm.persisters.sinks.elasticsearch.bulk_responses import BLOCKED
from isotherm.persisters.sinks.elasticsearch.connector_keys import PREFIX

_USER, _PASSWORD, _API_KEY = (f"{PREFIX}.{name}" for name in ("use.http.username", "use.http.password", "api.key"))
_LOGIN = f"{_USER} and {_PASSWORD}"
_EXPECTED = "elasticsearch://host:port, http://.. or https://.."

_TRANSIENT = frozenset((429, 500, 502, 503, 504))
"""Statuses of a whole request that concern the server and not the request."""

T = TypeVar("T")


class NotAllowedError(SinkConfigError):
    """The connector's user may not do this."""


def connect(config: Validated, connections: int) -> Elasticsearch:
    """Make a client that retries nothing by itself; it connects with its first request.

    `connections` is the number of connections to each node. Raises SinkConfigError for a TLS file that cannot be used.
    """
    options = {**_credentials(config), **_tls(config)}
    try:
        return Elasticsearch(
            nodes(config),
            request_timeout=config.integer(f"{PREFIX}.write.timeout") / 1000,
            max_retries=0,
            connections_per_node=connections,
            serializers={OrjsonSerializer.mimetype: OrjsonSerializer()},
            **options,
        )
    except OSError as error:
        # ssl.SSLError is an OSError: a file holds no certificate or key.
        raise SinkConfigError(f"{PREFIX}.ssl: {error}") from error


def problems(config: Validated) -> list[Problem]:
    """Return what is wrong with the connection's keys; keys with unresolved references are skipped."""
    found = tls.problems(config, PREFIX)
    if config.text(_USER) and config.text(_API_KEY):
        found.append(Problem(_API_KEY, f"not allowed together with {_USER}: a request carries one of the two"))
    if config.text(_PASSWORD) and not config.text(_USER):
        found.append(Problem(_PASSWORD, f"{_USER} is missing"))
    if not all(config.is_resolved(f"{PREFIX}.{key}") for key in ("url", "hosts", "port", "protocol")):
        return found
    try:
        addresses = nodes(config)
    except ValueError as error:
        return [*found, Problem(f"{PREFIX}.url", str(error))]
    given = [key for key in tls.keys(PREFIX) if config.text(key)]
    plain = [address for address in addresses if not address.startswith("https:")]
    if given and plain:
        found.append(Problem(given[0], f"{plain[0]} is not reached with TLS; write https://.."))
    return found


def ask(request: Callable[[], T]) -> T:
    """Make a request and translate its failure.

    Raises Unavailable, SinkConfigError (NotAllowedError among them), or ApiError if the server refused this request.
    """
    try:
        return request()
    except TransportError as error:
        doubt = distrust(error)
        if doubt is not None:
            raise SinkConfigError(f"Elasticsearch: {doubt}") from error
        raise Unavailable(f"Elasticsearch: {error}") from error
    except ApiError as error:
        if error.status_code in _TRANSIENT or error.error == BLOCKED:
            raise Unavailable(f"Elasticsearch: {error}") from error
        if error.status_code == 403:
            raise NotAllowedError(f"Elasticsearch: {error}") from error
        if error.status_code == 401:
            raise SinkConfigError(f"Elasticsearch: {error}") from error
        raise


def distrust(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """Return the refusal of the server's certificate behind `error`; None if TLS failed in a way that may pass."""
    seen: set[int] = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        seen.add(id(behind))
        if isinstance(behind, ssl.SSLCertVerificationError):
            return behind
        inner = next((one for one in behind.args if isinstance(one, BaseException)), None)
        behind = behind.__cause__ or behind.__context__ or inner
    return None


def nodes(config: Validated) -> list[str]:
    """Return the addresses of the cluster from `url`, else from `hosts`, `port` and `protocol`.

    Raises ValueError for an invalid address, or one with a user or password; the message does not repeat these.
    """
    # A password may contain the comma that separates addresses, or a slash: such a value is not parsed at all.
    if any("@" in config.text(f"{PREFIX}.{key}") for key in ("url", "hosts")):
        raise ValueError(f"contains a user or a password before '@'; expected {_EXPECTED}; set {_LOGIN} instead")
    protocol, port = config.text(f"{PREFIX}.protocol"), config.text(f"{PREFIX}.port")
    urls = config.items(f"{PREFIX}.url") or [
        f"{protocol}://{host}" if ":" in host else f"{protocol}://{host}:{port}"
        for host in config.items(f"{PREFIX}.hosts")
    ]
    return [_node(url, port) for url in urls]


def _node(url: str, default_port: str) -> str:
    expected = f"{url!r} is not allowed; expected {_EXPECTED}"
    parts = urlsplit(url if "://" in url else f"http://{url}")
    scheme = "http" if parts.scheme == "elasticsearch" else parts.scheme
    try:
        port = parts.port or default_port
    except ValueError:
        raise ValueError(expected) from None
    if scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(expected)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{host}:{port}{parts.path}"


def _credentials(config: Validated) -> dict[str, Any]:
    user, api_key = config.text(_USER), config.text(_API_KEY)
    if user:
        return {"basic_auth": (user, config.text(_PASSWORD))}
    return {"api_key": api_key} if api_key else {}


def _tls(config: Validated) -> dict[str, str]:
    given = tls.files(config, PREFIX)
    options = {"ca_certs": given.authorities, "client_cert": given.certificate, "client_key": given.key}
    return {name: path for name, path in options.items() if path}
