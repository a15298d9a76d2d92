"""QoS 2 exactly once, by a model: devices, lost bytes, aborted transactions, a proxy that dies.

Real connections, sessions and batches run on a real event loop; only the socket and Kafka are modelled: a transaction
is decided when the test says so, and what was committed (readings and session states) is all that survives a crash.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, cast

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from mqtt_dormant import dormant
from mqtt_model import (
    Device,
    HeldTransactions,
    Ledger,
    OneRecordTranslator,
    WriterThatTheTestDecides,
    state_record,
)

from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.assembly import build_server
from isotherm.mqtt_proxy.delivery.pipeline import IngestPipeline
from isotherm.mqtt_proxy.delivery.transactional_writer import TransactionalWriter
from isotherm.mqtt_proxy.delivery.transactions import Transactions
from isotherm.mqtt_proxy.ingest.inflight_gate import InflightGate
from isotherm.mqtt_proxy.ingest.translation import Translator
from isotherm.mqtt_proxy.metrics import Metrics
from isotherm.mqtt_proxy.server.server import Server
from isotherm.mqtt_proxy.sessions.store import SessionStore
from isotherm.mqtt_proxy.settings import LimitSettings, ProxySettings, SessionSettings
from isotherm.servicekit.producer.delivery import LoopProducer

DEVICES = ("anna", "bert")


class Qos2Machine(RuleBasedStateMachine):
    """In every case a message is stored at most once, and exactly once after PUBREC."""

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.failures: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _loop, context: self.failures.append(context))
        self.ledger = Ledger()
        self.devices = {name: Device(name) for name in DEVICES}
        self.boot()

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.finish()
        finally:
            self.failures.clear()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()

    def boot(self) -> None:
        async def build() -> Server:
            metrics = Metrics()
            self.held = HeldTransactions(self.ledger)
            transactions = Transactions(
                cast(TransactionalWriter, WriterThatTheTestDecides()),
                executor=self.held,
                session_record=state_record,
                witness=state_record("\0witness", None),
                max_records=4,
                linger_s=0,
                metrics=metrics,
                on_fatal=lambda failure: None,
            )
            sessions = SessionStore(100, dormant(self.ledger.states, int(time.time() * 1000)))
            settings = ProxySettings(
                routes="INSERT INTO t SELECT * FROM t",
                allow_anonymous=True,
                limits=LimitSettings(receive_maximum=20),
                session=SessionSettings(expiry_s=10**9),
            )
            pipeline = IngestPipeline(
                translator=cast(Translator, OneRecordTranslator()),
                producer=LoopProducer(cast(Any, None)),
                transactions=transactions,
                gate=InflightGate(1_000_000, 10**9, metrics),
                metrics=metrics,
                clock=self.loop.time,
            )
            access = AccessControl(settings, metrics)
            server = build_server(settings, pipeline=pipeline, sessions=sessions, access=access)
            server.open()
            return server

        self.server = self.loop.run_until_complete(build())

    def turn(self) -> None:
        for _ in range(12):
            self.loop.run_until_complete(asyncio.sleep(0))
        if self.failures:
            raise self.failures[0].get("exception") or AssertionError(self.failures[0])

    @rule(name=st.sampled_from(DEVICES))
    def connect(self, name: str) -> None:
        """Also while the old connection still stands: a half-open takeover."""
        device = self.devices[name]
        self.loop.call_soon(device.connect, self.server)
        self.turn()

    @rule(name=st.sampled_from(DEVICES), packet_id=st.integers(1, 3), burst=st.integers(1, 2), poison=st.integers(0, 9))
    def publish(self, name: str, packet_id: int, burst: int, poison: int = 9) -> None:
        device = self.devices[name]
        for offset in range(burst):
            wanted = packet_id + offset
            if device.accepted and wanted not in device.unfinished:
                self.loop.call_soon(partial(device.publish_new, wanted, poison=poison == offset))
        self.turn()

    @rule(name=st.sampled_from(DEVICES), steps=st.integers(1, 8))
    def all_is_well(self, name: str, steps: int) -> None:
        """Connect where needed, publish, and let Kafka and the network work for a few steps."""
        device = self.devices[name]
        for step in range(steps):
            if device.wire is None:
                self.connect(name)
            elif device.accepted and not device.unfinished:
                self.publish(name, 1 + step % 3, 2)
            if self.held.is_open:
                self.decide(commit=True)
            self.answers_arrive(name)

    @rule(name=st.sampled_from(DEVICES), packet_id=st.integers(1, 4))
    def resend(self, name: str, packet_id: int) -> None:
        """A repetition on the same connection, which 3.1.1 does not ask for but allows."""
        device = self.devices[name]
        if device.accepted and packet_id in device.unfinished and packet_id not in device.received:
            self.loop.call_soon(partial(device.publish, packet_id, dup=True))
            self.turn()

    @rule(name=st.sampled_from(DEVICES))
    def answers_arrive(self, name: str) -> None:
        device = self.devices[name]
        if device.wire is not None:
            self.loop.call_soon(device.read)
            self.turn()

    @rule(name=st.sampled_from(DEVICES))
    def answers_are_lost(self, name: str) -> None:
        device = self.devices[name]
        if device.wire is not None:
            self.loop.call_soon(device.drop)
            self.turn()

    @precondition(lambda self: self.held.is_open)
    @rule(commit=st.booleans())
    def decide(self, commit: bool) -> None:
        future = self.held.decide(commit=commit)
        assert future is not None
        future.set_result(self.held.outcome)
        self.turn()

    @rule(name=st.sampled_from(DEVICES), commit=st.booleans())
    def proxy_is_paused_and_resumed(self, name: str, commit: bool) -> None:
        """Publishes in flight are decided first; then no client is accepted until the server is resumed."""
        shutting = self.loop.create_task(self.server.shut())
        self.turn()
        for _ in range(40):
            if self.held.is_open:
                self.decide(commit)
        assert shutting.done(), "nothing is in flight, and it is not paused"
        shutting.result()
        device = self.devices[name]
        self.loop.call_soon(device.connect, self.server)
        self.turn()
        assert device.wire is not None
        assert (bytes(device.wire.received), device.wire.closed) == (b"\x20\2\0\3", True)
        device.drop()
        self.server.open()

    @precondition(lambda self: self.ledger.readings or self.held.is_open)
    @rule(commit=st.booleans())
    def proxy_is_killed(self, commit: bool) -> None:
        """Kafka decides the open transaction; its answer is lost."""
        self.held.decide(commit=commit)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        for device in self.devices.values():
            # The dead process handles nothing any more: devices only notice a closed socket.
            device.connection = device.wire = None
            device.accepted = False
        self.turn()
        self.boot()

    @invariant()
    def stored_at_most_once(self) -> None:
        if hasattr(self, "ledger"):
            assert len(set(self.ledger.readings)) == len(self.ledger.readings)

    @invariant()
    def promised_is_stored(self) -> None:
        if hasattr(self, "ledger"):
            for device in self.devices.values():
                assert device.promised <= set(self.ledger.readings)

    def finish(self) -> None:
        """With a working network and Kafka everything that was ever sent is stored exactly once."""
        for device in self.devices.values():
            for _ in range(60):
                if device.accepted and not device.unfinished:
                    break
                if device.wire is None:
                    self.connect(device.client_id)
                if self.held.is_open:
                    self.decide(commit=True)
                self.answers_arrive(device.client_id)
            assert not device.unfinished, f"{device.client_id} waits for ever for {device.unfinished}"
            mine = [reading for reading in self.ledger.readings if reading.startswith(device.client_id.encode())]
            assert sorted(mine) == sorted(device.sent)


Qos2Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestQos2 = Qos2Machine.TestCase
