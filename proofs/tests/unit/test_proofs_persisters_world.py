"""The world of the persisters finds nothing in the code as it is, and convicts each fault that is put into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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
from isotherm.proofs.worlds.persisters import PersistersWorld
from isotherm.proofs.worlds.scenario import Scenario

WORLD = PersistersWorld()
Patch = pytest.MonkeyPatch


def test_the_code_as_it_is_has_no_finding_and_each_seed_has_one_trace() -> None:
    for seed in range(12):
        first = WORLD.run(WORLD.scenario(seed), keeps_trace=True)
        assert first.findings == []
        if seed < 3:
            again = WORLD.run(Scenario.decoded(WORLD.scenario(seed).encoded()), keeps_trace=True)
            assert (again.lines, again.digest) == (first.lines, first.digest)


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


FAULTS: list[tuple[Callable[[Patch], None], int, str]] = [
    (commit_what_is_read, 0, "without the effect"),
    (write_without_ownership, 0, "not the newest row"),
    (trust_a_lease_for_ever, 0, "not the newest row"),
    (drop_rows_that_failed_for_now, 0, "without the effect"),
    (retry_rows_without_those_behind_them, 0, "not the newest row"),
    (take_an_unavailable_sink_for_success, 0, "without the effect"),
    (send_no_dead_letters, 0, "without the effect"),
    (forget_the_counts, 0, "counted"),
    (keep_the_buffers_of_lost_partitions, 0, ""),
    (keep_the_ownership_of_removed_buffers, 0, ""),
    (never_look_for_gaps, 0, "not everything is settled"),
    (never_resume, 0, "not everything is settled"),
]


@pytest.mark.parametrize(("fault", "seed", "words"), FAULTS)
def test_a_fault_in_the_code_is_convicted(
    fault: Callable[[Patch], None], seed: int, words: str, monkeypatch: Patch
) -> None:
    fault(monkeypatch)
    findings = WORLD.run(WORLD.scenario(seed)).findings
    assert findings
    assert words in findings[0]
