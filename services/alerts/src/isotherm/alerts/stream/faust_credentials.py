"""Faust's credentials, made from librdkafka's security properties. Pure, except for reading PEM files."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import faust
from faust.types.auth import CredentialsT

from isotherm.servicekit.settings import KafkaSettings, SettingsError

_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_KNOWN = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
)
_SECURITY = ("security.", "ssl.", "sasl.", "enable.ssl.", "enable.sasl.")


def credentials(settings: KafkaSettings) -> CredentialsT | None:
    """Return the credentials for Faust; None for an unencrypted connection without login.

    Properties that tune librdkafka have no effect on aiokafka and are left out. A security property without a
    counterpart in aiokafka is an error, because leaving it out would weaken the connection. Raises SettingsError.
    """
    given = settings.properties
    problems = [
        f"kafka.properties.{name}: aiokafka has no such property; allowed: {', '.join(_KNOWN)}"
        for name in given
        if name.startswith(_SECURITY) and name not in _KNOWN
    ]
    protocol = given.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        problems.append(f"kafka.properties.security.protocol: {protocol!r} is not allowed; allowed: {_PROTOCOLS}")
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms", ""))
    if protocol.startswith("sasl") and mechanism not in _MECHANISMS:
        allowed = ", ".join(_MECHANISMS)
        problems.append(f"kafka.properties.sasl.mechanism: {mechanism!r} is not allowed; allowed: {allowed}")
    if problems:
        raise SettingsError(problems)
    context = _context(given) if protocol.endswith("ssl") else None
    if protocol.startswith("sasl"):
        return faust.SASLCredentials(
            username=given.get("sasl.username"),
            password=given.get("sasl.password"),
            ssl_context=context,
            mechanism=mechanism,
        )
    return faust.SSLCredentials(context) if context is not None else None


def _context(given: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=given.get("ssl.ca.location"))
        if "ssl.certificate.location" in given:
            context.load_cert_chain(
                given["ssl.certificate.location"], given.get("ssl.key.location"), given.get("ssl.key.password")
            )
    except (OSError, ssl.SSLError) as error:
        raise SettingsError([f"kafka.properties.ssl: a file cannot be used: {error}"]) from error
    if given.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    return context
