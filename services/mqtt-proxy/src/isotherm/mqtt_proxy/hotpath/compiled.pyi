from collections.abc import Callable, Mapping, Sequence

from isotherm.connector.attestation.runs import Run
from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.delivery.qos1 import Qos1Receiver
from isotherm.mqtt_proxy.delivery.qos2 import Qos2Receiver
from isotherm.mqtt_proxy.hotpath.plain_ingest import Rates
from isotherm.mqtt_proxy.ingest.producer_record import Headers
from isotherm.mqtt_proxy.protocol.state_machine import ServerProtocol
from isotherm.mqtt_proxy.sessions.records import EncodeSession
from isotherm.mqtt_proxy.sessions.skimming import Skimmed
from isotherm.mqtt_proxy.sessions.store import StoredState

class CompiledSkim:
    def __init__(self, schema_id: int) -> None: ...
    def __call__(self, client_id: str, value: bytes) -> Skimmed | None: ...

class SessionEncoder:
    def __init__(self, schema_id: int, otherwise: EncodeSession) -> None: ...
    def __call__(self, client_id: str, state: StoredState, owner: int, now_ms: int) -> bytes: ...

class AttestedRuns:
    dropped: int
    def __init__(self, most: int) -> None: ...
    def __bool__(self) -> bool: ...
    def add(self, partition: int, offset: int, key: bytes, value: bytes) -> None: ...
    def take(self) -> dict[int, list[Run]]: ...

FUNCTIONS: tuple[str, ...]

def bind(addresses: Sequence[int]) -> None: ...

class RefusedRecord:
    def __init__(self, topic: str, key: str, value: bytes, partition: int) -> None: ...
    def topic(self) -> str: ...
    def key(self) -> str: ...
    def value(self) -> bytes: ...
    def partition(self) -> int: ...

class DirectProducer:
    def __init__(self, producer: object, handle: int | None) -> None: ...
    def drain(self) -> int: ...

class FieldNames:
    def __init__(self, names: Mapping[str, str]) -> None: ...

class ReadingEncoder:
    def __init__(
        self,
        header: bytes,
        names: FieldNames,
        *,
        is_strict: bool,
        device_id: str | None,
        is_bound: bool,
        metric: str | None,
        unit: str | None,
        most_readings: int,
    ) -> None: ...
    def encode_payload(self, payload: bytes, ingest_ms: int, sequence: int) -> list[tuple[str, bytes]] | None: ...

class TopicPlan:
    def __init__(
        self, topic: str, target: str, encoder: ReadingEncoder, device_span: tuple[int, int] | None
    ) -> None: ...

class DeliveryReports:
    def __init__(self, pipeline: IngestPipeline, most_plan_bytes: int) -> None: ...
    @property
    def plan_bytes(self) -> int: ...
    def settle(self) -> None: ...

class PlainPublishes:
    def __init__(
        self,
        reports: DeliveryReports,
        receiver: Qos1Receiver,
        qos2: Qos2Receiver,
        *,
        protocol: ServerProtocol,
        access: AccessControl,
        rates: Rates | None,
        receive_maximum: int,
        may_publish: Callable[[str], bool],
        plan_topic: Callable[[bytes], TopicPlan | None],
        headers_of: Callable[[str, int], tuple[Headers, int]],
    ) -> None: ...
    has_taken_all: bool
    @property
    def plans(self) -> int: ...
    def take(self) -> int: ...
    def close(self) -> None: ...
