"""The name separates servers on one Kafka: their transactional ids, sessions and connectors."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pydantic import ValidationError

from isotherm.mqtt_proxy.sessions.server_name import ServerName
from isotherm.mqtt_proxy.settings import ProxySettings

NAMES = st.from_regex(r"\A[A-Za-z0-9._-]{0,60}\Z")
CLIENTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def test_a_server_without_a_name_has_the_ids_and_keys_of_old() -> None:
    name = ServerName("")
    assert name.connector == "mqtt-proxy"
    assert name.transactional_id(3) == "isotherm-mqtt-proxy-3"
    assert name.session_key("anna/b") == "anna/b"


@given(NAMES, NAMES, CLIENTS, st.integers(0, 100))
def test_a_session_belongs_to_one_server(one: str, other: str, client_id: str, ordinal: int) -> None:
    first, second = ServerName(one), ServerName(other)
    key = first.session_key(client_id).encode()
    assert first.client_of(key) == client_id
    assert first.client_of(first.witness_key(ordinal).encode()) is None
    if one != other:
        assert second.client_of(key) is None
        assert second.transactional_id(ordinal) != first.transactional_id(ordinal)


@pytest.mark.parametrize("name", ["a b", "a/b", "x" * 61, "bridge", "worker", "ä"])
def test_names_that_cannot_be_used(name: str) -> None:
    with pytest.raises(ValidationError, match="name"):
        ProxySettings(name=name, routes="INSERT INTO t SELECT * FROM t", allow_anonymous=True)
