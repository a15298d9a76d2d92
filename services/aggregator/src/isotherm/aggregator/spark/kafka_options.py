"""Options of Spark's Kafka source and sink, from librdkafka's property names. Pure, except for reading PEM files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from isotherm.servicekit.settings import KafkaSettings, SettingsError

SOURCE_OPTIONS = {
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
    "groupIdPrefix": "isotherm-aggregator",
    "kafka.max.poll.records": "5000",
}
SINK_OPTIONS = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.compression.type": "lz4",
    "kafka.linger.ms": "5",
}

_SAME = (
    "security.protocol",
    "sasl.kerberos.service.name",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
)
_FILES = {
    "ssl.ca.location": ("ssl.truststore.type", "ssl.truststore.certificates"),
    "ssl.certificate.location": ("ssl.keystore.type", "ssl.keystore.certificate.chain"),
    "ssl.key.location": ("ssl.keystore.type", "ssl.keystore.key"),
}
"""By librdkafka's property for a PEM file: the Java properties for the format and for the content (KIP-651)."""
_INLINE = {
    "ssl.ca.pem": _FILES["ssl.ca.location"],
    "ssl.certificate.pem": _FILES["ssl.certificate.location"],
    "ssl.key.pem": _FILES["ssl.key.location"],
}
_MECHANISMS = ("sasl.mechanism", "sasl.mechanisms")
_LOGIN = ("sasl.username", "sasl.password")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SECRET = ("sasl.jaas.config", "ssl.keystore.key", "ssl.key.password")
_SECURITY = ("security.", "ssl.", "sasl.", "enable.ssl.", "enable.sasl.")


def java_options(settings: KafkaSettings) -> dict[str, str]:
    """Return the options, with the prefix `kafka.`, by which Spark's source and sink connect to the cluster.

    Properties that tune librdkafka have no effect on Spark and are left out. A security property without a counterpart
    in Java is an error, because leaving it out would weaken the connection. Raises SettingsError.
    """
    given = settings.properties
    supported = {*_SAME, *_FILES, *_INLINE, *_MECHANISMS, *_LOGIN}
    problems = [
        f"kafka.properties.{name}: Spark's Kafka client has no such property; allowed: {', '.join(sorted(supported))}"
        for name in given
        if name.startswith(_SECURITY) and name not in supported
    ]
    java = {"bootstrap.servers": settings.bootstrap_servers}
    java |= {name: given[name] for name in _SAME if name in given}
    if java.get("ssl.endpoint.identification.algorithm") == "none":
        java["ssl.endpoint.identification.algorithm"] = ""
    for name, (kind, content) in _FILES.items():
        if name in given:
            try:
                java |= {kind: "PEM", content: Path(given[name]).read_text(encoding="ascii")}
            except (OSError, UnicodeDecodeError) as error:
                problems.append(f"kafka.properties.{name}: {given[name]!r} cannot be read: {error}")
    for name, (kind, content) in _INLINE.items():
        if name in given:
            java |= {kind: "PEM", content: given[name]}
    java |= _sasl(given, problems)
    if problems:
        raise SettingsError(problems)
    return {f"kafka.{name}": value for name, value in java.items()}


def redacted(text: str, options: Mapping[str, str]) -> str:
    """Return `text` without the secrets among the options. The text of a failed query holds Spark's plan with them."""
    for name, value in options.items():
        if value and name.endswith(_SECRET):
            text = text.replace(value, "******")
    return text


def _sasl(given: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    mechanism = next((given[name] for name in _MECHANISMS if name in given), None)
    if mechanism is None:
        return {}
    java = {"sasl.mechanism": mechanism}
    if mechanism in _LOGIN_MODULES:
        username, password = (_quoted(given.get(name, "")) for name in _LOGIN)
        java["sasl.jaas.config"] = f"{_LOGIN_MODULES[mechanism]} required username={username} password={password};"
    elif mechanism != "GSSAPI":
        allowed = ", ".join([*_LOGIN_MODULES, "GSSAPI"])
        problems.append(f"kafka.properties.sasl.mechanism: {mechanism!r} is not allowed; allowed: {allowed}")
    return java


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
