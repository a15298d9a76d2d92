"""A thermostat that is too hot every other time, and how soon each of its alerts is in Kafka."""

from __future__ import annotations

import json
import math
import threading
import time
from array import array

from confluent_kafka import OFFSET_END, TopicPartition
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from consumer_lag import CLIENT
from isotherm.demo.addresses import Addresses
from isotherm.servicekit.avro import Decoder, SchemaRegistry
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.consuming import consume_available
from isotherm.stack.ports import LOOPBACK

DEVICE = "bench-whole-thermostat"
RULE = "heat"
"""Of the demo's rules the one that reacts at once: above 30 degrees."""
EVERY_S = 0.5
_HOT, _MILD = 35.0, 20.0
_POLL_S = 0.1
_PATIENCE_S = 30.0
_LAST_ALERTS_S = 5.0
"""How long the alerts of the last readings are waited for."""


class AlertProbe:
    """Publishes over MQTT and reads the topic of alerts, each on a thread of its own, between `start` and `stop`."""

    def __init__(self, addresses: Addresses, mqtt_port: int) -> None:
        self._addresses = addresses
        self._mqtt_port = mqtt_port
        self._stopped = threading.Event()
        self._reading = threading.Event()
        self._is_read = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._publisher = threading.Thread(target=self._publish, daemon=True)
        self._registry = SchemaRegistry(addresses.registry)
        self.delays_ms = array("d")
        self.published = 0

    def start(self) -> None:
        """Begin to publish, once new alerts are read."""
        self._reader.start()
        self._publisher.start()

    def stop(self) -> None:
        """Publish nothing more, wait a while for the last alerts, and end both threads."""
        self._stopped.set()
        self._publisher.join()
        deadline = time.monotonic() + _LAST_ALERTS_S
        while self.missing > 0 and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self._is_read.set()
        self._reader.join()
        self._registry.close()

    @property
    def missing(self) -> int:
        """How many readings have caused no alert; before `stop`, the last ones may still do so."""
        return self.published - len(self.delays_ms)

    def _publish(self) -> None:
        client = Client(CallbackAPIVersion.VERSION2, DEVICE)
        client.connect(LOOPBACK, self._mqtt_port)
        client.loop_start()
        self._reading.wait(_PATIENCE_S)
        while not self._stopped.wait(EVERY_S):
            self.published += 1
            now_ms = time.time_ns() // 1_000_000
            value = _HOT if self.published % 2 else _MILD
            reading = {"id": DEVICE, "t": value, "ts": now_ms, "seq": self.published}
            client.publish(f"devices/{DEVICE}/temperature", json.dumps(reading), qos=1)
        client.disconnect()
        client.loop_stop()

    def _read(self) -> None:
        decode = Decoder(self._registry)
        consumer = clients.consumer(self._addresses.kafka, CLIENT, f"{CLIENT}-alerts")
        topic = self._addresses.alerts_topic
        partitions = consumer.list_topics(topic, timeout=_PATIENCE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_END) for number in partitions])
        # The first answer from Kafka has settled where the end was.
        consumer.poll(1.0)
        self._reading.set()
        while not self._is_read.is_set():
            for message in consume_available(consumer, 100, _POLL_S):
                now_ms = time.time_ns() / 1_000_000
                if message.error() is None:
                    alert = decode(message.value() or b"").record
                    if alert["device_id"] == DEVICE and alert["rule"] == RULE:
                        self.delays_ms.append(now_ms - alert["updated_at"].timestamp() * 1_000)
        consumer.close()


def percentile(values: array[float], share: float, missing: int = 0) -> float:
    """The value that so many do not exceed; infinite for one of those missing, not a number where there is none."""
    ordered = [*sorted(values), *[math.inf] * missing]
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else math.nan
