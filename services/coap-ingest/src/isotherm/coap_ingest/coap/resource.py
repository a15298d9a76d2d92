"""Addresses of servers and resources in the form of RFC 7252 section 6."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

DEFAULT_PORTS = {"coap": 5683, "coap+tcp": 5683, "coaps": 5684}
"""The schemes that the client can observe, with their default ports (RFC 7252 section 6, RFC 8323 section 8)."""

SCHEMES = tuple(DEFAULT_PORTS)
_UNSUPPORTED_SCHEMES = {
    "coaps+tcp": "TLS is not supported: the library keeps no keys for it",
    "coap+ws": "WebSockets are not supported",
    "coaps+ws": "WebSockets are not supported",
}


class AddressError(ValueError):
    """The text is not the address of a server or resource that can be observed."""


@dataclass(frozen=True, slots=True)
class Server:
    """A CoAP server: scheme, host as written, port."""

    scheme: str
    host: str
    port: int

    @property
    def is_ordered(self) -> bool:
        """Whether the transport keeps messages in order; Observe values then mean nothing (RFC 8323 section 7.1)."""
        return self.scheme == "coap+tcp"

    @property
    def is_connected(self) -> bool:
        """Whether the transport has a connection (TCP) or session (DTLS), which can break while both ends live."""
        return self.scheme != "coap"

    @property
    def base(self) -> str:
        """Return `scheme://host:port`."""
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """Return `host:port`, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of a server; the path segments and query parts are percent-decoded."""

    server: Server
    path: tuple[str, ...]
    query: tuple[str, ...] = ()
    uri: str = field(init=False, compare=False, repr=False)
    """The complete address, which names the resource in keys, headers, logs and metrics."""

    def __post_init__(self) -> None:
        path = "/".join(quote(segment, safe="!$&'()*+,;=:@-._~") for segment in self.path)
        query = "&".join(quote(part, safe="!$'()*+,;=:@-._~/?") for part in self.query)
        object.__setattr__(self, "uri", f"{self.server.base}/{path}{'?' if query else ''}{query}")


def parse_server(uri: str) -> Server:
    """Parse the address of a server, such as `coap://host:port`; without a scheme it is `coap`.

    Raises AddressError, which states what is allowed.
    """
    if "@" in uri:
        # The part before it may hold a password, so the message repeats nothing of the address.
        raise AddressError("an address holds a user before '@'; CoAP has no users (RFC 7252, section 6.1)")
    try:
        parts = urlsplit(uri if "://" in uri else f"coap://{uri}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise AddressError(f"{uri!r} is not an address: {error}") from None
    if parts.scheme not in SCHEMES:
        why = _UNSUPPORTED_SCHEMES.get(parts.scheme, f"scheme {parts.scheme} is unknown")
        raise AddressError(f"{uri!r}: {why}; allowed: {', '.join(SCHEMES)}")
    if not host:
        raise AddressError(f"{uri!r} names no host; expected coap://host:port")
    if host.lower() in ("discoverip4", "discoverip6"):
        raise AddressError(f"{uri!r}: discovery by multicast is not supported; name the servers")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise AddressError(f"{uri!r}: expected coap://host:port only; the resource is named by FROM in the KCQL")
    return Server(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme])


def parse_resource(server: Server, source: str) -> Resource:
    """Parse the path that KCQL's FROM names: `sensors`, `/a/b` or `a/b?unit=cel`.

    Raises AddressError for an empty segment or broken percent-encoding.
    """
    path, _, query = source.removeprefix("/").partition("?")
    try:
        segments = tuple(unquote(segment, errors="strict") for segment in path.split("/"))
        queries = tuple(unquote(part, errors="strict") for part in query.split("&")) if query else ()
    except UnicodeDecodeError:
        raise AddressError(f"{source!r}: the percent-encoded bytes are not UTF-8") from None
    if not all(segments):
        raise AddressError(f"{source!r} is not a resource: a segment of the path is empty")
    return Resource(server, segments, queries)
