"""QoS 0 and 1: the records go straight to the producer, the PUBACK follows when Kafka has all of them."""

from __future__ import annotations

from confluent_kafka import KafkaError

from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.delivery.transactional_writer import RECORDS_AT_FAULT
from isotherm.mqtt_proxy.ingest.publish_traces import replace_by_dead_letter
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.mqtt_proxy.ingest.translation import IngestContext
from isotherm.mqtt_proxy.protocol.ack_queue import NOT_STORED, AckQueue, PendingAck
from isotherm.mqtt_proxy.protocol.client_port import ClientPort
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol


class Qos1Receiver:
    """Takes the QoS 0 and 1 publishes of one connection; `acks` sends their PUBACKs in order."""

    __slots__ = ("_port", "_protocol", "acks", "context", "pipeline")

    def __init__(
        self,
        pipeline: IngestPipeline,
        protocol: ServerProtocol,
        port: ClientPort,
        *,
        context: IngestContext,
        acks: AckQueue,
    ) -> None:
        self.pipeline = pipeline
        self.context = context
        self.acks = acks
        self._protocol = protocol
        self._port = port

    def publish(self, publish: Publish) -> None:
        """Translate a publish and pass its records to the producer, or refuse it."""
        translated = self.pipeline.translator.translate(publish, self.context)
        ack = None
        if publish.qos:
            if translated.invalid_reason and (reason := self.refusal(translated)):
                self.acks.refuse(publish.packet_id, reason)
                return
            ack = self.acks.expect(publish.packet_id)
        PendingPublish(self, publish, translated, ack).send()

    def decide(
        self,
        publish: Publish,
        ack: PendingAck | None,
        error: KafkaError | None,
        *,
        target: str,
        records: int,
        size: int,
        started_s: float,
    ) -> None:
        """Decide about a publish that `hotpath` produced as so many readings of `target`.

        `size` is what the in-flight gate counts of it, `error` that of its record which Kafka did not store.
        """
        translated = TranslatedPublish([], [(target, records)])
        PendingPublish(self, publish, translated, ack, in_flight=(records, size, started_s))(error)

    def refusal(self, translated: TranslatedPublish) -> Reason | None:
        """Return the reason with which to refuse an invalid publish of QoS 1; None to store it."""
        return self.pipeline.refusal(translated, self._protocol.version)

    def reject(self, ack: PendingAck, reason: Reason) -> None:
        """Tell the client that a publish is not stored. An MQTT 3.1.1 client is told by the end of its connection."""
        if not self.acks.reject(ack, reason):
            self._port.close(NOT_STORED, "Kafka did not store a publish")


class PendingPublish:
    """A QoS 0 or 1 publish whose records are in flight; the producer calls it when Kafka decided about all of them.

    When Kafka refuses a record for the record's own sake, the publish becomes a dead letter. Otherwise its device would
    send it again forever, and everything behind it would wait.
    """

    __slots__ = ("_ack", "_is_dead_letter", "_publish", "_receiver", "_records", "_size", "_started_s", "_translated")

    def __init__(
        self,
        receiver: Qos1Receiver,
        publish: Publish,
        translated: TranslatedPublish,
        ack: PendingAck | None,
        *,
        in_flight: tuple[int, int, float] | None = None,
    ) -> None:
        """`in_flight` is given for records that were produced before: how many, their bytes, and since when."""
        self._receiver = receiver
        self._publish = publish
        self._translated = translated
        self._ack = ack
        self._is_dead_letter = False
        self._records, self._size, self._started_s = in_flight or (0, 0, receiver.pipeline.clock())

    def send(self) -> None:
        """Pass all records to the producer."""
        pipeline, translated = self._receiver.pipeline, self._translated
        records = translated.records
        self._records, self._size = len(records), translated.bytes + len(self._publish.payload)
        pipeline.gate.acquire(self._records, self._size)
        if records:
            pipeline.producer.produce_all(records, self)
        else:
            self(None)

    def __call__(self, error: KafkaError | None) -> None:
        receiver, publish, translated = self._receiver, self._publish, self._translated
        pipeline = receiver.pipeline
        if error is not None:
            # What the same poll reported before comes first, because the connection may end now.
            pipeline.producer.on_polled()
        pipeline.gate.release(self._records, self._size)
        if error is None:
            pipeline.metrics.count_stored(translated, publish.qos, pipeline.clock() - self._started_s)
            translated.end_trace()
            if self._ack is not None:
                receiver.acks.complete(self._ack)
        elif error.code() in RECORDS_AT_FAULT and not self._is_dead_letter:
            self._send_dead_letter(error.str())
        else:
            pipeline.count_refused(publish.qos, receiver.context.client_id, str(error))
            translated.end_trace(error.str())
            if self._ack is not None:
                receiver.reject(self._ack, NOT_STORED)

    def _send_dead_letter(self, detail: str) -> None:
        receiver = self._receiver
        self._is_dead_letter = True
        dead_letter = receiver.pipeline.translator.dead_letter(self._publish, receiver.context, detail)
        replace_by_dead_letter(self._translated, dead_letter, detail)
        self._translated = dead_letter
        reason = None if self._ack is None else receiver.refusal(self._translated)
        if self._ack is None or reason is None:
            self.send()
        else:
            receiver.reject(self._ack, reason)
