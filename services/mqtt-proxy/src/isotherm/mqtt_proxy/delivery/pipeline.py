"""The way of a publish into Kafka, shared by all connections of a process."""

from __future__ import annotations

from collections.abc import Callable

from isotherm.connector.attestation.attester import RunBook
from isotherm.mqtt_proxy.codec.packets import V5
from isotherm.mqtt_proxy.codec.reasons import Reason
from isotherm.mqtt_proxy.delivery.transactions import Transactions
from isotherm.mqtt_proxy.ingest.inflight_gate import InflightGate
from isotherm.mqtt_proxy.ingest.refusals import refusal_reason
from isotherm.mqtt_proxy.ingest.translated_publish import TranslatedPublish
from isotherm.mqtt_proxy.ingest.translation import Translator
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.servicekit import logs
from isotherm.servicekit.producer.delivery import LoopProducer
from isotherm.servicekit.throttling.sparse_log import SparseLog

_log = logs.logger(__name__)


class IngestPipeline:
    """Translator, in-flight gate, producers and counters of a process.

    `producer` takes QoS 0 and 1, `transactions` QoS 2. With `refuse_invalid` an MQTT 5 client is told of an invalid
    publish instead of storing a dead letter. `clock` returns seconds of a monotonic clock. `runs_of` returns where
    records of a topic that Kafka has are attested; None for nowhere.
    """

    __slots__ = (
        "_log_refused",
        "_refuse_invalid",
        "clock",
        "gate",
        "metrics",
        "producer",
        "runs_of",
        "transactions",
        "translator",
    )

    def __init__(
        self,
        *,
        translator: Translator,
        producer: LoopProducer,
        transactions: Transactions,
        gate: InflightGate,
        metrics: Metrics,
        clock: Callable[[], float],
        refuse_invalid: bool = False,
        runs_of: Callable[[str], RunBook | None] = lambda _topic: None,
    ) -> None:
        self.translator = translator
        self.producer = producer
        self.transactions = transactions
        self.gate = gate
        self.metrics = metrics
        self.clock = clock
        self.runs_of = runs_of
        self._refuse_invalid = refuse_invalid
        self._log_refused = SparseLog(_log, "publishes were not stored")

    def refusal(self, translated: TranslatedPublish, version: int) -> Reason | None:
        """Return the reason with which to refuse an invalid publish of QoS 1 or 2, and count it; None to store it."""
        invalid_reason = translated.invalid_reason
        # A publish without records is only counted, because there are too many dead letters. A client that can be told
        # never receives a success for it.
        is_refused = self._refuse_invalid or not translated.records
        if invalid_reason is None or not is_refused or version != V5:
            return None
        self.metrics.invalid_publishes_refused[invalid_reason] += 1
        translated.end_trace(f"refused: {invalid_reason}")
        return refusal_reason(invalid_reason)

    def count_refused(self, qos: int, client_id: str, reason: str) -> None:
        """Count and log a publish that is not stored and whose client receives no success for it."""
        self.metrics.refused[qos] += 1
        self._log_refused(client_id=client_id, qos=qos, reason=reason)
