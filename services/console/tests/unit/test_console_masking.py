"""Masking of secrets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isotherm.console.access.masking import (
    keys_with_mask,
    mask_config,
    mask_trace,
    restore_secrets,
)

CONFIG = {
    "connect.elastic.use.http.password": "hunter22",
    "connect.elastic.url": "https://me:hunter33@host:9200/a",
    "api.token": "${env:TOKEN}",
    "topics": "a,b",
}


def test_secrets_are_masked_and_references_are_not() -> None:
    assert mask_config(CONFIG) == {
        "connect.elastic.use.http.password": "******",
        "connect.elastic.url": "https://me:******@host:9200/a",
        "api.token": "${env:TOKEN}",
        "topics": "a,b",
    }
    assert mask_config({"pin": "1"}, lambda key: key == "pin") == {"pin": "******"}
    clients = {"consumer.override.ssl.key.pem": "-----BEGIN", "consumer.override.sasl.jaas.config": "x password=y;"}
    assert set(mask_config(clients).values()) == {"******"}


@given(st.dictionaries(st.sampled_from(["password", "url", "topics"]), st.text(max_size=20)))
def test_a_masked_configuration_can_be_sent_back(config: dict[str, str]) -> None:
    assert restore_secrets(mask_config(config), config) == config


def test_a_new_secret_replaces_the_old_one_and_a_mask_of_nothing_is_noticed() -> None:
    assert restore_secrets({"password": "new"}, {"password": "old"}) == {"password": "new"}
    assert keys_with_mask(restore_secrets({"password": "******"}, {})) == ["password"]


def test_a_trace_is_masked_like_the_configuration() -> None:
    trace = "no login for me with hunter22 at https://me:hunter33@host:9200/a"
    assert mask_trace(trace, CONFIG) == "no login for me with ****** at https://me:******@host:9200/a"
    assert mask_trace(None, CONFIG) is None
