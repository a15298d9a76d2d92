"""The keys of TLS that every sink has: authorities to trust, client certificate and its key, as PEM files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.api.sink import SinkConfigError


class PemFiles(NamedTuple):
    """Paths of PEM files; empty if a key is not set."""

    authorities: str
    certificate: str
    key: str


def keys(prefix: str) -> PemFiles:
    """Return the names of the keys under `prefix` (`connect.elastic`)."""
    return PemFiles(f"{prefix}.ssl.certificate.authorities", f"{prefix}.ssl.certificate", f"{prefix}.ssl.key")


def files(config: Validated, prefix: str) -> PemFiles:
    """Return the files that a configuration names. Raises SinkConfigError if one does not exist."""
    for key in keys(prefix):
        if config.text(key) and not Path(config.text(key)).is_file():
            raise SinkConfigError(f"{key}: there is no file {config.text(key)!r}")
    return PemFiles(*(config.text(key) for key in keys(prefix)))


def problems(config: Validated, prefix: str) -> list[Problem]:
    """Return what is wrong with the keys, without reading the files."""
    names = keys(prefix)
    if config.text(names.key) and not config.text(names.certificate):
        return [Problem(names.key, f"{names.certificate} is missing")]
    return []


def context(config: Validated, prefix: str) -> ssl.SSLContext:
    """Return a client's context that checks the server's certificate and its name.

    Raises SinkConfigError for a file that does not exist or holds something else.
    """
    given = files(config, prefix)
    try:
        made = ssl.create_default_context(cafile=given.authorities or None)
        if given.certificate:
            made.load_cert_chain(given.certificate, given.key or None)
    except OSError as error:
        # ssl.SSLError is an OSError.
        raise SinkConfigError(f"{prefix}.ssl: {error}") from error
    return made


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
