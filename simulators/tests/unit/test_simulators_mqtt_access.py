"""Connection options as paho receives them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from isotherm.simulators.__main__ import main
from isotherm.simulators.mqtt.access import Access, access_of, add_access_arguments


def access(*options: str) -> Access:
    parser = argparse.ArgumentParser()
    add_access_arguments(parser)
    return access_of(parser.parse_args(options))


def test_the_default_is_a_persistent_session_of_3_1_1_without_tls() -> None:
    found = access()
    assert found == Access()
    assert found.client_arguments() == {"clean_session": False}
    assert (found.connect_arguments(), found.publish_arguments()) == ({}, {})


def test_mqtt_5_with_login_and_user_properties(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    found = access(
        *("--mqtt-version", "5", "--username", "devices", "--password-file", str(password)),
        *("--user-property", "home=h1", "--user-property", "empty="),
    )
    assert (found.username, found.password) == ("devices", "correct horse")
    assert found.client_arguments() == {"protocol": MQTTProtocolVersion.MQTTv5}
    assert found.connect_arguments()["clean_start"] is False
    assert found.connect_arguments()["properties"].SessionExpiryInterval == 3_600
    assert found.publish_arguments()["properties"].UserProperty == [("home", "h1"), ("empty", "")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--user-property", "a=b"), "--user-property needs --mqtt-version 5"),
        (("--tls-cert", "c"), "--tls-ca is needed"),
        (("--tls-ca", "/nowhere.pem"), "--tls-ca, --tls-cert, --tls-key: "),
        (("--password-file", "p"), "--username is needed"),
        (("--username", "u", "--password-file", "/nowhere"), "--password-file: "),
    ],
)
def test_invalid_options_end_the_command(
    options: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mqtt", "--ledger", str(tmp_path / "ledger"), *options]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "ledger").exists()
