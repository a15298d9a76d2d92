from pathlib import Path

import pytest

from isotherm.simulators.ledger import Ledger, LedgerError, events


def test_events_come_back_in_order_and_a_second_run_continues_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.write("published", n=1)
    with Ledger(path) as ledger:
        ledger.write("published", n=2)

    assert [dict(event) for event in events(path)] == [
        {"event": "published", "n": 1},
        {"event": "published", "n": 2},
    ]


def test_line_is_in_the_file_before_the_next_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.write("published", n=1)

        assert len(list(events(path))) == 1


def test_an_incomplete_last_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"event":"published"}\n{"event":"publ')

    assert len(list(events(path))) == 1


@pytest.mark.parametrize("line", ["nonsense", "[]", "{}"])
def test_an_invalid_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(f'{{"event":"published"}}\n{line}\n')

    with pytest.raises(LedgerError, match=r"ledger\.jsonl, line 2"):
        list(events(path))
