"""The MQTT world: quick runs of the real server are clean, a run is its seed, and each broken promise is convicted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from isotherm.mqtt_proxy.sessions.writes import OrderedSource, Outcome, SessionWrite, ignore_outcome
from isotherm.proofs.kafka.clients.loop_producer import ServerProducer
from isotherm.proofs.kafka.clients.producing import Report
from isotherm.proofs.worlds.mqtt.world import MqttOutcome, MqttWorld
from isotherm.proofs.worlds.scenario import Fault, Scenario

QUICK_S = 120.0
QUICK_SEEDS = (*range(1, 19), 215)
"""In seed 215, the server refuses publishes; one in a hundred seeds does."""
MOST_SEEDS = 300
"""A fault is convicted within so many seeds from its first one, or the world has become blind to it."""


def run(seed: int, seconds: float = QUICK_S, *, keeps_trace: bool = False) -> MqttOutcome:
    world = MqttWorld(seconds)
    return world.run(world.scenario(seed), keeps_trace=keeps_trace)


def test_quick_runs_are_clean_and_full_of_faults() -> None:
    outcomes = [run(seed) for seed in QUICK_SEEDS]
    assert [outcome.findings for outcome in outcomes if outcome.findings] == []
    total = sum((outcome.counts for outcome in outcomes), Counter[str]())
    assert {"kills", "takeovers", "repeats", "refused", "resent", "acknowledged", "attested"} <= total.keys()


@pytest.mark.parametrize("seed", [3, 8])
def test_the_trace_of_a_seed_is_the_same_byte_for_byte(seed: int) -> None:
    first, second = (run(seed, 60.0, keeps_trace=True) for _ in range(2))
    assert first.lines == second.lines
    assert first.digest == second.digest != run(seed + 1, 60.0).digest


def _answer_before_the_commit() -> Any:
    submit = Transactions.submit

    def submit_and_answer(self: Transactions, write: SessionWrite) -> None:
        submit(self, write)
        if write.publishes:
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


@contextmanager
def _acknowledge_before_the_report() -> Iterator[None]:
    """For the server without compiled code: that one hears of reports by `_overlook_errors_in_reports`."""
    send = PendingPublish.send

    def send_and_acknowledge(self: PendingPublish) -> None:
        send(self)
        ack, self._ack = self._ack, None
        if ack is not None:
            self._receiver.acks.complete(ack)

    pure = patch.dict(os.environ, {"ISOTHERM_PURE_PYTHON": "1"})
    with pure, patch.object(PendingPublish, "send", send_and_acknowledge):
        yield


def _overlook_errors_in_reports() -> Any:
    reported = ServerProducer._reported

    def report_success(self: ServerProducer, callback: Any, report: Report) -> None:
        reported(self, callback, report._replace(code=None))

    return patch.object(ServerProducer, "_reported", report_success)


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


def _attest_whatever_becomes_of_a_transaction() -> Any:
    apply = Transactions._apply_result

    def attest_and_apply(self: Transactions, batch: TransactionBatch, result: WriteResult) -> None:
        if result is not WriteResult.COMMITTED and self._on_stored is not None:
            for message in self._writer.stored:
                self._on_stored(message)
        apply(self, batch, result)

    return patch.object(Transactions, "_apply_result", attest_and_apply)


LOSS = Fault("all_brokers_loss", 3_000, 110_000, 0, 0.55)
KILLS = tuple(Fault("kill", at_ms, 1, at_ms // 1_000) for at_ms in range(5_000, 120_000, 9_000))
HURRY = tuple(Fault("hurry", at_ms, 1, at_ms // 700) for at_ms in range(4_000, 120_000, 700))
ZOMBIES = tuple(Fault("zombie_at_step", at_ms, 12_000, 1, 0.5) for at_ms in range(5_000, 110_000, 25_000))
OUTAGES = tuple(Fault("all_brokers_away", at_ms, 33_000) for at_ms in (5_000, 43_000, 81_000))

SEEDED_FAULTS: Sequence[tuple[Callable[[], Any], int, str, tuple[Fault, ...]]] = (
    (_answer_before_the_commit, 4, "acknowledged and is not stored", KILLS),
    (_leave_session_records_out, 0, "a session is lost", KILLS),
    (_ignore_fencing, 0, "times", ZOMBIES),
    (_forget_identifiers_on_reconnect, 0, "times", HURRY),
    (_acknowledge_before_the_report, 0, "acknowledged and is not stored", (*OUTAGES, *KILLS)),
    (_overlook_errors_in_reports, 0, "acknowledged and is not stored", OUTAGES),
    (_guess_unanswered_commits, 23, "times", (LOSS,)),
    (_overtake_what_an_ended_connection_was_not_told, 76, "only before an earlier one", (*OUTAGES, *HURRY)),
    (_believe_late_answers, 8, "times", (LOSS,)),
    (_attest_whatever_becomes_of_a_transaction, 0, "attested and not stored", (LOSS,)),
)
"""Each with the first seed that convicted it (one run is enough until the server's schedule changes), with a part
of what the judge says, and with faults of the surroundings that the server must live with."""


@pytest.mark.parametrize(
    ("seeded", "first", "finding", "faults"), SEEDED_FAULTS, ids=lambda one: getattr(one, "__name__", "")
)
def test_a_seeded_fault_of_the_server_is_convicted(
    seeded: Callable[[], Any], first: int, finding: str, faults: tuple[Fault, ...]
) -> None:
    world = MqttWorld(QUICK_S)
    with seeded():
        assert any(
            finding in each
            for seed in range(first, first + MOST_SEEDS)
            for each in world.run(Scenario(seed, faults)).findings
        )
