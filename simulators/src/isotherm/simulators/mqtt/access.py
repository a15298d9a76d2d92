"""Connection options of the simulated devices: MQTT version, TLS, login, and user properties of MQTT 5."""

from __future__ import annotations

import argparse
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

_VERSIONS = {"3.1.1": MQTTProtocolVersion.MQTTv311, "5": MQTTProtocolVersion.MQTTv5}
_SESSION_EXPIRY_S = 3_600


@dataclass(frozen=True)
class Access:
    """The options of one connection. `user_properties` are for MQTT 5 only."""

    version: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv311
    tls: ssl.SSLContext | None = None
    username: str | None = None
    password: str | None = None
    user_properties: tuple[tuple[str, str], ...] = ()

    @property
    def is_v5(self) -> bool:
        """Whether the version is MQTT 5."""
        return self.version is MQTTProtocolVersion.MQTTv5

    def client_arguments(self) -> dict[str, Any]:
        """Return arguments of paho's Client. MQTT 3.1.1 asks for a persistent session here, MQTT 5 in its CONNECT."""
        return {"protocol": self.version} if self.is_v5 else {"clean_session": False}

    def connect_arguments(self) -> dict[str, Any]:
        """Return arguments of paho's `connect_async`."""
        if not self.is_v5:
            return {}
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho leaves it untyped
        properties.SessionExpiryInterval = _SESSION_EXPIRY_S
        return {"clean_start": False, "properties": properties}

    def publish_arguments(self) -> dict[str, Any]:
        """Return arguments of paho's `publish`."""
        if not self.is_v5 or not self.user_properties:
            return {}
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho leaves it untyped
        properties.UserProperty = list(self.user_properties)
        return {"properties": properties}


def add_access_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `access_of` reads."""
    parser.add_argument("--mqtt-version", choices=_VERSIONS, default="3.1.1", help="protocol version (default 3.1.1)")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="PEM file of the trusted authorities; turns TLS on")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="PEM file of the client certificate")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM file of its key")
    parser.add_argument("--username", metavar="NAME", help="user name of every connection")
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="file whose first line is the password")
    parser.add_argument(
        "--user-property",
        type=_pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="user property of every publish (MQTT 5); may be repeated",
    )


def access_of(arguments: argparse.Namespace) -> Access:
    """Return the connection options. Raises ValueError, which names the invalid option."""
    if arguments.user_property and arguments.mqtt_version != "5":
        raise ValueError("--user-property needs --mqtt-version 5")
    if (arguments.tls_cert or arguments.tls_key) and not arguments.tls_ca:
        raise ValueError("--tls-ca is needed with --tls-cert and --tls-key")
    if arguments.password_file and arguments.username is None:
        raise ValueError("--username is needed with --password-file")
    return Access(
        _VERSIONS[arguments.mqtt_version],
        _tls(arguments.tls_ca, arguments.tls_cert, arguments.tls_key),
        arguments.username,
        _password(arguments.password_file),
        tuple(arguments.user_property),
    )


def _tls(authorities: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if authorities is None:
        return None
    try:
        context = ssl.create_default_context(cafile=str(authorities))
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"--tls-ca, --tls-cert, --tls-key: {error}") from None
    return context


def _password(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--password-file: {error}") from None


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")
    return name, value
