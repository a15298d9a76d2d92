"""Settings of the service. What is observed stands in connector files, not here."""

from __future__ import annotations

from pydantic import Field, model_validator

from isotherm import payloads
from isotherm.coap_ingest.observe.observation import Timing
from isotherm.connector.attestation.settings import AttestationSettings
from isotherm.connector.distributed.hosting import HostSettings
from isotherm.servicekit.settings import Settings
from isotherm.servicekit.tracing.settings import IngestTracingSettings


class ObservationSettings(Settings):
    """The waiting times of observations."""

    silence_grace_min_ms: int = Field(
        5_000, ge=0, description="Shortest wait after Max-Age before the server is asked again (RFC 7641: 5 s)."
    )
    silence_grace_max_ms: int = Field(15_000, ge=0, description="Longest such wait (RFC 7641: 15 s).")
    answer_timeout_ms: int = Field(5_000, ge=100, description="A request without an answer for this long has failed.")
    retry_base_ms: int = Field(250, ge=10, description="Longest wait after the first failure; doubles with each.")
    retry_cap_ms: int = Field(10_000, ge=10, description="Longest wait after any failure.")
    poll_min_ms: int = Field(
        1_000, ge=100, description="Shortest wait between polls of a resource that cannot be observed."
    )

    @model_validator(mode="after")
    def _check_order(self) -> ObservationSettings:
        if self.silence_grace_min_ms > self.silence_grace_max_ms:
            raise ValueError("silence_grace_min_ms must not exceed silence_grace_max_ms")
        return self

    def timing(self) -> Timing:
        """Return these settings for the state machine."""
        return Timing(
            silence_grace_min_ms=self.silence_grace_min_ms,
            silence_grace_max_ms=self.silence_grace_max_ms,
            answer_timeout_ms=self.answer_timeout_ms,
            retry_base_ms=self.retry_base_ms,
            retry_cap_ms=self.retry_cap_ms,
            poll_min_ms=self.poll_min_ms,
        )


class CoapIngestSettings(HostSettings):
    """All settings of coap-ingest."""

    observation: ObservationSettings = ObservationSettings()
    attestations: AttestationSettings = AttestationSettings()
    tracing: IngestTracingSettings = IngestTracingSettings()
    units: dict[str, str] = Field(
        default_factory=dict,
        description="Units by metric (`humidity=%RH,co2=ppm`), beside those that the topic declares.",
    )
    queue_limit: int = Field(
        10_000, ge=1, description="Notifications between socket and producer; further ones are lost and counted."
    )
    queue_limit_bytes: int = Field(
        64 * 1024 * 1024, ge=1024, description="Payload bytes in that queue, and again in the producer's own queue."
    )
    receive_buffer_bytes: int = Field(
        4 * 1024 * 1024,
        ge=4096,
        description="Size of the system's receive buffer of each UDP socket; the system's own limit is "
        "`net.core.rmem_max`.",
    )
    max_outstanding: int = Field(10_000, ge=1, description="Records that Kafka has not acknowledged yet.")
    max_payload_bytes: int = Field(256 * 1024, ge=1, description="Largest representation, all blocks together.")
    message_id_cache_size: int = Field(
        262_144,
        ge=1024,
        description="Requests whose duplicates each listener recognises, for at most 247 s (RFC 7252: "
        "EXCHANGE_LIFETIME); one takes 150 bytes, one with a long answer the room of several.",
    )
    allow_anonymous: bool = Field(
        False,
        description="A listener without DTLS may have an address other than loopback. Everybody who reaches it may "
        "then send.",
    )
    max_discovered: int = Field(
        2_000,
        ge=1,
        description="Resources that discovery may add during the life of the process; servers choose their names.",
    )
    dead_letter_topic: str = Field(
        "coap-ingest.dead-letters", description="Dead-letter topic of connectors that name none."
    )
    kafka_stalled_after_ms: int = Field(
        10_000, ge=100, description="Not ready when records wait and Kafka acknowledged none for this long."
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> CoapIngestSettings:
        if self.max_payload_bytes > self.queue_limit_bytes:
            raise ValueError("max_payload_bytes must not exceed queue_limit_bytes")
        return self

    def limits(self) -> payloads.Limits:
        """Return the limits of one payload."""
        return payloads.Limits(max_bytes=self.max_payload_bytes)
