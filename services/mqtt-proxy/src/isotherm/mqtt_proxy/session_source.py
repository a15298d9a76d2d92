"""Composes what reads stored sessions of a process: at its start, and when it adopts those of other pods."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from isotherm.mqtt_proxy.delivery.transactional_writer import SuccessorUnknownError
from isotherm.mqtt_proxy.hotpath import session_encoder, session_skim
from isotherm.mqtt_proxy.kafka_clients import build_fencing_producer, build_heartbeat_consumer, build_session_consumer
from isotherm.mqtt_proxy.pods.ownership import PodSlot
from isotherm.mqtt_proxy.processes.name_conflicts import NameConflicts
from isotherm.mqtt_proxy.processes.worker_process import PodStart
from isotherm.mqtt_proxy.sessions.records import EncodeSession, encode_with
from isotherm.mqtt_proxy.sessions.recovery import fence
from isotherm.mqtt_proxy.sessions.restoration import OwnedSlots, SessionRestoration
from isotherm.mqtt_proxy.sessions.server_name import ServerName
from isotherm.mqtt_proxy.settings import ProxySettings
from isotherm.schemas import schema
from isotherm.servicekit.avro import Decoder, RegistryUnavailableError, SchemaNotRegisteredError, SchemaRegistry
from isotherm.servicekit.lifecycle import Stop

SESSION = schema("MqttSession", 3)
"""The schema of stored sessions, which the service writes and reads."""
STATUS = schema("TaskStatus", 1)
"""The schema that the service reads of other processes."""


class SessionSource:
    """The sessions topic, for the process whose Kafka clients are called `client_id`."""

    def __init__(
        self,
        settings: ProxySettings,
        client_id: str,
        *,
        admin: AdminClient,
        registry: SchemaRegistry,
        stop: Stop,
    ) -> None:
        self._settings, self._client_id = settings, client_id
        self._name = ServerName(settings.name)
        self._admin, self._registry, self._stop = admin, registry, stop
        heartbeats = partial(build_heartbeat_consumer, settings, f"{client_id}-name")
        self._conflicts = NameConflicts(admin, heartbeats, Decoder(registry, STATUS), self._name.connector)

    def hold_name(self) -> None:
        """Hold the name of this process. Blocks. Raises NameInUseError and KafkaException (`NameConflicts.hold`)."""
        self._conflicts.hold(self._settings.ordinal, self._stop.is_set)

    def find_successor(self, is_over: Callable[[], bool]) -> str | None:
        """Return the name of another process with this one's transactional id, a standby that took over (ADR 17).

        None in a pod: the number of one of its processes is never given to another one, and `confirm` tells a process
        that it was replaced. Raises SuccessorUnknownError while Kafka, or the registry for the schema of a heartbeat,
        is away.
        """
        if self._settings.pods.enabled:
            return None
        try:
            others = self._conflicts.others([self._settings.ordinal], is_over)
        except (KafkaException, RegistryUnavailableError, SchemaNotRegisteredError) as failure:
            raise SuccessorUnknownError(str(failure)) from failure
        return ", ".join(others.values()) or None

    def encoder(self) -> EncodeSession:
        """Return what encodes states for the topic. Blocks. Raises what the registry raises."""
        encode = self._registry.encoder(self._settings.session.topic, SESSION)
        return session_encoder(encode_with(encode), self._schema_id())

    def _schema_id(self) -> int:
        return self._registry.schema_id(f"{self._settings.session.topic}-value", SESSION)

    def of(self, slot: OwnedSlots) -> SessionRestoration:
        """Return what reads the sessions of `slot`."""
        settings, topic = self._settings, self._settings.session.topic
        return SessionRestoration(
            topic,
            admin=self._admin,
            make_consumer=partial(build_session_consumer, settings, f"{self._client_id}-restore"),
            make_producer=partial(build_fencing_producer, settings),
            decoder=Decoder(self._registry, SESSION),
            schema_id=self._schema_id,
            name=self._name,
            slot=slot,
            check_gone=lambda owners: self._conflicts.check(owners, self._stop.is_set),
            stop=self._stop,
            make_skim=session_skim,
        )

    def of_pod(self, start: PodStart, first_ordinal: int) -> SessionRestoration:
        """Return what reads the sessions of this process, which is one of a pod."""
        ordinal = self._settings.ordinal
        return self.of(PodSlot(ordinal, first_ordinal, start.is_heir, frozenset(start.others), start.below))

    def fence(self, ordinal: int) -> None:
        """Fence the process with `ordinal`: it commits nothing any more. Blocks. Raises KafkaException."""
        transactional_id = self._name.transactional_id(ordinal)
        fence(build_fencing_producer(self._settings, transactional_id), transactional_id)
