"""The world of the persisters finds nothing in the code as it is, and convicts each fault that is put into it."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count, islice
from typing import Any

import pytest
from confluent_kafka import KafkaError

from isotherm.persisters.api.ownership import Lease, Ownership
from isotherm.persisters.buffers import in_flight_batch
from isotherm.persisters.buffers.accounting import Counts
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.buffers.partition_buffer import PartitionBuffer
from isotherm.persisters.buffers.partition_buffers import PartitionBuffers
from isotherm.persisters.consuming import offsets
from isotherm.persisters.consuming.fetch_positions import FetchPositions
from isotherm.persisters.task.dead_letter_sender import DeadLetterSender
from isotherm.persisters.task.loop import Loop
from isotherm.persisters.task.writers import Writers
from isotherm.proofs.worlds.persister_terms import Terms, draw_terms
from isotherm.proofs.worlds.persisters import PersistersWorld
from isotherm.proofs.worlds.scenario import Fault, Scenario, shrink

WORLD = PersistersWorld()
Patch = pytest.MonkeyPatch


def test_the_code_as_it_is_has_no_finding_and_each_seed_has_one_trace() -> None:
    for seed in range(8):
        first = WORLD.run(WORLD.scenario(seed), keeps_trace=True)
        assert first.findings == []
        if seed < 3:
            again = WORLD.run(Scenario.decoded(WORLD.scenario(seed).encoded()), keeps_trace=True)
            assert (again.lines, again.digest) == (first.lines, first.digest)


def test_a_worker_that_is_killed_in_a_write_comes_back() -> None:
    """All three were dead for ever where a worker was to start again before it was killed; the run had no end."""
    run = WORLD.run(WORLD.scenario(11_813), keeps_trace=True)
    assert run.findings == []
    killed = [index for index, line in enumerate(run.lines) if " kill_in_write worker-" in line]
    assert len(killed) == 3
    assert all(any(" start worker-" in line for line in run.lines[index:]) for index in killed)


def commit_what_is_read(patch: Patch) -> None:
    def position_of(buffer: PartitionBuffer) -> Any:
        found = original(buffer)
        found.offset = buffer.next_offset or found.offset
        return found

    original = offsets.position_of
    patch.setattr(offsets, "position_of", position_of)


def write_without_ownership(patch: Patch) -> None:
    patch.setattr(Ownership, "check", lambda _self: None)


def trust_a_lease_for_ever(patch: Patch) -> None:
    patch.setattr(Lease, "is_valid", True)


def renew_the_lease_at_each_look(patch: Patch) -> None:
    """As the code did before seed 14 had its finding: who polls believes to be a member."""
    patch.setattr(Lease, "is_due", property(lambda self: self.confirm(self.asked())))


def drop_rows_that_failed_for_now(patch: Patch) -> None:
    def apply_result(self: InFlightBatch, failed: Any, policy: Any) -> None:
        original(self, [one for one in failed if not one.transient], policy)

    original = InFlightBatch.apply_result
    patch.setattr(InFlightBatch, "apply_result", apply_result)


def retry_rows_without_those_behind_them(patch: Patch) -> None:
    patch.setattr(in_flight_batch, "rows_to_retry", lambda rows, failed: [rows[index] for index in sorted(failed)])


def take_an_unavailable_sink_for_success(patch: Patch) -> None:
    patch.setattr(InFlightBatch, "apply_unavailable", lambda self, *_: self.rows.clear())


def send_no_dead_letters(patch: Patch) -> None:
    patch.setattr(DeadLetterSender, "send", lambda *_: None)


def forget_the_counts(patch: Patch) -> None:
    patch.setattr(Counts, "from_metadata", classmethod(lambda cls, _text: cls()))


def keep_the_buffers_of_lost_partitions(patch: Patch) -> None:
    patch.setattr(Loop, "_lost", lambda *_: None)


def keep_the_ownership_of_removed_buffers(patch: Patch) -> None:
    patch.setattr(PartitionBuffers, "remove", lambda self, partition: self.by_partition.pop(partition, None))
    patch.setattr(Lease, "is_valid", True)


def never_look_for_gaps(patch: Patch) -> None:
    patch.setattr(FetchPositions, "check", lambda *_: None)


def never_resume(patch: Patch) -> None:
    patch.setattr(PartitionBuffers, "resume_drained", lambda _self: [])


ZOMBIES = tuple(Fault("freeze_in_write", 1_000 + 4_000 * number, 25_000, number % 3, 0.05) for number in range(4))
KILLS = tuple(Fault("kill", 9_000 + 1_000 * number, 500, number) for number in range(3))
STALLS = tuple(Fault("stall", 5_000 * number, 1, number % 3) for number in range(1, 8))
OVERLOAD = (Fault("store_overload", 0, 20_000, 0, 0.3),)
DOWN = (Fault("store_down", 8_000, 10_000),)

Suits = Callable[[Terms], bool]


def brief(terms: Terms) -> bool:
    return terms.input_ms == 20_000 and terms.records >= 100


def contended(terms: Terms) -> bool:
    is_quick = terms.input_ms == 60_000 and terms.settings.session_timeout_ms <= 10_000
    return is_quick and terms.store == "unchanged" and terms.records >= 100 and terms.keys <= 5


def overloaded(terms: Terms) -> bool:
    return brief(terms) and terms.records == 1_000 and terms.keys == 1 and terms.store == "unchanged"


def failing(terms: Terms) -> bool:
    return brief(terms) and terms.policy.dead_letters and terms.failing == 0.5


def narrow(terms: Terms) -> bool:
    return terms.settings.limits.waiting_records == 4 and terms.input_ms == 60_000 and terms.records == 1_000


def quiet(terms: Terms) -> bool:
    return terms.input_ms == 60_000 and terms.records <= 100


@pytest.mark.parametrize(
    ("fault", "first", "suits", "faults", "words"),
    [
        (commit_what_is_read, 4, brief, (), "counted"),
        (write_without_ownership, 14, contended, ZOMBIES, "a late write"),
        (trust_a_lease_for_ever, 14, contended, ZOMBIES, "a late write"),
        (drop_rows_that_failed_for_now, 7, brief, OVERLOAD, "without the effect"),
        (retry_rows_without_those_behind_them, 2096, overloaded, OVERLOAD, ""),
        (take_an_unavailable_sink_for_success, 0, brief, DOWN, ""),
        (send_no_dead_letters, 183, failing, (), "without the effect"),
        (forget_the_counts, 7, brief, KILLS, "counted"),
        (keep_the_buffers_of_lost_partitions, 14, contended, ZOMBIES, ""),
        (keep_the_ownership_of_removed_buffers, 14, contended, ZOMBIES, "a late write"),
        (never_look_for_gaps, 2, quiet, STALLS, "not everything is settled"),
        (never_resume, 17, narrow, (), "not everything is settled"),
    ],
)
def test_a_fault_in_the_code_is_convicted(
    fault: Callable[[Patch], None], first: int, suits: Suits, faults: tuple[Fault, ...], words: str, monkeypatch: Patch
) -> None:
    """Within eight seeds from `first` whose terms suit the fault; without it, the same scenarios have no finding."""
    seeds = list(islice((seed for seed in count(first) if suits(draw_terms(random.Random(seed)))), 8))

    def convicting() -> Scenario | None:
        return next((one for seed in seeds if WORLD.run(one := Scenario(seed, faults)).findings), None)

    with monkeypatch.context() as patch:
        fault(patch)
        found = convicting()
        assert found is not None
        assert words in WORLD.run(found).findings[0]
    assert WORLD.run(found).findings == []


CUT_OFF = (
    Fault("store_down", 22_000, 16_711),
    Fault("freeze", 23_900, 60_000, 1),
    Fault("stop", 24_000, 1, 2),
    Fault("cut_off", 30_254, 60_000, 0),
)
"""Worker 2 leaves, so worker 0 joins again, and waits for worker 1, which is frozen. Waiting, it sends no heartbeat and
watches no session time-out. Its packets are lost, and worker 2 gets its partitions, but it is not told."""


def test_a_task_that_waits_for_a_rebalance_does_not_write_when_it_is_cut_off_from_kafka(monkeypatch: Patch) -> None:
    assert WORLD.run(Scenario(14, CUT_OFF)).findings == []
    renew_the_lease_at_each_look(monkeypatch)
    assert "a late write" in WORLD.run(Scenario(14, CUT_OFF)).findings[0]


def test_a_task_goes_on_when_the_coordinator_does_not_know_a_partition_yet(monkeypatch: Patch) -> None:
    scenario = Scenario(16, (Fault("commits_fail", 1_000, 38_000, 0, 0.1),))
    assert WORLD.run(scenario).findings == []
    monkeypatch.setattr(offsets, "RETRIABLE", offsets.RETRIABLE - {KafkaError.UNKNOWN_TOPIC_OR_PART})
    assert "UNKNOWN_TOPIC_OR_PART" in WORLD.run(scenario).findings[0]


def test_a_finding_is_shrunk_to_the_faults_that_it_needs(monkeypatch: Patch) -> None:
    take_an_unavailable_sink_for_success(monkeypatch)
    seed = next(seed for seed in count() if brief(draw_terms(random.Random(seed))))
    others = Fault("leader_moves", 1_000, 1), Fault("stop", 12_000, 700, 1), Fault("broker_loss", 9_000, 900, 1, 0.1)
    small = shrink(Scenario(seed, (*others, *DOWN)), lambda one: bool(WORLD.run(one).findings))
    assert [one.kind for one in small.faults] == ["store_down"]


def test_a_thread_that_an_exception_ends_is_a_finding(monkeypatch: Patch) -> None:
    run = Writers._run

    def run_and_fail(self: Writers) -> None:
        run(self)
        raise LookupError("told to end")

    monkeypatch.setattr(Writers, "_run", run_and_fail)
    seed = next(seed for seed in count() if brief(draw_terms(random.Random(seed))))
    stops = tuple(Fault("stop", 15_000, 1, worker) for worker in range(3))
    assert any("ended with LookupError: told to end" in one for one in WORLD.run(Scenario(seed, stops)).findings)
