"""The world of several pods of one MQTT server, which share nothing but Kafka; devices hop between them."""

from __future__ import annotations

from random import Random

from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.proofs.worlds.mqtt.device import Device
from isotherm.proofs.worlds.mqtt.faults import Faults
from isotherm.proofs.worlds.mqtt.pod_faults import POD_KINDS, PodFaults
from isotherm.proofs.worlds.mqtt.pods import CLAIMS, Deployment, pod_settings
from isotherm.proofs.worlds.mqtt.programs import Environment
from isotherm.proofs.worlds.mqtt.world import MqttWorld


class PodsWorld(MqttWorld):
    """Runs two or three pods behind a balancer that sends each connection to any of them."""

    name = "mqtt-pods"
    kinds = POD_KINDS

    def __init__(self, seconds: float = 600.0) -> None:
        super().__init__(seconds)

    def _settings(self, **limits: int) -> ProxySettings:
        return pod_settings(**limits)

    def _start(self, environment: Environment, devices: list[Device], chance: Random) -> Faults:
        environment.cluster.create_topic(CLAIMS, 1, is_compacted=True)
        deployment = Deployment(environment, chance.randint(1, 2))
        for _ in range(chance.randint(2, 3)):
            deployment.add()
        return PodFaults(environment, devices, deployment)
