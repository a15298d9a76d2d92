"""How a connector reaches its server: addresses, Cloud ID, credentials, TLS, compression."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import urlsplit

from elastic_transport import NodeConfig
from elastic_transport.client_utils import parse_cloud_id, url_to_node_config

from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.api.sink import SinkConfigError
from isotherm.persisters.sinks import tls
from isotherm.persisters.sinks.elasticsearch.connector_keys import GZIP, PREFIX
from isotherm.persisters.sinks.elasticsearch.search_server import SearchServer

_USER, _PASSWORD, _API_KEY, _BEARER, _CLOUD, _URL = (
    f"{PREFIX}.{name}"
    for name in ("use.http.username", "use.http.password", "api.key", "bearer.token", "cloud.id", "url")
)
_LOGIN = f"{_USER} and {_PASSWORD}"
_EXPECTED = "elasticsearch://host:port, http://.. or https://.."


def connect(config: Validated, connections: int) -> SearchServer:
    """Make a client of the server; it connects with its first request.

    `connections` is the number of connections to each node. Raises SinkConfigError for a TLS file or a credential that
    cannot be used.
    """
    options = {
        **_tls(config),
        "request_timeout": config.integer(f"{PREFIX}.write.timeout") / 1000,
        "connections_per_node": connections,
    }
    is_compressed = config.text(f"{PREFIX}.compression").lower() == GZIP
    try:
        found = [_node_config(address, options) for address in nodes(config)]
        return SearchServer(found, _credentials(config), compresses=is_compressed)
    except OSError as error:
        # ssl.SSLError is an OSError: a file holds no certificate or key.
        raise SinkConfigError(f"{PREFIX}.ssl: {error}") from error


def problems(config: Validated) -> list[Problem]:
    """Return what is wrong with the connection's keys; keys with unresolved references are skipped."""
    found = tls.problems(config, PREFIX)
    given = [key for key in (_USER, _API_KEY, _BEARER) if config.text(key)]
    found += [Problem(key, f"not allowed together with {given[0]}: a request carries one of them") for key in given[1:]]
    if config.text(_PASSWORD) and not config.text(_USER):
        found.append(Problem(_PASSWORD, f"{_USER} is missing"))
    found += [
        # A line break would end the header, and what follows it would be another one.
        Problem(key, "holds a character that no header of HTTP carries; expected visible ASCII letters")
        for key in (_API_KEY, _BEARER)
        if config.is_resolved(key) and not _fits_a_header(config.text(key))
    ]
    twice = [key for key in (_URL, f"{PREFIX}.hosts") if key in config.given and config.text(key)]
    if config.text(_CLOUD) and twice:
        found.append(Problem(_CLOUD, f"not allowed together with {twice[0]}: it names the address itself"))
    if not all(config.is_resolved(f"{PREFIX}.{key}") for key in ("url", "hosts", "port", "protocol", "cloud.id")):
        return found
    try:
        addresses = nodes(config)
    except ValueError as error:
        return [*found, Problem(_CLOUD if config.text(_CLOUD) else _URL, str(error))]
    files = [key for key in tls.keys(PREFIX) if config.text(key)]
    plain = [address for address in addresses if not address.startswith("https:")]
    if files and plain:
        found.append(Problem(files[0], f"{plain[0]} is not reached with TLS; write https://.."))
    return found


def nodes(config: Validated) -> list[str]:
    """Return the addresses of the cluster from `cloud.id`, else `url`, else `hosts`, `port` and `protocol`.

    Raises ValueError for an invalid address, or one with a user or password; the message does not repeat these.
    """
    if config.text(_CLOUD):
        return [_of_cloud(config.text(_CLOUD))]
    # A password may contain the comma that separates addresses, or a slash: such a value is not parsed at all.
    if any("@" in config.text(f"{PREFIX}.{key}") for key in ("url", "hosts")):
        raise ValueError(f"contains a user or a password before '@'; expected {_EXPECTED}; set {_LOGIN} instead")
    protocol, port = config.text(f"{PREFIX}.protocol"), config.text(f"{PREFIX}.port")
    urls = config.items(_URL) or [
        f"{protocol}://{host}" if ":" in host else f"{protocol}://{host}:{port}"
        for host in config.items(f"{PREFIX}.hosts")
    ]
    return [_node(url, port) for url in urls]


def _of_cloud(cloud_id: str) -> str:
    """Return the address in a Cloud ID: a name, `:`, and in base64 the domain and the ids of its services."""
    address = parse_cloud_id(cloud_id).es_address
    if address is None:
        raise ValueError("names no Elasticsearch; copy the Cloud ID of the deployment")
    return f"https://{address[0]}:{address[1]}"


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


def _node_config(address: str, options: dict[str, Any]) -> NodeConfig:
    return url_to_node_config(address).replace(**options)


def _credentials(config: Validated) -> dict[str, str]:
    user, api_key, token = config.text(_USER), config.text(_API_KEY), config.text(_BEARER)
    if user:
        login = f"{user}:{config.text(_PASSWORD)}".encode()
        return {"authorization": f"Basic {base64.b64encode(login).decode()}"}
    if api_key:
        return {"authorization": f"ApiKey {api_key}"}
    return {"authorization": f"Bearer {token}"} if token else {}


def _fits_a_header(secret: str) -> bool:
    return secret.isascii() and secret.isprintable() and " " not in secret


def _tls(config: Validated) -> dict[str, str]:
    given = tls.files(config, PREFIX)
    options = {"ca_certs": given.authorities, "client_cert": given.certificate, "client_key": given.key}
    return {name: path for name, path in options.items() if path}
