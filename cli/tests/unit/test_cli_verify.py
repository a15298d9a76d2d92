"""`isotherm verify`: rows that are the readings of receipts are verified, and no others."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

from isotherm.cli.app import app
from isotherm.cli.receipts.rows import FIELDS, time_ms
from isotherm.connector.receipts.reading_set import HourReading, ReadingSet, entry_of
from isotherm.connector.receipts.receipt import HOUR_MS, Receipt

KEY = Ed25519PrivateKey.generate()
START_MS = 400_000 * HOUR_MS
HOURS = 3


class World:
    """Readings of three hours, their receipts and files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.readings = [
            HourReading(f"d-{number % 40}", "temperature", START_MS + number * 21_000, number, 20 + number / 7)
            for number in range(HOURS * HOUR_MS // 21_000)
        ]
        self.receipts = [self._receipt(START_MS + hour * HOUR_MS) for hour in range(HOURS)]
        self.key = folder / "public.pem"
        self.key.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    def _receipt(self, start_ms: int, revision: int = 0) -> Receipt:
        with ReadingSet() as found:
            for one in self.readings:
                if start_ms <= one.event_ms < start_ms + HOUR_MS:
                    found.add(entry_of(one))
            parts = tuple(found.parts())
        return Receipt("thermostat.data", start_ms, revision, 0, parts, 0, start_ms + 2 * HOUR_MS).signed_by(KEY)

    def jsonl(self, rows: Sequence[HourReading] | Sequence[Mapping[str, Any]]) -> str:
        path = self.folder / "rows.jsonl"
        shown = [dict(zip(FIELDS, one, strict=True)) if isinstance(one, HourReading) else one for one in rows]
        path.write_text("".join(json.dumps(one) + "\n" for one in shown))
        return str(path)

    def verify(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        """Run the command; return its exit code, JSON and notes."""
        receipts = self.folder / "receipts.jsonl"
        lines = [json.dumps({"partition": 0, "key": one.key, "value": one.record()}) for one in self.receipts]
        receipts.write_text("".join(f"{line}\n" for line in lines))
        given = ["--receipts", str(receipts), "--public-key", str(self.key), "--format", "json"]
        result = CliRunner().invoke(app, ["verify", *arguments, *given])
        return result.exit_code, json.loads(result.stdout) if result.stdout else {}, result.stderr

    def problems(self, rows: Sequence[HourReading]) -> list[str]:
        code, told, _ = self.verify(self.jsonl(rows))
        assert (code, told["verified"]) == ((1, False) if told["problems"] else (0, True))
        problems: list[str] = told["problems"]
        return problems


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_rows_in_any_order_with_copies_are_verified(world: World) -> None:
    rows = [*world.readings, *world.readings[:7]]
    random.Random(1).shuffle(rows)
    code, told, _ = world.verify(world.jsonl([*rows, HourReading("d", "t", START_MS - 1, 0, 0.0)]))
    assert code == 0
    assert told["verified"] is True
    assert told["readings"] == told["expected"] == len(world.readings)
    assert (told["hours"], told["verified_hours"], told["copies"], told["outside"]) == (HOURS, HOURS, 7, 1)


def test_csv_as_a_store_writes_it_is_verified(world: World) -> None:
    path = world.folder / "rows.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["device", "metric", "ts", "sequence", "value", "more"])
        for one in world.readings:
            at = datetime.fromtimestamp(one.event_ms / 1000, UTC)
            table.writerow([one.device_id, one.metric, f"{at:%Y-%m-%d %H:%M:%S.000+0000}", one.sequence, one.value, ""])
    code, told, _ = world.verify(str(path), "--column", "device_id=device", "--column", "event_time=ts")
    assert (code, told["verified_hours"]) == (0, HOURS)


def test_every_change_of_rows_is_told_with_hour_and_devices(world: World) -> None:
    at = 250
    one = world.readings[at]
    others = [*world.readings[:at], *world.readings[at + 1 :]]
    hour = f"{datetime.fromtimestamp(one.event_ms // HOUR_MS * HOUR_MS / 1000, UTC):%Y-%m-%dT%H}:00Z: "
    for rows, what in (
        (others, "1 readings at least are not in the rows"),
        ([*world.readings, one._replace(sequence=-1)], "1 readings at least are too many"),
        ([*others, one._replace(value=one.value + 1e-12)], "1 parts of as many readings differ"),
    ):
        (problem,) = world.problems(rows)
        assert problem.startswith(f"{hour}{what}; among the devices of parts ")
        assert one.device_id in problem
    both = world.problems([*others, one._replace(event_ms=START_MS)])
    assert len(both) == 2, "another hour"


def test_a_copy_with_another_value_is_told_although_the_last_one_is_right(world: World) -> None:
    one = world.readings[0]
    (problem,) = world.problems([one._replace(value=-1.0), *world.readings])
    assert problem.endswith("1 copies of readings have other values")


def test_receipts_that_are_missing_changed_or_of_another_key_are_told(world: World) -> None:
    first, second, third = world.receipts
    world.receipts = [first, third]
    (problem,) = world.problems(world.readings)
    assert problem.endswith("there is no receipt")
    world.receipts = [first, Receipt.of({**second.record(), "records": 7}), third]
    (problem,) = world.problems(world.readings)
    assert problem.endswith("the receipt was changed after it was signed")
    world.receipts = [first, second.signed_by(Ed25519PrivateKey.generate()), third]
    (problem,) = world.problems(world.readings)
    assert "the receipt is signed with the key" in problem


def test_receipts_of_every_given_key_count(world: World) -> None:
    first, second, third = world.receipts
    later = Ed25519PrivateKey.generate()
    world.receipts = [first, second, third.signed_by(later)]
    file = world.folder / "later.pem"
    file.write_bytes(later.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    rows = world.jsonl(world.readings)
    assert world.verify(rows)[0] == 1
    assert world.verify(rows, "--public-key", str(file))[0] == 0


def test_the_newest_revision_counts_and_open_findings_are_noted(world: World) -> None:
    late = HourReading("late", "temperature", START_MS + 5, 0, 1.0)
    world.readings.append(late)
    revised = Receipt.of({**world._receipt(START_MS, revision=1).record(), "unreconciled": 2}).signed_by(KEY)
    world.receipts = [revised, *world.receipts]
    code, _, notes = world.verify(world.jsonl(world.readings))
    assert code == 0
    assert "2 findings were open" in notes


def test_two_receipts_of_one_revision_that_differ_are_refused(world: World) -> None:
    world.receipts.append(Receipt.of({**world.receipts[0].record(), "parts": world.receipts[1].record()["parts"]}))
    code, _, notes = world.verify(world.jsonl(world.readings))
    assert code == 2
    assert "different receipts of one revision" in notes


def test_csv_that_hides_rows_is_not_verified(world: World) -> None:
    path = world.folder / "rows.csv"
    head = ",".join(FIELDS)
    rows = [",".join(map(str, one)) for one in world.readings]
    path.write_text("\n".join([head, rows[0] + ',"', *rows[1:3], '"', *rows[3:]]) + "\n")
    assert world.verify(str(path))[0] == 1


def test_a_span_is_verified_alone_and_has_its_receipts(world: World) -> None:
    middle = [one for one in world.readings if START_MS + HOUR_MS <= one.event_ms < START_MS + 2 * HOUR_MS]
    span = ("--from", f"@{START_MS + HOUR_MS}", "--to", f"@{START_MS + 2 * HOUR_MS}")
    code, told, _ = world.verify(world.jsonl(middle), *span)
    assert (code, told["hours"], told["readings"]) == (0, 1, len(middle))
    code, told, _ = world.verify(world.jsonl(world.readings), "--to", f"@{START_MS + 4 * HOUR_MS}")
    assert (code, told["verified_hours"], len(told["problems"])) == (1, 3, 1)


def test_rows_that_are_no_readings_are_told(world: World) -> None:
    whole = dict(zip(FIELDS, world.readings[0], strict=True))
    bad: list[dict[str, Any]] = [
        {**whole, "value": "warm"},
        {**whole, "event_time": "noon"},
        {**whole, "sequence": 7.5},
        {**whole, "sequence": "7_0"},
        {**whole, "sequence": 2.0**60},
        {**whole, "value": "2_0"},
        {**whole, "value": True},
        {**whole, "device_id": 7},
        {"device_id": "d"},
    ]
    good: list[dict[str, Any]] = [dict(zip(FIELDS, one, strict=True)) for one in world.readings]
    path = world.jsonl([*good, *bad])
    with Path(path).open("a") as file:
        file.write("{\n[1]\n" + json.dumps(whole)[:-1] + ', "value": 3}\n')
    code, told, _ = world.verify(path)
    assert (code, told["verified_hours"]) == (1, HOURS)
    assert [one.partition(": ")[0] for one in told["problems"]] == ["no reading"] * (len(bad) + 3)
    assert "--column metric=NAME" in told["problems"][len(bad) - 1]
    code, told, _ = world.verify(world.jsonl([*good, *bad * 10]))
    assert len(told["problems"]) == 51
    assert told["problems"][50] == f"{10 * len(bad) - 50} more rows are no readings"


def test_a_header_that_names_a_column_twice_is_refused(world: World) -> None:
    path = world.folder / "rows.csv"
    rows = [",".join(map(str, (*one, one.value))) for one in world.readings]
    path.write_text("\n".join([",".join((*FIELDS, "value")), *rows]) + "\n")
    code, _, notes = world.verify(str(path))
    assert (code, "names a column twice" in notes) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--from", "noon"), "is not a time"),
        (("--from", f"@{START_MS + 1}"), "whole hour"),
        (("--from", "@3600000", "--to", "@0"), "not before"),
        (("--from", "@0"), "more than 744 hours"),
        (("--column", "colour=x"), "FIELD=NAME"),
        (("--topic", "other"), "no receipt of this topic"),
    ],
)
def test_wrong_calls_are_refused(world: World, arguments: Sequence[str], told: str) -> None:
    code, _, notes = world.verify(world.jsonl([]), *arguments)
    assert code == 2
    assert told in notes


def test_wrong_files_are_refused(world: World) -> None:
    world.key.write_text("none")
    code, _, notes = world.verify(world.jsonl([]))
    assert (code, "no public key" in notes) == (2, True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1_440_000_000_123, 1_440_000_000_123),
        (1_440_000_000_123.0, 1_440_000_000_123),
        ("1440000000123", 1_440_000_000_123),
        ("2015-08-19T16:00:00.123Z", 1_440_000_000_123),
        ("2015-08-19 16:00:00.123+0000", 1_440_000_000_123),
        ("2015-08-19 18:00:00.123456+02", 1_440_000_000_123),
        ("2015-08-19T16:00:00", 1_440_000_000_000),
    ],
)
def test_times_as_stores_write_them(given: object, expected: int) -> None:
    assert time_ms(given) == expected
