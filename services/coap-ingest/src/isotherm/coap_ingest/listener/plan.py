"""Where and how one connector lets devices send readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isotherm.coap_ingest.coap.resource import Server
from isotherm.coap_ingest.ingest.routes import Rule
from isotherm.coap_ingest.listener.identity import IdentityPolicy, PathAcl
from isotherm.servicekit.throttling.rates import Rate


@dataclass(frozen=True, slots=True)
class ListenPlan:
    """The address of a connector's CoAP server, the rules of its statements, and who may send what."""

    connector: str
    server: Server
    rules: tuple[Rule, ...]
    rate: Rate
    """The rate of each device."""
    timeout_ms: int
    """How long a request waits for Kafka's acknowledgement."""
    keys: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)
    """Over DTLS, the devices' pre-shared keys by identity."""
    identity: IdentityPolicy = IdentityPolicy.PAYLOAD
    acl: PathAcl | None = None

    @property
    def stalled_after_ms(self) -> float:
        """When a record has waited for this long, new requests are refused at once."""
        return self.timeout_ms / 2
