"""The configuration of a broker with logins, and the log of its authorizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.stack.artifacts import Artifacts
from isotherm.stack.kafka import access, metadata
from isotherm.stack.kafka.access import Decision
from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.server import Runtime

LOG = """\
2026-11-25T07:16:04,262 DEBUG Principal = User:admin is Allowed operation = CLUSTER_ACTION from host = 127.0.0.1 on \
resource = Cluster:LITERAL:kafka-cluster for request = BrokerHeartbeat with resourceRefCount = 1 based on rule \
SuperUser (kafka.authorizer.logger)
2026-11-25T07:16:04,705 INFO Principal = User:a-b is Denied operation = DESCRIBE from host = 127.0.0.1 on resource = \
Group:LITERAL:some group for request = FindCoordinator with resourceRefCount = 1 based on rule DefaultDeny \
(kafka.authorizer.logger)
2026-11-25T07:16:04,779 INFO Principal = User:a-b is Denied operation = DESCRIBE from host = 127.0.0.1 on resource = \
Group:LITERAL:some group for request = FindCoordinator with resourceRefCount = 1 based on rule DefaultDeny \
(kafka.authorizer.logger)
2026-11-25T07:16:04,800 INFO something else (kafka.server.BrokerServer)
"""


def broker(folder: Path, users: dict[str, str]) -> Kafka:
    return Kafka(folder, Runtime(Artifacts(folder)), port=1, controller_port=2, users=users)


def test_decisions_of_the_authorizer_are_read_once_each() -> None:
    found = access.read_log(LOG)

    assert found.denied == {Decision("User:a-b", "DESCRIBE", "Group", "some group", "FindCoordinator")}
    assert found.allowed == {Decision("User:admin", "CLUSTER_ACTION", "Cluster", "kafka-cluster", "BrokerHeartbeat")}


def test_a_broker_with_users_asks_every_client_and_controller_for_a_login(tmp_path: Path) -> None:
    text = broker(tmp_path, {"admin": "secret1", "reader": "secret2"}).render_properties()
    lines = dict(line.split("=", 1) for line in text.splitlines())

    assert lines["listener.security.protocol.map"] == "CLIENTS:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"
    assert lines["allow.everyone.if.no.acl.found"] == "false"
    assert lines["super.users"] == "User:admin"
    for listener in ("clients", "controller"):
        assert 'user_reader="secret2"' in lines[f"listener.name.{listener}.plain.sasl.jaas.config"]


def test_a_broker_without_users_is_open(tmp_path: Path) -> None:
    open_broker = broker(tmp_path, {})

    assert "authorizer" not in open_broker.render_properties()
    assert open_broker.client_properties("anybody") == {}


def test_a_password_that_would_have_to_be_quoted_is_refused() -> None:
    with pytest.raises(ValueError, match="password of admin"):
        access.properties({"admin": 'a"b'})


def test_a_login_is_a_handshake_and_a_token() -> None:
    """RFC 4616: no authorization identity, NUL, user, NUL, password."""
    handshake, authenticate = metadata.login_requests(metadata.Login("me", "pw"))

    assert handshake.hex() == "000000110011000100000001ffff0005" + b"PLAIN".hex()
    assert authenticate[4:].hex() == "0024000000000001ffff00000006" + b"\0me\0pw".hex()
