from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from isotherm.cli.reconciliation.report import Line, ReconciliationReport
from isotherm.cli.reconciliation.table import show
from isotherm.demo import reconcile, reconciliation
from isotherm.demo.addresses import Addresses
from isotherm.demo.evidence import (
    Reader,
    coap_ledger,
    identity_of,
    mqtt_ledger,
    plain,
)
from isotherm.simulators.ledger import Ledger

GOOD = ReconciliationReport((Line("a", {"records": 2}),))


def bad(records: int) -> ReconciliationReport:
    return ReconciliationReport((Line("a", {"records": records, "missing": 1}, ("1 missing: x",)),))


class Time:
    """A clock that only waiting moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def settle(
    monkeypatch: pytest.MonkeyPatch, time: Time, reports: Iterator[ReconciliationReport]
) -> ReconciliationReport:
    monkeypatch.setattr(reconcile, "take", lambda _addresses, _reader: next(reports))
    return reconcile.settle(
        Addresses(), cast(Reader, None), patience_s=10.0, interval_s=3.0, wait=time.wait, clock=lambda: time.now_s
    )


def test_what_adds_up_at_once_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, time: Time) -> None:
    assert settle(monkeypatch, time, iter([GOOD])) is GOOD
    assert time.now_s == 0.0


def test_patience_begins_anew_with_every_change(monkeypatch: pytest.MonkeyPatch, time: Time) -> None:
    growing = [bad(count // 3) for count in range(30)]

    assert settle(monkeypatch, time, iter([*growing, GOOD])) is GOOD
    assert time.now_s == 90.0


def test_what_stands_still_without_adding_up_is_the_verdict(monkeypatch: pytest.MonkeyPatch, time: Time) -> None:
    assert settle(monkeypatch, time, iter([bad(1)] * 100)) == bad(1)
    assert 10.0 <= time.now_s <= 13.0


def test_what_cannot_change_any_more_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, time: Time) -> None:
    surplus = reconciliation.dead_letters_line({"a.dead-letters": 1}, {})
    growing = [ReconciliationReport((surplus, *bad(count).lines)) for count in range(3)]
    last = ReconciliationReport((surplus, *GOOD.lines))

    assert settle(monkeypatch, time, iter([*growing, last])) is last
    assert time.now_s == 9.0


def test_ledger_gives_published_readings_and_acknowledgements(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    reading: dict[str, Any] = {"device_id": "d", "metric": "temperature", "event_time_ms": 1, "qos": 2}
    with Ledger(path) as ledger:
        ledger.write("start")
        for sequence in (1, 2):
            ledger.write("published", **reading, sequence=sequence)
        ledger.write("acknowledged", **reading, sequence=1)
        ledger.write("sent", **reading, sequence=2)

    published = mqtt_ledger([path, tmp_path / "none"])

    assert published.qos_by_identity == {("d", "temperature", 1, 1): 2, ("d", "temperature", 1, 2): 2}
    assert published.acknowledged == {("d", "temperature", 1, 1)}


def test_ledger_gives_notified_states(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.write("notified", device_id="Sensor1", event_time_ms=5)

    assert coap_ledger([path]) == {("Sensor1", 5)}


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC),
        datetime(2026, 1, 31, 12, 0, 0, 123_000),
        datetime(2026, 1, 31, 14, 0, 0, 123_000, tzinfo=timezone(timedelta(hours=2))),
        1_769_860_800_123,
    ],
)
def test_time_is_the_same_whichever_way_a_store_gives_it(moment: datetime | int) -> None:
    assert plain(moment) == 1_769_860_800_123
    assert identity_of({"id": "a", "at": moment, "more": 1}, ("id", "at")) == ("a", 1_769_860_800_123)


def test_table_shows_figures_and_every_reason() -> None:
    written = io.StringIO()
    show(ReconciliationReport((*GOOD.lines, *bad(1).lines)), Console(width=200, file=written))
    text = written.getvalue()

    assert "adds up" in text
    assert "a: 1 missing: x" in text
