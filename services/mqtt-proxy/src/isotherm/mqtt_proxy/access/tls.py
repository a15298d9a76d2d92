"""The TLS context of the listener, failed handshakes counted and logged, and the name in a client's certificate."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.settings import TlsSettings
from isotherm.servicekit import logs
from isotherm.servicekit.settings import SettingsError
from isotherm.servicekit.throttling.sparse_log import SparseLog

_log = logs.logger(__name__)


def server_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """Return the listener's context; None without a certificate. Raises SettingsError for files that cannot be used."""
    if tls.certfile is None:
        return None
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.certfile, tls.keyfile)
        if tls.cafile is not None:
            context.load_verify_locations(tls.cafile)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise SettingsError([f"tls.certfile, tls.keyfile, tls.cafile: {error}"]) from None
    return context


def watch_handshakes(context: ssl.SSLContext, metrics: Metrics) -> Callable[[str], None]:
    """Count and log the handshakes that fail. The event loop alone would close their sockets silently.

    Return what counts and logs a failure that the context does not see, by its reason.
    """
    log_failure = SparseLog(_log, "TLS handshakes failed")

    def count(reason: str) -> None:
        metrics.tls_failures[reason] += 1
        log_failure(reason=reason)

    class WatchedSslObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                count(error.reason or type(error).__name__)
                raise

    context.sslobject_class = WatchedSslObject
    return count


def common_name(certificate: Any) -> str | None:
    """Return the common name of the subject of a certificate, as `ssl.SSLSocket.getpeercert` returns it."""
    subject = (certificate or {}).get("subject", ())
    return next((value for part in subject for name, value in part if name == "commonName"), None)
