"""Session writes in transactions: their order, bounds, and the effect of one bad record on others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from isotherm.mqtt_proxy.delivery.transaction_batcher import TransactionBatch, TransactionBatcher
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.sessions.store import Session, StoredState
from isotherm.mqtt_proxy.sessions.writes import (
    ClaimWrite,
    DetachWrite,
    OrderedSource,
    Outcome,
    PublishesWrite,
    PublishWrite,
    ReleasesWrite,
    ReleaseWrite,
    SessionWrite,
    WipeWrite,
)


class Log:
    """The callbacks and their arguments, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Outcome]] = []

    def write(self, name: str, source: OrderedSource | None = None) -> SessionWrite:
        records = [ProducerRecord("t", name, b"", [])]
        return SessionWrite(lambda outcome: self.told.append((name, outcome)), records=records, source=source)


def taken(batcher: TransactionBatcher) -> TransactionBatch:
    batch = batcher.take()
    assert batch is not None
    return batch


def names(batch: TransactionBatch) -> list[object]:
    return [write.records[0].key for write in batch.writes]


def test_one_batch_at_a_time_in_order() -> None:
    log, batcher = Log(), TransactionBatcher(max_records=100)
    for name in "abc":
        batcher.add(log.write(name))
    first = taken(batcher)
    batcher.add(log.write("d"))
    assert names(first) == ["a", "b", "c"]
    assert batcher.take() is None, "the first is not decided"
    batcher.decide(first, Outcome.COMMITTED)
    assert names(taken(batcher)) == ["d"]
    assert log.told == [(name, Outcome.COMMITTED) for name in "abc"]


def test_a_batch_is_bounded() -> None:
    log, batcher = Log(), TransactionBatcher(max_records=4)
    for name in "abcde":
        batcher.add(log.write(name))
    assert batcher.outstanding_records == 10
    batch = taken(batcher)
    assert names(batch) == ["a", "b"]
    batcher.decide(batch, Outcome.COMMITTED)
    assert batcher.outstanding_records == 6


def test_later_publishes_of_a_sender_that_failed_do_not_overtake() -> None:
    log, batcher, source = Log(), TransactionBatcher(max_records=100), OrderedSource()
    batcher.add(log.write("a1", source))
    batch = taken(batcher)
    batcher.add(log.write("a2", source))
    batcher.add(log.write("b1", OrderedSource()))
    batcher.decide(batch, Outcome.ABORTED)
    assert names(taken(batcher)) == ["b1"]
    assert log.told == [("a1", Outcome.ABORTED), ("a2", Outcome.ABORTED)]


@pytest.mark.parametrize("is_connected", [True, False])
def test_later_publishes_of_a_sender_that_is_told_go_on_unless_its_connection_has_ended(is_connected: bool) -> None:
    log, batcher, source = Log(), TransactionBatcher(max_records=100), OrderedSource(is_told=True)
    batcher.add(log.write("a1", source))
    batch = taken(batcher)
    batcher.add(log.write("a2", source))
    source.is_told = is_connected
    batcher.decide(batch, Outcome.ABORTED)
    later = batcher.take()
    assert (later is not None) == is_connected, "the device sends a1 and a2 again, in this order"


@pytest.mark.parametrize("instead", [[ProducerRecord("dead letters", "12", b"", [])] * 2, [], None])
def test_a_record_at_fault_soon_stands_alone_and_harms_nobody(instead: list[ProducerRecord] | None) -> None:
    log, batcher, source = Log(), TransactionBatcher(max_records=1_000), OrderedSource()
    reasons: list[str] = []

    def on_refused(reason: str) -> list[ProducerRecord] | None:
        reasons.append(reason)
        return instead

    writes = [log.write(f"{number}", source if number == 12 else OrderedSource()) for number in range(30)]
    writes[12].on_refused = on_refused
    for write in writes:
        batcher.add(write)
    sizes = []
    while (found := batcher.take()) is not None:
        sizes.append(len(found.writes))
        if any(record.key == "12" and record.topic == "t" for write in found.writes for record in write.records):
            batcher.retry_refused(found, "too large")
        else:
            batcher.decide(found, Outcome.COMMITTED)
    assert sizes[:4] == [30, 1, 1, 2]
    assert reasons == ["too large"]
    assert [name for name, _ in log.told] == [f"{number}" for number in range(30)], "in their order"
    outcome = Outcome.ABORTED if instead is None else Outcome.COMMITTED
    assert log.told.count(("12", outcome)) == 1
    assert [told for _, told in log.told].count(Outcome.COMMITTED) == 29 + (outcome is Outcome.COMMITTED)
    assert source.failed == (instead is None)
    assert batcher.outstanding_records == 0


def test_what_cannot_be_replaced_either_is_decided() -> None:
    log, batcher = Log(), TransactionBatcher(max_records=1_000)
    write = log.write("a", OrderedSource())
    write.on_refused = lambda _reason: [ProducerRecord("t", "instead", b"", [])]
    batcher.add(write)
    for _ in range(2):
        batcher.retry_refused(taken(batcher), "not authorized")
    assert log.told == [("a", Outcome.ABORTED)]
    assert batcher.take() is None


