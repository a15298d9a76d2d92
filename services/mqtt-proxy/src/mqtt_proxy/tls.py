"""TLS on the listener: the context from its files, and handshakes that fail counted and logged."""

from __future__ import annotations

import ssl

from mqtt_proxy.metrics import Metrics
from mqtt_proxy.settings import TlsSettings
from mqtt_proxy.sparse_log import SparseLog
from servicekit.settings import SettingsError


def server_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """The listener's context; None without a certificate. Raises SettingsError when the files cannot be used."""
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


def watch_handshakes(context: ssl.SSLContext, metrics: Metrics) -> None:
    """Count and log the handshakes that fail: the event loop closes their sockets without a word."""
    log = SparseLog("TLS handshakes failed")

    class Watched(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                reason = error.reason or type(error).__name__
                metrics.tls_failures[reason] += 1
                log(reason=reason)
                raise

    context.sslobject_class = Watched
