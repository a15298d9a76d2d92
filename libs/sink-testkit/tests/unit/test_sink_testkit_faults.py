"""The kit convicts a sink with any of the seeded faults; the sound one passes all checks in `examples/sqlite-sink`."""

from __future__ import annotations

from pathlib import Path

import pytest
from sink_faults import CONVICTED_BY
from sqlite_sink import SqliteSink
from test_sqlite_sink import SqliteUnderTest

from isotherm.sink_testkit.checks import CHECKS
from isotherm.sink_testkit.suite import shared_broker


@pytest.mark.parametrize("fault", CONVICTED_BY, ids=lambda fault: fault.__name__)
def test_a_seeded_fault_is_convicted(fault: type[SqliteSink], tmp_path: Path) -> None:
    class Faulty(SqliteUnderTest):
        sink = f"sink_faults:KINDS.{fault.__name__}"

    with pytest.raises(AssertionError):
        CHECKS[CONVICTED_BY[fault]](Faulty(tmp_path / "store.db"), shared_broker())


def test_a_sink_that_reads_back_as_it_should_passes(tmp_path: Path) -> None:
    class Sound(SqliteUnderTest):
        sink = "sink_faults:KINDS.ReadsBack"

    CHECKS["read_back"](Sound(tmp_path / "store.db"), shared_broker())


def test_every_check_but_that_of_the_loop_convicts_some_fault() -> None:
    """The loop alone decides where THROW stops: its own mutants are in `proofs`."""
    assert set(CHECKS) - set(CONVICTED_BY.values()) == {"throw"}
