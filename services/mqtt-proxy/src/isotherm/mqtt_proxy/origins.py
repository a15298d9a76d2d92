"""Which web pages may connect over WebSocket: the type of the setting."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

_ALLOWED = "allowed are origins such as https://app.example or http://10.0.0.1:8080, and * for any"
_DEFAULT_PORTS = {"http": 80, "https": 443}


def _check_origin(text: str) -> str:
    """Return `text` when a browser can send it as an origin (RFC 6454 section 6.2). Raises ValueError."""
    if text == "*":
        return text
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{error}; {_ALLOWED}") from None
    if not (parts.scheme and parts.hostname) or parts.username is not None or text.endswith(":"):
        raise ValueError(f"no scheme and host; {_ALLOWED}")
    if text.lower().rstrip("/") != f"{parts.scheme}://{parts.netloc.lower()}":
        raise ValueError(f"an origin has nothing behind the host and port; {_ALLOWED}")
    if not text.isascii():
        raise ValueError(f"browsers write other letters than ASCII as xn--...; {_ALLOWED}")
    if port is not None and port == _DEFAULT_PORTS.get(parts.scheme):
        raise ValueError(f"browsers leave out the port {port} of {parts.scheme}; {_ALLOWED}")
    return text


Origin = Annotated[str, AfterValidator(_check_origin)]
"""Type of a setting that names the origin of web pages, or `*` for any."""
