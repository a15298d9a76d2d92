"""Restores the sessions of a process from the sessions topic at its start."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from isotherm.mqtt_proxy.sessions.dormant import DormantSessions, Skim
from isotherm.mqtt_proxy.sessions.records import from_record, newest
from isotherm.mqtt_proxy.sessions.recovery import end_offsets, fence, read_to_end
from isotherm.mqtt_proxy.sessions.server_name import ServerName
from isotherm.mqtt_proxy.sessions.skimming import SessionSkim
from isotherm.mqtt_proxy.sessions.store import StoredState
from isotherm.servicekit.avro import Decoder, WireFormatError
from isotherm.servicekit.lifecycle import Stop


class UnreadableSessionError(Exception):
    """A stored session cannot be decoded. Without its state the server would break its promise to the device."""


class OwnedSlots(Protocol):
    """Which owners' sessions are restored (`WorkerSlot`)."""

    def owns(self, owner: int) -> bool:
        """Return whether the sessions of process `owner` are restored."""

    def is_gone(self, owner: int) -> bool:
        """Return whether process `owner` does not exist any more and must be fenced."""


class SessionRestoration:
    """Reads the sessions of `slot`, and its share of the sessions of processes that do not exist any more.

    `make_consumer` returns a consumer that reports partition ends; `make_producer` returns a producer with the given
    transactional id. `schema_id` returns the id of version 3 of MqttSession, and raises when the registry is away.
    `check_gone` raises when one of the given processes is alive after all. `make_skim` returns the skim of sessions
    that were written with the schema of an id.
    """

    def __init__(
        self,
        topic: str,
        *,
        admin: AdminClient,
        make_consumer: Callable[[], Consumer],
        make_producer: Callable[[str], Producer],
        decoder: Decoder,
        schema_id: Callable[[], int],
        name: ServerName,
        slot: OwnedSlots,
        check_gone: Callable[[Iterable[int]], None],
        stop: Stop,
        make_skim: Callable[[int], Skim] = SessionSkim,
    ) -> None:
        self._topic = topic
        self._admin = admin
        self._make_consumer = make_consumer
        self._make_producer = make_producer
        self._decoder = decoder
        self._schema_id = schema_id
        self._name = name
        self._slot = slot
        self._check_gone = check_gone
        self._stop = stop
        self._make_skim = make_skim
        self.transferred: dict[str, StoredState] = {}
        """The interrupted sessions that the predecessor had transferred to another process."""

    def restore(self, interrupted: Collection[str]) -> DormantSessions:
        """Return the sessions, after fencing the processes that do not exist any more. Blocks.

        `interrupted` names the clients whose sessions a predecessor of this process was transferring when it ended.
        Raises KafkaException, UnreadableSessionError, or what `schema_id` or `check_gone` raises.
        """
        skim = self._make_skim(self._schema_id())
        fenced = set[int]()
        while True:
            values = self._read()
            restored = DormantSessions(self._decode, int(time.time() * 1000), skim)
            try:
                states = {
                    client_id: self._decode(values[client_id]) for client_id in interrupted if client_id in values
                }
                owners = restored.take_over(values, self._slot.owns)
            except WireFormatError as error:
                raise UnreadableSessionError(f"{self._topic}: a session cannot be read: {error}") from error
            gone = {owner for owner in owners if self._slot.is_gone(owner) and self._slot.owns(owner)} - fenced
            if not gone or self._stop.is_set():
                break
            self._check_gone(gone)
            for owner in sorted(gone):
                transactional_id = self._name.transactional_id(owner)
                fence(self._make_producer(transactional_id), transactional_id)
            fenced |= gone
        self.transferred = {client_id: state for client_id, state in states.items() if not self._owns(state)}
        return restored

    def _decode(self, value: bytes) -> StoredState:
        return from_record(self._decoder(value).record)

    def _owns(self, state: StoredState) -> bool:
        return self._slot.owns(state.owner or 0)

    def _read(self) -> dict[str, bytes]:
        """Read the last state of every client. Raises KafkaException."""
        consumer = self._make_consumer()
        try:
            ends = end_offsets(self._admin, self._topic)
            return newest(read_to_end(consumer, self._topic, ends, self._stop), self._name.client_of)
        finally:
            consumer.close()
