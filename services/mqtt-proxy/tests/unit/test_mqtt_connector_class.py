"""The configuration of the MQTT source: the keys of the old connector, and every error."""

from __future__ import annotations

import pytest

from isotherm.connector.config.files import parse
from isotherm.connector.config.validation import InvalidConfigError
from isotherm.mqtt_proxy.bridge.connector_class import MqttClasses, bridge_settings
from isotherm.mqtt_proxy.settings import ProxySettings

OLD = """
name=mqtt-source
connector.class=com.datamountaineer.streamreactor.connect.mqtt.source.MqttSourceConnector
tasks.max=3
connect.mqtt.hosts=tcp://broker.example:1884
connect.mqtt.service.quality=1
connect.mqtt.kcql=INSERT INTO thermostat.data SELECT id AS device_id, t AS value FROM `devices/+/temperature`
"""
SETTINGS = ProxySettings(role="worker")


def bridge(more: str = "", text: str = OLD) -> ProxySettings:
    return bridge_settings(parse(text + more, form="properties"), SETTINGS)[1]


def test_an_old_file_becomes_a_bridge() -> None:
    made = bridge("connect.mqtt.username=u\nconnect.mqtt.password=p\nconnect.mqtt.keep.alive=60000\n")
    assert (made.role, made.bridge.host, made.bridge.port) == ("bridge", "broker.example", 1884)
    assert (made.bridge.client_id, made.bridge.group, made.bridge.keep_alive_s) == ("mqtt-source", "mqtt-source", 60)
    assert made.bridge.password is not None
    assert made.bridge.password.get_secret_value() == "p"
    assert made.routes.startswith("INSERT INTO thermostat.data")
    assert made.dead_letter_topic == "mqtt-proxy.dead-letters"
    assert bridge("dead.letters=true\n").dead_letter_topic == "mqtt-source.dead-letters"


def test_the_short_form_and_a_secured_broker() -> None:
    made = bridge(
        text="name=m\nclass=mqtt\nhosts=ssl://b\nssl.ca.cert=ca.pem\nkcql=INSERT INTO temperature SELECT * FROM a\n"
    )
    assert (made.bridge.port, made.bridge.cafile) == (8883, "ca.pem")


def test_tasks_share_a_subscription_or_there_is_one() -> None:
    assert MqttClasses(SETTINGS).check(parse(OLD)).tasks == 3
    assert MqttClasses(SETTINGS).check(parse(OLD + "connect.mqtt.group=\n")).tasks == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("connect.mqtt.hosts=tcp://a:1,tcp://b:1", "expected one address"),
        ("connect.mqtt.hosts=http://a", "expected tcp"),
        ("connect.mqtt.hosts=tcp://me:s,cret@a:1", "belong to connect.mqtt.username and connect.mqtt.password"),
        ("connect.mqtt.hosts=tcp://a:port", "port"),
        ("connect.mqtt.hosts=ssl://a", "ssl.ca.cert"),
        ("connect.mqtt.hosts=", "expected a value"),
        ("connect.mqtt.kcql=INSERT INTO a SELECT * FROM b WITHCONVERTER=`x`", "WITHCONVERTER"),
        ("connect.mqtt.kcql=INSERT INTO a/b SELECT * FROM c", "not a Kafka topic"),
        ("tasks.max=0", "at least 1"),
    ],
)
def test_what_cannot_work_is_refused_by_key(line: str, said: str) -> None:
    key = line.partition("=")[0]
    text = "".join(f"{one}\n" for one in OLD.splitlines() if not one.startswith(f"{key}="))
    with pytest.raises(InvalidConfigError, match=said) as refused:
        bridge(f"{line}\n", text)
    assert "cret" not in str(refused.value)
    assert key.rpartition(".")[0] in str(refused.value)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(InvalidConfigError) as refused:
        bridge(text="name=m\nclass=mqtt\ntasks.max=x\nkcql=INSERT nothing\n")
    assert len(refused.value.problems) == 3
