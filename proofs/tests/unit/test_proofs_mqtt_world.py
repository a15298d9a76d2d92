"""The MQTT world: quick runs of the real server are clean, a run is its seed, and each broken promise is convicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest

from isotherm.mqtt_proxy.delivery import transactional_writer
from isotherm.mqtt_proxy.delivery.qos1 import PendingPublish
from isotherm.mqtt_proxy.delivery.qos2 import Qos2Receiver
from isotherm.mqtt_proxy.delivery.transaction_batcher import TransactionBatch
from isotherm.mqtt_proxy.delivery.transactional_writer import TransactionalWriter, WriteResult
from isotherm.mqtt_proxy.delivery.transactions import Transactions
from isotherm.mqtt_proxy.sessions.server_name import ServerName
from isotherm.mqtt_proxy.sessions.store import Session
from isotherm.mqtt_proxy.sessions.writes import OrderedSource, Outcome, PublishWrite, SessionWrite, ignore_outcome
from isotherm.proofs.worlds.mqtt.world import MqttOutcome, MqttWorld

QUICK_S = 120.0
QUICK_SEEDS = range(1, 20)
MOST_SEEDS = 300
"""A fault is convicted within so many seeds, or the world has become blind to it."""


def run(seed: int, seconds: float = QUICK_S, *, keeps_trace: bool = False) -> MqttOutcome:
    world = MqttWorld(seconds)
    return world.run(world.scenario(seed), keeps_trace=keeps_trace)


def test_quick_runs_are_clean_and_full_of_faults() -> None:
    outcomes = [run(seed) for seed in QUICK_SEEDS]
    assert [outcome.findings for outcome in outcomes if outcome.findings] == []
    total = sum((outcome.counts for outcome in outcomes), Counter[str]())
    assert {"kills", "takeovers", "repeats", "refused", "resent", "acknowledged"} <= total.keys()


@pytest.mark.parametrize("seed", [3, 8])
def test_the_trace_of_a_seed_is_the_same_byte_for_byte(seed: int) -> None:
    first, second = (run(seed, 60.0, keeps_trace=True) for _ in range(2))
    assert first.lines == second.lines
    assert first.digest == second.digest != run(seed + 1, 60.0).digest


def _answer_before_the_commit() -> Any:
    submit = Transactions.submit

    def submit_and_answer(self: Transactions, write: SessionWrite) -> None:
        submit(self, write)
        if isinstance(write, PublishWrite):
            decide, write.on_decided = write.on_decided, ignore_outcome
            decide(Outcome.COMMITTED)

    return patch.object(Transactions, "submit", submit_and_answer)


def _leave_session_records_out() -> Any:
    return patch.object(TransactionBatch, "changes", lambda _self: [])


def _ignore_fencing() -> Any:
    lives = count()
    return patch.object(ServerName, "transactional_id", lambda _self, ordinal: f"{ordinal}-{next(lives)}")


def _forget_identifiers_on_reconnect() -> Any:
    attach = Qos2Receiver.attach

    def attach_and_forget(self: Qos2Receiver, session: Session) -> None:
        if session.stored is not None:
            session.stored.committed.clear()
        attach(self, session)

    return patch.object(Qos2Receiver, "attach", attach_and_forget)


def _acknowledge_before_the_report() -> Any:
    send = PendingPublish.send

    def send_and_acknowledge(self: PendingPublish) -> None:
        send(self)
        ack, self._ack = self._ack, None
        if ack is not None:
            self._receiver.acks.complete(ack)

    return patch.object(PendingPublish, "send", send_and_acknowledge)


def _guess_unanswered_commits() -> Any:
    return patch.object(TransactionalWriter, "_decided_by_kafka", lambda self, reason: _replaced(self, reason))


def _replaced(writer: TransactionalWriter, reason: str) -> WriteResult:
    writer._replace(reason)
    return WriteResult.ABORTED


def _overtake_what_an_ended_connection_was_not_told() -> Any:
    attach = Qos2Receiver.attach

    def attach_and_note(self: Qos2Receiver, session: Session) -> None:
        attach(self, session)
        if self._source.is_told:
            self._source = ToldSource()

    return patch.object(Qos2Receiver, "attach", attach_and_note)


class ToldSource(OrderedSource):
    """The source of an MQTT 5 client before its fault was found: it never fails."""

    def fail(self) -> None: ...


def _believe_late_answers() -> Any:
    return patch.object(transactional_writer, "_RETRIED_AFTER_S", float("inf"))


SEEDED_FAULTS: Iterable[tuple[Callable[[], Any], str, int]] = (
    (_answer_before_the_commit, "acknowledged and is not stored", 3),
    (_leave_session_records_out, "a session is lost", 1),
    (_ignore_fencing, "times", 11),
    (_forget_identifiers_on_reconnect, "times", 2),
    (_acknowledge_before_the_report, "acknowledged and is not stored", 1),
    (_guess_unanswered_commits, "times", 11),
    (_overtake_what_an_ended_connection_was_not_told, "only before an earlier one", 28),
    (_believe_late_answers, "times", 49),
)
"""Each with a part of what the judge says, and the first seed to try."""


@pytest.mark.parametrize(
    ("seeded", "finding", "first"), SEEDED_FAULTS, ids=lambda one: getattr(one, "__name__", "")[1:]
)
def test_a_seeded_fault_of_the_server_is_convicted(seeded: Callable[[], Any], finding: str, first: int) -> None:
    seeds = range(first, first + MOST_SEEDS)
    with seeded():
        assert any(finding in each for seed in seeds for each in run(seed).findings)
