from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.aggregator.spark.kafka_options import java_options, redacted
from isotherm.servicekit.settings import KafkaSettings, SettingsError


def options(**properties: str) -> dict[str, str]:
    dotted = {name.replace("_", "."): value for name, value in properties.items()}
    return java_options(KafkaSettings(bootstrap_servers="k:9092", properties=dotted))


def test_the_address_is_all_that_is_needed() -> None:
    assert options() == {"kafka.bootstrap.servers": "k:9092"}


def test_tuning_of_librdkafka_is_left_out() -> None:
    assert options(socket_keepalive_enable="true", linger_ms="5") == {"kafka.bootstrap.servers": "k:9092"}


def test_a_login_becomes_a_jaas_configuration() -> None:
    java = options(
        security_protocol="SASL_SSL", sasl_mechanisms="SCRAM-SHA-512", sasl_username="u", sasl_password='p"\\'
    )
    assert java["kafka.security.protocol"] == "SASL_SSL"
    assert java["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    assert java["kafka.sasl.jaas.config"] == f'{module} required username="u" password="p\\"\\\\";'


def test_pem_files_are_handed_over_by_content(tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"PEM of {name}")
    java = options(
        ssl_ca_location=str(tmp_path / "ca"),
        ssl_certificate_location=str(tmp_path / "certificate"),
        ssl_key_location=str(tmp_path / "key"),
        ssl_key_password="secret",
        ssl_endpoint_identification_algorithm="none",
    )
    assert java == {
        "kafka.bootstrap.servers": "k:9092",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "PEM of ca",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "PEM of certificate",
        "kafka.ssl.keystore.key": "PEM of key",
        "kafka.ssl.key.password": "secret",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ssl_ca_location", "/nowhere/ca.pem", "cannot be read"),
        ("sasl_mechanism", "OAUTHBEARER", "allowed: PLAIN, SCRAM-SHA-256"),
        ("enable_ssl_certificate_verification", "false", "has no such property; allowed: sasl"),
    ],
)
def test_security_is_never_left_out_silently(name: str, value: str, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        options(**{name: value})


def test_secrets_are_taken_out_of_texts(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("PEM\nof key")
    java = options(
        sasl_mechanism="PLAIN",
        sasl_username="u",
        sasl_password="hunter2",
        ssl_key_location=str(tmp_path / "key"),
        ssl_key_password="hunter3",
    )
    shown = redacted("plan with " + ", ".join(f"{name}={value}" for name, value in java.items()), java)
    assert "hunter" not in shown
    assert "PEM\nof key" not in shown
    assert "kafka.sasl.jaas.config" in shown
