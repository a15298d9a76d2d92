from __future__ import annotations

from collections.abc import Mapping

import pytest
from aggregator_notes import GivenNotes

from isotherm.aggregator.spark.noted_batches import NotedBatches


class Plans:
    """The plans of a query, in the words of Spark, by batch."""

    def __init__(self, **texts: str) -> None:
        self.texts = {int(name.removeprefix("b")): text for name, text in texts.items()}

    def text(self, batch_id: int) -> str | None:
        return self.texts.get(batch_id)

    def put_back(self, texts: Mapping[int, str]) -> list[int]:
        replaced = [number for number, text in texts.items() if self.texts.get(number, text) != text]
        self.texts.update({number: texts[number] for number in replaced})
        return replaced


def test_a_batch_is_noted_with_its_plan_and_the_one_before() -> None:
    plans, notes = Plans(b7="seven", b8="eight"), GivenNotes()
    NotedBatches("windows", plans, notes).begin(8)
    assert notes.all == [("windows", {"batch": 8, "plans": {"7": "seven", "8": "eight"}, "devices": None})]


def test_a_batch_does_not_begin_when_kafka_refuses_its_note() -> None:
    plans, notes = Plans(b0="zero"), GivenNotes()
    notes.refusal = RuntimeError("fenced")
    with pytest.raises(RuntimeError, match="fenced"):
        NotedBatches("windows", plans, notes).begin(0)


def test_a_batch_that_is_run_again_has_the_same_devices() -> None:
    plans, notes = Plans(b0="zero", b1="one"), GivenNotes()
    first = NotedBatches("windows", plans, notes)
    first.begin(0)
    assert first.devices(0) is None
    first.note_devices(0, {"0": 5})
    again = NotedBatches("windows", plans, notes)
    assert again.devices(0) == {"0": 5}
    again.begin(0)
    assert again.devices(0) == {"0": 5}
    again.begin(1)
    assert (again.devices(0), again.devices(1)) == (None, None)
    with pytest.raises(RuntimeError, match="batch 0 of windows has not begun"):
        again.note_devices(0, {"0": 9})


def test_devices_that_spark_cannot_read_are_asked_for_again() -> None:
    notes = GivenNotes()
    batches = NotedBatches("windows", Plans(b0="zero"), notes)
    batches.begin(0)
    batches.note_devices(0, {"0": 5, "1": -1001})
    assert batches.devices(0) is None


def test_what_was_noted_counts_where_a_former_holder_has_replaced_a_plan() -> None:
    plans, notes = Plans(b7="seven", b8="eight"), GivenNotes()
    batches = NotedBatches("windows", plans, notes)
    batches.begin(8)
    plans.texts = {7: "of another", 8: "of another", 9: "planned, not begun"}
    batches.restore()
    assert plans.texts == {7: "seven", 8: "eight", 9: "planned, not begun"}


def test_a_checkpoint_that_was_restored_is_left_as_it_is() -> None:
    plans, notes = Plans(b7="seven", b8="eight"), GivenNotes()
    batches = NotedBatches("windows", plans, notes)
    batches.restore()
    batches.begin(8)
    plans.texts = {3: "three"}
    batches.restore()
    assert plans.texts == {3: "three"}