def test_states_in_a_batch_build_on_each_other_and_hold_only_after_the_commit() -> None:
    told: list[Outcome] = []
    session = Session("c", durable=True)
    batcher = TransactionBatcher(max_records=100)
    batcher.add(ClaimWrite(told.append, session=session, expiry_s=60))
    for packet_id in (5, 6):
        session.receive_publish(packet_id, packet_id * 10, 10)
        batcher.add(PublishWrite(told.append, session=session, packet_id=packet_id, crc32=packet_id * 10))
    batcher.add(ReleaseWrite(told.append, session=session, packet_id=5))
    batch = taken(batcher)
    assert batch.changes() == [("c", StoredState(1, 60, None, {6: 60}))]
    assert session.stored is None
    batcher.decide(batch, Outcome.ABORTED)
    assert (session.stored, session.in_flight, session.undecided) == (None, {}, 0)
    batcher.add(DetachWrite(told.append, session=session, expiry_s=60, now_ms=1_000))
    batch = taken(batcher)
    assert batch.changes() == [("c", None)], "nothing was ever stored"


def test_detach_claim_and_wipe() -> None:
    session = Session("c", durable=True, stored=StoredState(3, 60, None, {9: 1}))
    batcher = TransactionBatcher(max_records=100)
    settled: list[str] = []

    def change(write: SessionWrite) -> StoredState | None:
        batcher.add(write)
        session.when_settled.append(lambda: settled.append("settled"))
        batch = taken(batcher)
        ((client_id, state),) = batch.changes()
        batcher.decide(batch, Outcome.COMMITTED)
        assert client_id == "c"
        assert session.stored == state
        return state

    def ignore(outcome: Outcome) -> None:
        assert outcome is Outcome.COMMITTED

    assert change(DetachWrite(ignore, session=session, expiry_s=60, now_ms=500)) == StoredState(3, 60, 60_500, {9: 1})
    assert change(ClaimWrite(ignore, session=session, expiry_s=7)) == StoredState(4, 7, None, {9: 1})
    assert change(ClaimWrite(ignore, session=session, expiry_s=8, clean=True)) == StoredState(5, 8, None, {})
    assert change(WipeWrite(ignore, session=session)) is None
    assert len(settled) == 4


def test_a_session_of_one_connection_is_changed_but_never_written() -> None:
    session = Session("c")
    session.receive_publish(1, 11, 10)
    batcher = TransactionBatcher(max_records=100)
    batcher.add(PublishWrite(lambda _outcome: None, session=session, packet_id=1, crc32=11))
    batch = taken(batcher)
    assert batch.changes() == []
    batcher.decide(batch, Outcome.COMMITTED)
    assert session.committed == {1: 11}


def together(log: Log, session: Session, packet_ids: Sequence[int]) -> PublishesWrite:
    """Several publishes of a client, which are named by their identifiers."""

    def separate() -> list[PublishWrite]:
        return [
            PublishWrite(
                partial(note, str(packet_id)),
                session=session,
                records=[ProducerRecord("t", str(packet_id), b"", [])],
                packet_id=packet_id,
                crc32=packet_id * 10,
            )
            for packet_id in packet_ids
        ]

    def note(name: str, outcome: Outcome) -> None:
        log.told.append((name, outcome))

    records = [ProducerRecord("t", str(packet_id), b"", []) for packet_id in packet_ids]
    crc32_of = {packet_id: packet_id * 10 for packet_id in packet_ids}
    session.in_flight.update(crc32_of)
    return PublishesWrite(
        partial(note, "all"),
        session=session,
        records=records,
        crc32_of=crc32_of,
        separate=separate,
    )


def test_packets_that_came_together_count_as_so_many() -> None:
    batcher, session = TransactionBatcher(max_records=6), Session("c", durable=True)
    batcher.add(together(Log(), session, (1, 2)))
    assert (batcher.outstanding_records, batcher.waiting, batcher.is_full, session.undecided) == (4, 2, False, 1)
    session.releasing.update((5, 6, 7, 8))
    batcher.add(ReleasesWrite(lambda _outcome: None, session=session, packet_ids=(5, 6, 7, 8)))
    assert (batcher.outstanding_records, batcher.waiting, batcher.is_full) == (8, 6, True)
    session.stored = StoredState(committed={5: 50, 9: 90})
    batch = taken(batcher)
    assert (len(batch.writes), batcher.waiting) == (2, 0)
    batcher.decide(batch, Outcome.COMMITTED)
    assert list(session.committed.items()) == [(9, 90), (1, 10), (2, 20)]
    assert (batcher.outstanding_records, session.in_flight, session.releasing, session.undecided) == (0, {}, set(), 0)


def test_packets_that_came_together_are_tried_one_by_one_after_a_refusal_until_the_bound_is_back() -> None:
    log, batcher, session = Log(), TransactionBatcher(max_records=8), Session("c", durable=True)
    batcher.add(together(log, session, (1, 2, 3)))
    batch = taken(batcher)
    batcher.add(together(log, session, (4, 5)))
    batcher.retry_refused(batch, "too large")
    batcher.add(together(log, session, (6, 7)))
    assert (batcher.waiting, batcher.outstanding_records, session.undecided) == (7, 14, 7)
    tried = []
    while (next_batch := batcher.take()) is not None:
        tried.append(names(next_batch))
        batcher.decide(next_batch, Outcome.COMMITTED)
    assert tried == [["1"], ["2"], ["3", "4"], ["5", "6", "7"]]
    assert [name for name, _ in log.told] == list("1234567")
    assert (batcher.waiting, batcher.outstanding_records, session.undecided) == (0, 0, 0)
    batcher.add(together(log, session, (8, 9)))
    assert len(taken(batcher).writes) == 1
