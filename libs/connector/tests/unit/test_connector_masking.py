"""Masking: no secret of a configuration appears in a trace."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.masking import (
    MASK,
    mask_of,
    mask_written,
    masked_value,
    without_userinfo,
)


def test_secrets_are_masked_wherever_they_come_from(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("elastic.password=from-file\nhost=db\n")
    config = {
        "name": "n",
        "db.password": "hunter2",
        "api.key": "${env:KEY}",
        "connect.elastic.url": f"https://${{env:USER_NAME}}:${{file:{keys}:elastic.password}}@${{env:HOST}}/",
        "nothing.password": "",
        "short.secret": "a",
        "lost.token": "${env:NOWHERE}",
    }
    environ = {"KEY": "k-1+", "USER_NAME": "elastic", "HOST": "es.example"}
    mask = mask_of(ConnectorConfig("n", "x", config), environ)
    said = "https://elastic:from-file@es.example/ refused hunter2, hunter2! and k-1+ a"
    assert mask(said) == "https://elastic:******@es.example/ refused ******, ******! and ****** a"


def test_without_secrets_nothing_changes() -> None:
    assert mask_of(ConnectorConfig("n", "x", {"topics": "t"}), {})("t and n") == "t and n"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("http://u:p@ss@h", "http://u:******@h"),
        ("http://:hunter2@h", "http://:******@h"),
        ("https://tok3n@h:9200/a", "https://******@h:9200/a"),
        ("http://u@x:hunter2@h", "http://******@h"),
        ("http://a:p1@h1,http://b:p2@h2", "http://a:******@h1,http://b:******@h2"),
        ("http://elastic:ab/cd==@es:9200/", "http://elastic:******@es:9200/"),
        ("https://${env:U}:ab/c@h", "https://${env:U}:******@h"),
        ("https://${env:U}:x${env:P}@h", "https://${env:U}:******@h"),
    ],
)
def test_passwords_in_urls_are_masked_up_to_the_last_at(text: str, masked: str) -> None:
    assert without_userinfo(text) == masked
    assert without_userinfo(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "http://h:9200/a@b",
        "http://[::1]:9200/a@b",
        "http://${env:HOST}:${env:PORT}/a@b",
        "https://${env:U}:${file:/etc/keys:elastic.password}@${env:HOST}/",
        "no answer from http://h:9200, ask ops@example.org",
        "INSERT INTO a SELECT * FROM t",
    ],
)
def test_other_texts_and_references_stay(text: str) -> None:
    assert without_userinfo(text) == text


@given(
    st.text(st.characters(exclude_characters="/?#@:$", exclude_categories=("C", "Z")), max_size=10),
    st.text(st.characters(exclude_characters="/?#$", exclude_categories=("C", "Z")), min_size=1, max_size=20),
)
def test_nothing_of_a_password_is_left(user: str, password: str) -> None:
    assert without_userinfo(f"http://{user}:{password}@es:9200/x") in (
        f"http://{user}:{MASK}@es:9200/x",
        f"http://{MASK}@es:9200/x",
    )


def test_urls_lose_their_passwords_in_traces_wherever_these_come_from() -> None:
    config = {"connect.elastic.url": "http://elastic:pw%2112345@es:9200", "other": "${env:ES_URL}"}
    mask = mask_of(ConnectorConfig("n", "x", config), {"ES_URL": "http://elastic:other999@es:9200"})
    said = "http://elastic:pw%2112345@es / http://elastic:other999@es / http://x:third@es"
    assert mask(said) == "http://elastic:******@es / http://elastic:******@es / http://x:******@es"
    assert mask("('elastic', 'pw!12345') and other999") == "('elastic', '******') and ******"


def test_what_a_configuration_writes_out_is_masked_without_following_references() -> None:
    config = {"db.password": "hunter2", "api.key": "${env:PATH}", "pin": "4711", "url": "http://u:third@h"}
    mask = mask_written(config, lambda key: key == "pin")
    assert mask("hunter2 4711 third ${env:PATH}") == "****** ****** ****** ${env:PATH}"


def test_values_are_shown_without_secrets() -> None:
    assert masked_value("consumer.override.ssl.key.pem", "-----BEGIN PRIVATE KEY-----MIIE") == MASK
    assert masked_value("db.password", "${env:A}${env:B}") == "${env:A}${env:B}"
    assert masked_value("db.password", "ab${cd") == MASK
    assert masked_value("db.password", "ab${env:CD}") == MASK
    assert masked_value("url", "http://u:p@ss@h") == "http://u:******@h"
    assert masked_value("db.password", "") == ""


SPECIAL = "p\"w\\x /é'%"


@pytest.mark.parametrize(
    "shown",
    [SPECIAL, repr(SPECIAL), json.dumps(SPECIAL), ascii(SPECIAL), quote(SPECIAL), quote(SPECIAL, safe="")],
)
def test_a_secret_is_masked_however_a_trace_writes_it(shown: str) -> None:
    mask = mask_written({"db.password": SPECIAL})
    assert mask(f"refused {shown}!").strip("refusd !\"'") == MASK


def test_parts_of_secrets_are_masked() -> None:
    jaas = 'org.apache.kafka.PlainLoginModule required username="u" password="hunter2";'
    pem = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\n-----END PRIVATE KEY-----"
    config = {"sasl.jaas.config": jaas, "basic.auth.user.info": "ann:hunter3", "ssl.key.pem": pem}
    mask = mask_written(config)
    assert mask("login of ann with hunter2, hunter3") == "login of ann with ******, ******"
    assert "MIIEvQ" not in mask(f"bad line MIIEvQIBADANBgkqhkiG9w0B in {pem!r}")


@pytest.mark.parametrize("text", ["${env:" * 20_000, "://${env:" * 20_000, "://a:" * 20_000], ids=range(3))
def test_masking_takes_linear_time(text: str) -> None:
    assert without_userinfo(text) == text
    assert masked_value("db.password", text) == MASK
