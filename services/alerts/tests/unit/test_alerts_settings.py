"""Which settings the service accepts, and which it refuses."""

from __future__ import annotations

import ssl
from pathlib import Path

import faust
import pytest

from isotherm.alerts.rules.kinds import SilentRule, ThresholdRule
from isotherm.alerts.settings import AlertsSettings
from isotherm.alerts.stream.faust_credentials import credentials
from isotherm.servicekit import settings as loading
from isotherm.servicekit.settings import KafkaSettings, SettingsError

RULES = """
[[rules]]
kind = "above"
name = "too-hot"
metric = "temperature"
threshold = 28
severity = "critical"

[[rules]]
kind = "silent"
intervals = 3

[overrides.model.T9]
"temperature.too-hot" = 50
"""


def load(*overrides: str, file: Path | None = None) -> AlertsSettings:
    return loading.load(AlertsSettings, "alerts", environ={}, file=file, overrides=overrides)


def test_rules_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "alerts.toml"
    file.write_text(RULES)
    settings = load(file=file)
    hot, silent = settings.rules
    assert isinstance(hot, ThresholdRule)
    assert (hot.key, hot.threshold, hot.severity) == ("temperature.too-hot", 28, "critical")
    assert isinstance(silent, SilentRule)
    assert settings.overrides == {"model": {"T9": {"temperature.too-hot": 50}}}


def test_there_are_rules_by_default() -> None:
    assert sorted(load().rule_book().keys) == [
        "silent",
        "temperature.above",
        "temperature.below",
        "temperature.flat",
        "temperature.rate",
        "unknown-device",
    ]


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (
            'rules=[{"kind": "hot"}]',
            "'above', 'below', 'rate', 'flat', 'outside-schedule', .*'unknown-device'",
        ),
        ('rules=[{"kind": "above", "metric": "t"}]', r"rules.*threshold.*Field required"),
        ('rules=[{"kind": "silent"}, {"kind": "silent"}]', "two rules are named silent"),
        (
            'overrides={"model": {"T9": {"temperature.abvoe": 1}}}',
            r"overrides.model.T9: 'temperature.abvoe' is not a bound",
        ),
        (
            'overrides={"model": {"T9": {"silent": NaN}}}',
            r"overrides.model.T9: 'silent' = nan is not allowed: .*finite",
        ),
        (
            'overrides={"home": {"h": {"temperature.above.for_ms": -1}}}',
            r"overrides.home.h: 'temperature.above.for_ms' = -1.0 is not allowed: .*greater than or equal to 0",
        ),
        (
            'overrides={"region": {"r": {"temperature.rate": 4}}}',
            r"overrides.region.r: 'temperature.rate': hysteresis = 5 is not allowed: must be below .* 4",
        ),
        (
            'rules=[{"kind": "rate", "metric": "t", "threshold": 5, "hysteresis": 5}]',
            r"rules.*hysteresis = 5 is not allowed: must be below the threshold, 5",
        ),
        ('overrides={"colour": {}}', "'model', 'region' or 'home'"),
        ("input_topics=", "input_topics.*at least 1"),
        ("webhook.url=ftp://x", r"webhook.url.*\^https\?://"),
        ("reorder=1", "did you mean reorder_ms"),
    ],
)
def test_what_cannot_be_used_is_named(override: str, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        load(override)


def test_an_open_connection_needs_no_credentials() -> None:
    assert credentials(KafkaSettings(properties={"socket.keepalive.enable": "true"})) is None


def test_sasl_and_tls_come_from_librdkafkas_names() -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.endpoint.identification.algorithm": "none",
    }
    made = credentials(KafkaSettings(properties=given))
    assert isinstance(made, faust.SASLCredentials)
    assert (made.mechanism.value, made.username, made.password) == ("SCRAM-SHA-512", "u", "p")
    assert isinstance(made.ssl_context, ssl.SSLContext)
    assert not made.ssl_context.check_hostname
    assert isinstance(credentials(KafkaSettings(properties={"security.protocol": "ssl"})), faust.SSLCredentials)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"ssl.cipher.suites": "x"}, "ssl.cipher.suites: aiokafka has no such property"),
        ({"security.protocol": "tls"}, "'tls' is not allowed"),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}, "'OAUTHBEARER' is not allowed"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/no/such/file"}, "a file cannot be used"),
    ],
)
def test_security_that_cannot_be_had_is_refused(properties: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        credentials(KafkaSettings(properties=properties))
