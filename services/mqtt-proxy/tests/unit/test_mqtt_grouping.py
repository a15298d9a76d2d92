"""Units into transactions: order, bounds, and what one bad record may do to others."""

from __future__ import annotations

import pytest

from isotherm.mqtt_proxy.delivery.transaction_batcher import (
    Batch,
    ClaimUnit,
    DetachUnit,
    Grouping,
    Outcome,
    OutRecord,
    PublishUnit,
    ReleaseUnit,
    Sender,
    Unit,
    WipeUnit,
)
from isotherm.mqtt_proxy.sessions.store import Session, StoredState


class Log:
    """Who was told what, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Outcome]] = []

    def unit(self, name: str, sender: Sender | None = None) -> Unit:
        records = [OutRecord("t", name, b"", [])]
        return Unit(lambda outcome: self.told.append((name, outcome)), records=records, sender=sender)


def taken(grouping: Grouping) -> Batch:
    batch = grouping.take()
    assert batch is not None
    return batch


def names(batch: Batch) -> list[object]:
    return [unit.records[0].key for unit in batch.units]


def test_one_batch_at_a_time_in_order() -> None:
    log, grouping = Log(), Grouping(max_records=100)
    for name in "abc":
        grouping.add(log.unit(name))
    first = taken(grouping)
    grouping.add(log.unit("d"))
    assert names(first) == ["a", "b", "c"]
    assert grouping.take() is None, "the first is not decided"
    grouping.decided(first, Outcome.COMMITTED)
    assert names(taken(grouping)) == ["d"]
    assert log.told == [(name, Outcome.COMMITTED) for name in "abc"]


def test_a_batch_is_bounded() -> None:
    log, grouping = Log(), Grouping(max_records=4)
    for name in "abcde":
        grouping.add(log.unit(name))
    assert grouping.outstanding_records == 10
    batch = taken(grouping)
    assert names(batch) == ["a", "b"]
    grouping.decided(batch, Outcome.COMMITTED)
    assert grouping.outstanding_records == 6


def test_later_publishes_of_a_sender_that_failed_do_not_overtake() -> None:
    log, grouping, sender = Log(), Grouping(max_records=100), Sender()
    grouping.add(log.unit("a1", sender))
    batch = taken(grouping)
    grouping.add(log.unit("a2", sender))
    grouping.add(log.unit("b1", Sender()))
    grouping.decided(batch, Outcome.ABORTED)
    assert names(taken(grouping)) == ["b1"]
    assert log.told == [("a1", Outcome.ABORTED), ("a2", Outcome.ABORTED)]


@pytest.mark.parametrize("instead", [[OutRecord("dead letters", "12", b"", [])] * 2, [], None])
def test_a_record_at_fault_soon_stands_alone_and_harms_nobody(instead: list[OutRecord] | None) -> None:
    log, grouping, sender = Log(), Grouping(max_records=1_000), Sender()
    reasons: list[str] = []

    def on_refused(reason: str) -> list[OutRecord] | None:
        reasons.append(reason)
        return instead

    units = [log.unit(f"{number}", sender if number == 12 else Sender()) for number in range(30)]
    units[12].on_refused = on_refused
    for unit in units:
        grouping.add(unit)
    sizes = []
    while (found := grouping.take()) is not None:
        sizes.append(len(found.units))
        if any(record.key == "12" and record.topic == "t" for unit in found.units for record in unit.records):
            grouping.refused(found, "too large")
        else:
            grouping.decided(found, Outcome.COMMITTED)
    assert sizes[:4] == [30, 1, 1, 2]
    assert reasons == ["too large"]
    assert [name for name, _ in log.told] == [f"{number}" for number in range(30)], "in their order"
    outcome = Outcome.ABORTED if instead is None else Outcome.COMMITTED
    assert log.told.count(("12", outcome)) == 1
    assert [told for _, told in log.told].count(Outcome.COMMITTED) == 29 + (outcome is Outcome.COMMITTED)
    assert sender.failed == (instead is None)
    assert grouping.outstanding_records == 0


def test_what_cannot_be_replaced_either_is_decided() -> None:
    log, grouping = Log(), Grouping(max_records=1_000)
    unit = log.unit("a", Sender())
    unit.on_refused = lambda _reason: [OutRecord("t", "instead", b"", [])]
    grouping.add(unit)
    for _ in range(2):
        grouping.refused(taken(grouping), "not authorized")
    assert log.told == [("a", Outcome.ABORTED)]
    assert grouping.take() is None


def test_states_in_a_batch_build_on_each_other_and_hold_only_after_the_commit() -> None:
    told: list[Outcome] = []
    session = Session("c", durable=True)
    grouping = Grouping(max_records=100)
    grouping.add(ClaimUnit(told.append, session=session, expiry_s=60))
    for packet_id in (5, 6):
        session.on_publish(packet_id, packet_id * 10, 10)
        grouping.add(PublishUnit(told.append, session=session, packet_id=packet_id, crc32=packet_id * 10))
    grouping.add(ReleaseUnit(told.append, session=session, packet_id=5))
    batch = taken(grouping)
    assert batch.changes() == [("c", StoredState(1, 60, None, {6: 60}))]
    assert session.stored is None
    grouping.decided(batch, Outcome.ABORTED)
    assert (session.stored, session.in_flight, session.undecided) == (None, {}, 0)
    grouping.add(DetachUnit(told.append, session=session, expiry_s=60, now_ms=1_000))
    batch = taken(grouping)
    assert batch.changes() == [("c", None)], "nothing was ever stored"


def test_detach_claim_and_wipe() -> None:
    session = Session("c", durable=True, stored=StoredState(3, 60, None, {9: 1}))
    grouping = Grouping(max_records=100)
    settled: list[str] = []

    def change(unit: Unit) -> StoredState | None:
        grouping.add(unit)
        session.when_settled.append(lambda: settled.append("settled"))
        batch = taken(grouping)
        ((client_id, state),) = batch.changes()
        grouping.decided(batch, Outcome.COMMITTED)
        assert client_id == "c"
        assert session.stored == state
        return state

    def ignore(outcome: Outcome) -> None:
        assert outcome is Outcome.COMMITTED

    assert change(DetachUnit(ignore, session=session, expiry_s=60, now_ms=500)) == StoredState(3, 60, 60_500, {9: 1})
    assert change(ClaimUnit(ignore, session=session, expiry_s=7)) == StoredState(4, 7, None, {9: 1})
    assert change(ClaimUnit(ignore, session=session, expiry_s=8, clean=True)) == StoredState(5, 8, None, {})
    assert change(WipeUnit(ignore, session=session)) is None
    assert len(settled) == 4


def test_a_session_of_one_connection_is_changed_but_never_written() -> None:
    session = Session("c")
    session.on_publish(1, 11, 10)
    grouping = Grouping(max_records=100)
    grouping.add(PublishUnit(lambda _outcome: None, session=session, packet_id=1, crc32=11))
    batch = taken(grouping)
    assert batch.changes() == []
    grouping.decided(batch, Outcome.COMMITTED)
    assert session.committed == {1: 11}
