"""Wrong settings: each error names the key, its value and what is allowed, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from isotherm.mqtt_proxy.service import run
from isotherm.mqtt_proxy.settings import SERVICE, ProxySettings
from isotherm.servicekit.settings import SettingsError, load

GOOD = {
    "routes": "INSERT INTO thermostat.data SELECT * FROM devices/+/temperature",
    "allow_anonymous": "true",
}


def problems(settings: Mapping[str, str]) -> str:
    overrides = [f"{key}={value}" for key, value in (GOOD | dict(settings)).items()]
    with pytest.raises(SettingsError) as caught:
        run(load(ProxySettings, SERVICE, environ={}, overrides=overrides))
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"routes": ""}, "routes and topic_regex_list are empty"),
        ({"topic_regex_list": "temperature:("}, "topic_regex_list:"),
        ({"topic_regex_list": "temperature:.*", "topic_regex_format": "raw"}, "expect SensorReading"),
        ({"topic_regex_list": "a:.*", "topic_regex_format": "raw", "dead_letter_topic": "a"}, "the service's own"),
        ({"allow_anonymous": "false"}, "allow_anonymous"),
        ({"listener.prt": "1"}, "did you mean listener.port?"),
        ({"limits.receive_maximum": "0"}, "limits.receive_maximum (--set): '0' is not allowed"),
        ({"limits.messages_total": "many"}, "limits.messages_total (--set): 'many' is not allowed"),
        ({"limits.bytes_per_client": "0:1"}, "expected n:seconds"),
        ({"invalid_publish": "ignore"}, "'dead-letter' or 'refuse'"),
        ({"tls.certfile": "/nowhere.pem"}, "tls.certfile"),
        ({"websocket.port": "1883"}, "websocket.port and listener.port are both 1883"),
        ({"websocket.origins": "*"}, "websocket.origins: without websocket.port nothing reads it"),
        (
            {"websocket.proxy_protocol": "true", "websocket.trusted_balancers": "10.0.0.0/8"},
            "websocket.proxy_protocol: without websocket.port nothing reads it",
        ),
        ({"topic_regex_format": "raw"}, "topic_regex_format=raw without topic_regex_list"),
        ({"pods.server_reference": "other:1883"}, "pods.server_reference: without pods.enabled=true"),
        ({"listener.proxy_protocol": "true"}, "listener.trusted_balancers: [] is not allowed: "),
        ({"websocket.proxy_protocol": "true"}, "proxy_protocol=true needs the networks of the balancers; allowed are"),
        (
            {"listener.proxy_protocol": "true", "listener.trusted_balancers": "10.0.0.0/8,10.0.0.1/8"},
            "listener.trusted_balancers.1 (--set): '10.0.0.1/8' is not allowed: ",
        ),
        ({"websocket.proxy_protocol": "true", "websocket.trusted_balancers": "here"}, "allowed are networks such as"),
        (
            {"listener.proxy_protocol": "true", "listener.trusted_balancers": "::ffff:10.0.0.0/104"},
            "listener.trusted_balancers.0 (--set): '::ffff:10.0.0.0/104' is not allowed: Value error, IPv4 within IPv6",
        ),
        ({"listener.trusted_balancers": "10.0.0.0/8"}, "without proxy_protocol=true nothing reads them"),
        (
            {"pods.enabled": "true", "pods.drain_ms": "60000"},
            "pods.drain_ms is 60000; it must be below shutdown_timeout_ms",
        ),
        ({"pods.enabled": "true", "role": "bridge"}, "pods.enabled is true with role=bridge; only a server"),
        ({"pods.host": "one pod"}, "pods.host (--set): 'one pod' is not allowed"),
        ({"pods.drain_ms": "-1"}, "pods.drain_ms (--set): '-1' is not allowed"),
        ({"pods.enabled": "maybe"}, "pods.enabled (--set): 'maybe' is not allowed"),
        ({"pods.hosts": "a"}, "did you mean pods.host?"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str], says: str) -> None:
    assert says in problems(settings)


def origins_of(*origins: str) -> list[str]:
    settings = GOOD | {"websocket.port": "9001", "websocket.origins": ",".join(origins)}
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return load(ProxySettings, SERVICE, environ={}, overrides=overrides).websocket.origins


@pytest.mark.parametrize(
    ("origin", "says"),
    [
        ("app.example", "no scheme and host"),
        ("app.example:8080", "no scheme and host"),
        ("//app.example", "no scheme and host"),
        ("https://user@app.example", "no scheme and host"),
        ("https://app.example:", "no scheme and host"),
        ("null", "no scheme and host"),
        ("https://app.example/page", "nothing behind the host and port"),
        ("https://app.example?", "nothing behind the host and port"),
        ("https://bücher.example", "xn--"),
        ("https://app.example:443", "leave out the port 443 of https"),
        ("https://app.example:port", "Port could not be cast"),
    ],
)
def test_an_origin_that_no_browser_sends_is_named(origin: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        origins_of("https://good.example", origin)
    text = str(caught.value)
    assert f"websocket.origins.1 (--set): {origin!r} is not allowed: " in text
    assert says in text
    assert "allowed are origins such as" in text


def test_origins_that_browsers_send_are_allowed() -> None:
    origins = ["*", "https://app.example", "http://10.0.0.1:8080/", "https://[fd00::1]:8443", "app://obsidian.md"]
    assert origins_of(*origins) == origins
